"""Ops, modules and watched values in `opstep debug train.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("debugpy")
pytest.importorskip("torch")

NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        h = self.layer(x)
        return torch.softmax(h, 1)


class Other(Net):
    pass


torch.manual_seed(0)
net = Other()
for turn in range(3):
    out = net(torch.full((2, 3), float(turn)))
    loss = out.log().mean()
    loss.backward()
    loss = None
print("done")
"""


def lines_of(out: str) -> list[str]:
    """What it said, without the lines of the file around those where it stood, and without where in
    loops those are.
    """
    said = [x.strip() for x in out.splitlines() if not x[:6].strip().isdecimal()]
    return [re.sub(r"( at \S+:\d+), .*", r"\1", line) for line in said]


def test_breakpoints_on_ops(debug_script):
    given = (
        "break op softmax if turn == 1 and op.absmax(result) >= 0.5", "tbreak aten::sofmax", "run",
        "p op.operands.dim", "info breakpoints", "delete", "c",
    )  # fmt: skip
    code, out = debug_script(NET, *given)
    said = lines_of(out)
    assert code == 0
    assert said[:5] == [
        "Breakpoint 1 on op softmax", "Temporary breakpoint 2 on op aten::sofmax",
        "warning: temporary breakpoint 2: PyTorch has no op sofmax; did you mean softmax, fmax "
        "or log_softmax?",
        "after aten::softmax", said[4],
    ]  # fmt: skip
    assert said[4].startswith("result = f32[2, 2]  mean 0.5")
    assert said[5] == "Breakpoint 1, Net.forward at train.py:11"
    assert said[7:9] == [
        "op.operands.dim = 1",
        "1   breakpoint op softmax, if turn == 1 and op.absmax(result) >= 0.5, 1 stop",
    ]
    assert said[-2:] == ["done", "The script has ended."]


def test_steps_by_ops(debug_script):
    given = (
        "break 11", "run", "disassemble", "stepi", "disassemble", "nexti 2", "delete", "stepi",
        "disas",
    )  # fmt: skip
    code, out = debug_script(NET, *given)
    assert code == 0
    said = [x for x in lines_of(out) if x.startswith(("after", "=> aten", "=> (", "aten", "back"))]
    assert said[0] == "=> (no op of this line has run since listing began)"
    assert said[1] == "after aten::_softmax"
    assert said[2].startswith("=> aten::_softmax(f32[2, 2], 1, False) -> f32[2, 2]  mean 0.5")
    assert said[3:5] == ["after aten::mean", "after aten::ones_like"]
    assert said[5].startswith("=> aten::ones_like(f32[]")
    assert "the line had begun" in out


def test_watches(debug_script):
    given = (
        "break 22 if turn == 0", "run", "watch loss", "watch turn == 1", "watch op.isnan(nothing)",
        "watch out > 0", "watch", "delete 1", "continue", "condition 2 loss is None", "continue",
        "continue", "info b", "delete", "c",
    )  # fmt: skip
    code, out = debug_script(NET, batch=False, pipe="\n".join(given))
    assert code == 0
    said = [x.removeprefix("(opstep) ") for x in lines_of(out)]
    assert "Watchpoint 2: loss" in said and "Watchpoint 3: turn == 1" in said
    assert "Watchpoint 4: op.isnan(nothing)" in said  # it may be there later
    assert any(x.startswith("error: cannot be evaluated: RuntimeError: Boolean") for x in said)
    assert "error: an expression is missing" in said
    stops = [x for x in said if x.startswith(("loss has", "turn ==", "Watchpoint"))][3:]
    assert stops == [
        "loss has another value", "Watchpoint 2, <module> at train.py:23",
        "loss has another value", "Watchpoint 2, <module> at train.py:20",
        "turn == 1 has become true", "Watchpoint 3, <module> at train.py:21",
    ]  # fmt: skip
    assert "(opstep) info b\n2   watchpoint loss, if loss is None, 2 stops\n" in out


def test_modules_and_inherited_methods(debug_script):
    given = (
        "break module layer if turn == 1", "break Other.forward if turn == 2", "run", "c",
        "p type(self).__name__",
    )  # fmt: skip
    code, out = debug_script(NET, *given)
    said = lines_of(out)
    assert code == 0
    assert said[:2] == [
        "Breakpoint 1 on module layer",
        "Breakpoint 2 on Other.forward, in any module",
    ]
    assert said[2:4] == ["before layer is called", "Breakpoint 1, Net.forward at train.py:10"]
    assert any(x.startswith("Breakpoint 2, Net.forward at train.py:") for x in said)
    assert said[-1] == "type(self).__name__ = 'Other'"


@pytest.mark.usefixtures("compiled_parts")
def test_the_guide_shows_what_happens(debug_script):
    root = Path(__file__).resolve().parents[2]
    guide = (root / "docs" / "debugging.md").read_text(encoding="utf-8")
    script = re.search(r"^```python\n(# attention\.py\n.*?)^```", guide, re.M | re.S)
    shown = re.search(r"^```text\n\$ opstep debug attention\.py\n(.*?)^```", guide, re.M | re.S)
    assert script is not None and shown is not None
    given = re.findall(r"^\(opstep\) (.*)$", shown[1], re.M)
    code, out = debug_script(script[1], batch=False, pipe="\n".join(given), name="attention.py")
    assert code == 0 and len(given) > 4
    assert [line.rstrip() for line in out.splitlines()] == shown[1].splitlines()


def test_without_a_compiler_ops_are_watched_in_python(debug_script, tmp_path, monkeypatch):
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/missing/g++")
    given = ("break op softmax if turn == 1", "break op linear", "run", "stepi", "p turn", "c")
    code, out = debug_script(NET, *given)
    said = lines_of(out)
    assert code == 0
    first, second = [x for x in said if x.startswith("after")]
    assert first == "after aten::_softmax" and second != first and "turn = 1" in said
    unseen = [x for x in said if x.startswith("opstep: where PyTorch runs other ops in place of")]
    assert len(unseen) == 2 and said[-1] == "The script has ended."
