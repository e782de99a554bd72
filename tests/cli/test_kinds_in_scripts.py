"""``opstep hunt --hunt KINDS train.py``: what no NaN and no infinity shows, in eager PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("fresh")

UNDERFLOW = """\
import torch

scores = torch.tensor([[0.0, 200.0], [0.0, 1.0]])
p = torch.softmax(scores, 1)
print(p.sum().item())
"""
IN_BACKWARD = """\
import torch

w = torch.full((2,), 1e4, dtype=torch.float16, requires_grad=True)
y = w * 1e-4
z = y * 1e-4
z.sum().backward()
print(w.grad.tolist())
"""
WRAPS = """\
import torch

levels = torch.tensor([200, 100], dtype=torch.uint8)
levels += 100
print(levels.tolist())
"""
CONVERTED = """\
import torch

n = (torch.tensor([1.0, 3.0]) * 1e10).to(torch.int32)
"""
TOO_LARGE = """\
import torch

x = torch.full((2,), 300.0, dtype=torch.float16)
y = torch.zeros(2, dtype=torch.float16)
torch._foreach_mul_([y, x], 300.0)
"""
EMBEDDED = """\
import torch

table = torch.nn.Embedding(10, 4)
words = torch.tensor([[1, 2], [3, 10]])
table(words)
"""
LABELLED = """\
import torch

logits = torch.zeros(3, 2)
torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2]))
"""
GROWS = """\
import torch

x = torch.tensor([1.0, -3.0])
for step in range(20):
    x = x * 10
    y = x.clone()
print(x.tolist())
"""
ALL = "nan,inf,overflow,underflow,index,absmax > 1e12"
HEALTHY = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(3):
    x, labels = torch.randn(16, 4), torch.randint(3, (16,))
    loss = nn.functional.cross_entropy(net(x), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    print(repr(loss.item()))
"""


@pytest.mark.parametrize(
    "kind, text, line, headline",
    [
        ("underflow", UNDERFLOW, 4, "underflow in softmax: underflow of f32 to 0 (p[0, 0] = 0 of"),
        ("underflow", IN_BACKWARD, 4, "underflow in the backward of mul, in mul: underflow of f16"),
        ("overflow", WRAPS, 4, "overflow in add: u8 wraps (levels[0] = 44 of input[0] = 200, 100"),
        ("overflow", CONVERTED, 3, "overflow in to: beyond what i32 holds (n[0] = -2.14748e"),
        ("overflow", TOO_LARGE, 5, "overflow in mul: overflow of f16 (mul[0] = inf"),
        ("index", EMBEDDED, 5, "index in embedding: an index that does not exist: indices[1, 1]"),
        ("index", LABELLED, 4, "index in nll_loss_forward: an index that does not exist: target["),
        ("absmax > 1e4", GROWS, 5, "absmax > 1e4 in mul: absmax is 30000"),
        ("nan, min < -100 and max < 999", GROWS, 5, "min < -100 and max < 999 in mul: min is -300"),
        ("value[1] < -500", GROWS, 5, "value[1] < -500 in mul: it holds"),
    ],
)
def test_kinds(cli, script, kind, text, line, headline):
    outcome = cli("hunt", "--hunt", kind, script(text))
    assert outcome.code == 5
    first, second, *_ = outcome.err.splitlines()
    assert first == f"train.py:{line}: {text.splitlines()[line - 1].strip()}"
    assert second.startswith(headline)


def test_elements_are_those_that_pytorch_gave(cli, script):
    outcome = cli("hunt", "--hunt", "overflow", "--json", script(CONVERTED))
    (found,) = outcome.json["findings"]
    assert found["bad"] == "overflow"
    given = (torch.tensor([1.0, 3.0]) * 1e10).to(torch.int32).tolist()
    assert [element["value"] for element in found["elements"]] == given


def test_a_healthy_script_runs_as_without(cli, script):
    outcome = cli("hunt", "--hunt", ALL, script(HEALTHY))
    plain = cli("run", script(HEALTHY))
    assert (outcome.code, outcome.out) == (0, plain.out)
    assert f"in 3 steps of optimizers, nothing found of {ALL}" in outcome.err


@pytest.mark.parametrize("kind", ["index", "overflow", "absmax > 1e30"])
def test_an_error_of_the_script_stays_its_own(cli, script, kind):
    text = "import torch\ntry:\n    torch.ones(2)[torch.tensor([[0, 1]])] @ torch.ones(3)\n"
    outcome = cli("hunt", "--hunt", kind, script(text + "except RuntimeError:\n    print('no')\n"))
    assert (outcome.code, outcome.out) == (0, "no\n")


def test_only_what_is_named(cli, script):
    text = "import torch\nprint((torch.ones(1) / 0).item(), torch.tensor([-1.0]).log().item())\n"
    assert cli("hunt", "--hunt", "underflow", script(text)).code == 0
    outcome = cli("hunt", "--hunt", "nan", script(text))
    assert outcome.code == 5 and "NaN born in log" in outcome.err


@pytest.mark.parametrize(
    "options, error",
    [
        (("--hunt", "underflo"), "underflo is nothing that can be hunted"),
        (("--hunt", "absmx > 1"), "absmx is no figure of a tensor"),
        (("--hunt", "index", "--nan-only"), "--nan-only and --hunt index do not go together"),
        (("--hunt", "index", "--compiled"), "--hunt is for programs, and for what PyTorch runs"),
    ],
)
def test_refused(cli, script, options, error):
    outcome = cli("hunt", *options, script(WRAPS))
    assert outcome.code == 2 and f"error: {error}" in outcome.err
