"""Ops beside compiled modules: losses, loops, optimizers, and what was not looked at."""

from __future__ import annotations

import pytest
from scripts import NET, TRAINING

from opstep.frontends.torch.eager import native

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
    outcome = cli("hunt", "--compiled", name)
    assert (outcome.code, outcome.out) == (5, "")
    place, told, *others = outcome.err.splitlines()
    assert place == "train.py:19: return y.log().mean()  # nan, with a gradient that is finite"
    assert told.startswith("NaN born in log: log of a negative number (log[0, 0] = nan of input")
    assert any(line.endswith("the loss is NaN, train.py:24") for line in others)
    outcome = cli("hunt", "--compiled", "--json", "--keep-going", name)
    (found,) = outcome.json["findings"]
    assert (outcome.code, found["op"], found["phase"], found["step"]) == (5, "log", "forward", 0)


def test_a_loss_of_what_came_out_of_a_module_is_the_modules(cli, script):
    """With what it was computed of, and no second report of the loss."""
    bad = "net.out.bias.data.fill_(3e38); net.out.weight.data.fill_(3e38)\n"
    name = script(NET + bad + "net(torch.ones(2, 4)).mean().backward()\n")
    outcome = cli("hunt", "--compiled", "--keep-going", name)
    assert outcome.code == 5 and outcome.out.count("overflow of f32") >= 1
    assert "in linear out at forward" in outcome.out and "the loss is" not in outcome.err


def test_optimizers_and_loops_beside_modules_are_watched(cli, script):
    steps = TRAINING.replace("lr=0.1", "lr=1e38").replace(
        "loss.backward()", "(loss * 50).backward()"
    )
    outcome = cli("hunt", "--compiled", script(NET + steps))
    first, told, *_ = outcome.err.splitlines()
    assert outcome.code == 5 and first == "train.py:22: optimizer.step()", outcome.err
    assert told.startswith("infinity born in the optimizer's step, in ")


def test_data_that_no_module_gets_is_seen_at_the_end(cli, script):
    """A bad value that no op made could be a module's: it is reported if none gave one."""
    text = "import numpy as np\ny = torch.from_dlpack(np.full(2, np.nan, np.float32))\n"
    name = script(NET + text + "print(net(torch.ones(2, 4)).shape, (y * 2).sum().item())\n")
    outcome = cli("hunt", "--compiled", name)
    assert (outcome.code, outcome.out) == (5, "torch.Size([2, 2]) nan\n")
    assert (
        "NaN was in input, before mul took it in here: no op of PyTorch's wrote it" in outcome.err
    )


def test_without_a_compiler_that_is_said(cli, script, monkeypatch, tmp_path):
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    native._extension.cache_clear()
    try:
        outcome = cli("hunt", "--compiled", script(NET + TRAINING))
    finally:
        monkeypatch.undo()
        native._extension.cache_clear()
    assert outcome.code == 0 and "; ops beside compiled modules were not watched: " in outcome.err
    assert "no-such-compiler, a C++ compiler" in outcome.err


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


def test_ops_of_what_the_script_compiles_itself_are_watched(cli, script):
    name = script(COMPILED)
    outcome = cli("hunt", "--compiled", name)
    assert outcome.code == 2 and "nothing ran on opstep: no model was called" in outcome.err
    outcome = cli("hunt", "--compiled", name, "linear")
    assert outcome.code == 0
    assert "1 call of 1 module, no NaN or infinity came out; some were born" in outcome.err
    outcome = cli("hunt", "--compiled", name, "linear", "loss")
    assert outcome.code == 5
    assert "NaN born in log: log of a negative number (log[0] = nan of" in outcome.err


def test_a_mean_of_no_labels_is_named(cli, script):
    outcome = cli("hunt", "--compiled", script("""
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
    assert cli("hunt", "--compiled", "--nan-only", name).code == 0
    outcome = cli("hunt", "--compiled", name)
    assert outcome.code == 5 and "step 0: the loss is infinite" in outcome.err
