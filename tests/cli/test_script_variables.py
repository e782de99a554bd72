"""Python variables in `opstep debug train.py`, where modules that are called train."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install opstep[torch]")

PAIR = """\
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.tanh(x * 2)
        ones = self.a(h)
        return self.b(h), ones

class One(Pair):
    def forward(self, x):
        h = torch.tanh(x * 2)
        return torch.sigmoid(self.a(h) * 0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.ones = nn.ModuleList([One()])
        for k, part in enumerate((self.pair.a, self.pair.b)):
            nn.init.constant_(part.weight, 0.0)
            nn.init.constant_(part.bias, k + 1.0)

    def forward(self, x):
        second, first = self.pair(x)
        y = self.ones[0](x)
        double, half = self.twice(x)
        third = self.pair(x)[1]
        _, again = self.pair(x)
        n = len(x)
        loss = (first.exp() * second * y * double * half + third + again).sum() * n
        return loss

    def twice(self, x):
        double = x * 2
        half = double.tanh() / 4
        return double, half

net = Net()
net(torch.ones(1, 3)).backward()
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; gives its name."""

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        return "train.py"

    torch._dynamo.reset()
    yield write
    torch._dynamo.reset()


def commands(*given: str) -> list[str]:
    return [word for command in given for word in ("-ex", command)]


def test_variables_are_what_submodules_return(cli, script):
    """Not what they save for the backward, in whichever order the graph has it."""
    ended = commands("break train.py:36", "run", "info locals", "p self.ones[0].a.bias")
    outcome = cli("debug", *ended, "--batch", script(PAIR))
    assert outcome.code == 0
    stopped = outcome.out.partition("=>")[2].splitlines()
    found = dict(line.split(" = ", 1) for line in stopped if " = [[" in line)
    assert found == {
        "x": "[[1.0, 1.0, 1.0]]", "first": "[[1.0, 1.0, 1.0]]", "second": "[[2.0, 2.0, 2.0]]",
        "y": "[[0.5, 0.5, 0.5]]", "double": "[[2.0, 2.0, 2.0]]", "third": "[[1.0, 1.0, 1.0]]",
        "half": "[[0.2410069, 0.2410069, 0.2410069]]", "again": "[[1.0, 1.0, 1.0]]",
    }  # fmt: skip
    assert "not known here: n" in stopped and "self.ones[0].a.bias = [" in outcome.out


def test_what_a_submodule_returned_is_set(cli, script):
    ended = commands("break train.py:31", "run", "set second = 5", "p second", "p first")
    outcome = cli("debug", *ended, "--batch", script(PAIR))
    assert outcome.code == 0
    assert outcome.out.endswith("second = [[5.0, 5.0, 5.0]]\nfirst = [[1.0, 1.0, 1.0]]\n")


def test_finish_lists_what_a_submodule_returned(cli, script):
    ended = commands("break train.py:30", "run", "step", "finish")
    outcome = cli("debug", *ended, "--batch", script(PAIR))
    assert outcome.code == 0 and "Pair.forward (pair) at train.py:11" in outcome.out
    shown = [line for line in outcome.out.splitlines() if " = [[" in line]
    assert len(shown) == 2 and all("[[1.0," in line or "[[2.0," in line for line in shown)


def test_a_condition_on_what_the_graph_does_not_have(cli, script):
    ended = commands("break train.py:36 if n > 3", "run")
    outcome = cli("debug", *ended, "--batch", script(PAIR))
    assert "condition n > 3: there is no n here (a name of Python whose value" in outcome.out


UNPROVEN = """\
import torch
from torch import nn

class Unproven(nn.Module):
    def forward(self, x):
        n = 3
        ops = torch
        a = n * x
        b = ops.sub(x, a)
        c = self.this(a, b)
        d = type(self).alone(self, b, c)
        e = d * 5
        i = e.reshape(2)
        i.reshape(1, 2).zero_()
        return a + b + c + d + e + i.reshape(1, 2)

    def this(this, p, *rest, q=None):
        r = p + rest[0]
        return r

    def alone(self, y, z):
        w = y - z
        return w

for rows in (1, 1):
    Unproven()(torch.ones(rows, 2))
"""


@pytest.mark.parametrize(
    ("line", "shown", "unknown"),
    [
        (9, ["x = [[1.0, 1.0]]", "a = [[3.0, 3.0]]"], "n, ops"),
        (15, ["a = [[3.0, 3.0]]", "d = [[-3.0, -3.0]]", "e = [[0.0, 0.0]]"], "x, n, ops, i"),
        (18, ["p = [[3.0, 3.0]]"], "this, q, rest"),
    ],
)
def test_what_no_op_proves_is_not_known(cli, script, line, shown, unknown):
    """A number that PyTorch puts last, a module beside a tensor's method, arguments of a method
    that is called by its class, a view that is taken anew.
    """
    ended = commands(f"break {line}", "run", "info locals")
    outcome = cli("debug", *ended, "--batch", script(UNPROVEN))
    assert outcome.code == 0
    lines = outcome.out.rpartition("=>")[2].splitlines()
    for one in shown:
        assert one in lines
    assert f"not known here: {unknown}" in "\n".join(lines)
