"""Losses that are bad, and what of a script was not looked at."""

from __future__ import annotations

import json

import pytest
from scripts import NET

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")

LOSS = """
def loss(y):
    return y.log().mean()  # nan, with a gradient that is finite
for bias in 2.0, -1.0, -1.0:
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.fill_(bias)
    loss(net(torch.ones(2, 4))).backward()
"""


def test_a_bad_loss_whose_gradient_is_finite(cli, script):
    name = script(NET + LOSS)
    outcome = cli("hunt", name)
    place, told, hint = outcome.out.splitlines()
    assert outcome.code == 5
    assert place.endswith(": loss(net(torch.ones(2, 4))).backward()")
    assert told.startswith(
        "step 1: the loss is nan, and no module that was watched gave a bad value"
    )
    assert "nn.CrossEntropyLoss" in hint and outcome.err == ""
    outcome = cli("hunt", "--json", "--keep-going", name)
    found = json.loads(outcome.out)
    assert (outcome.code, found["findings"]) == (5, [])
    assert [(one["step"], one["value"]) for one in found["losses"]] == [(1, "nan")]


COMPILED = """
import sys, torch
from torch import nn

class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()

scale = torch.compile(Logarithm(), backend="eager")(-torch.ones(3))
if "linear" in sys.argv:
    y = nn.Linear(3, 3)(torch.ones(3))
    if "loss" in sys.argv:
        (y.detach() * scale).sum().requires_grad_().backward()
"""


def test_what_the_script_compiles_itself_is_named_and_not_called_finite(cli, script):
    name = script(COMPILED)
    outcome = cli("hunt", name)
    assert outcome.code == 2
    assert "nothing was checked: the script compiles Logarithm itself" in outcome.err
    outcome = cli("hunt", name, "linear")
    assert outcome.code == 0
    assert "; not watched: Logarithm, compiled by the script itself" in outcome.err
    outcome = cli("hunt", name, "linear", "loss")
    assert outcome.code == 5
    assert "or from Logarithm, compiled by the script itself" in outcome.out


def test_a_mean_of_no_labels_is_named(cli, script):
    outcome = cli("hunt", script("""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.loss = nn.Linear(4, 3), nn.CrossEntropyLoss(weight=torch.ones(3))

    def forward(self, x, label):
        return self.loss(self.linear(x), label)

net = Net()
for first in (1, -100):
    net(torch.ones(2, 4), torch.tensor([first, -100])).backward()
"""))  # fmt: skip
    assert (outcome.code, "forward: step 1 is bad" in outcome.out) == (5, True)
    assert "0 / 0: the mean of no labels, all are ignored" in outcome.out


def test_an_infinite_loss_is_left_out_with_the_other_infinities(cli, script):
    name = script(NET + LOSS.replace("2.0, -1.0, -1.0", "0.0,").replace(".log()", ".sub(1e39)"))
    assert cli("hunt", "--nan-only", name).code == 0
    outcome = cli("hunt", name)
    assert outcome.code == 5 and "step 0: the loss is inf" in outcome.out
