"""`opstep debug` on a program that was imported, at the lines of Python."""

from __future__ import annotations

import io
import sys

import pytest

MODEL = """\
def twice(v):
    w = v + v
    return w


class Net:
    def forward(self, x):
        y = self.first(x)
        y = twice(y)
        return y.sum()
"""

PROGRAM = """\
graph main(x: f32[3]) -> f32[] {
  y = mul(x, 3.0) at "net.py":8 in "first"
  w = add(y, y) at "net.py":2, 9
  total = sum(w) at "net.py":10
  return total
}
"""


@pytest.fixture
def debug(cli, write, monkeypatch):
    write("net.py", MODEL)
    file = write("model.opg", PROGRAM)

    def run(*commands):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
        outcome = cli("debug", file, "-i", "x=ones")
        assert outcome.code == 0, outcome.err
        assert "internal error" not in outcome.out
        return outcome.out

    return run


def test_frames_and_steps_are_pythons(debug):
    out = debug("start", "n", "s", "bt", "list", "fin", "rn", "rs")
    assert "=>   8          y = self.first(x)" in out
    assert "* #0  twice at net.py:2" in out and "  #1  Net.forward at net.py:9" in out
    assert "def twice(v):" in out
    after = out.split("(opstep) fin")[1]
    assert after.index("=>  10  ") < after.index("=>   9  ") < after.index("=>   8  ")


def test_breakpoints_and_values(debug):
    out = debug("b net.py:2", "b 10", "r", "p v", "info locals", "c", "p y", "set y = y * 10", "c",
                "b other.py:2")  # fmt: skip
    assert "Breakpoint 1, twice at net.py:2" in out
    assert "v = [3.0, 3.0, 3.0]" in out and "y = [6.0, 6.0, 6.0]" in out
    assert "total = 180.0" in out
    assert "the program has no file other.py" in out


def test_finish_leaves_a_line_of_several_ops(cli, write):
    write(
        "net.py",
        "def twice(v):\n    return v * 2 + v - v\n\n\ndef forward(x):\n    return twice(x).sum()\n",
    )
    file = write("model.opg", """\
graph main(x: f32[3]) -> f32[] {
  a = mul(x, 2.0) at "net.py":2, 6
  b = add(a, x) at "net.py":2, 6
  c = sub(b, x) at "net.py":2, 6
  total = sum(c) at "net.py":6
  return total
}
""")  # fmt: skip
    outcome = cli("debug", file, "-i", "x=ones", "-ex", "break net.py:2", "-ex", "run", "-ex",
                  "finish", "-ex", "bt", "--batch")  # fmt: skip
    assert outcome.code == 0 and outcome.out.endswith("* #0  forward at net.py:6\n")


def test_the_view_is_switched(debug):
    out = debug("start", "view", "n", "view python", "view", "view auto", "view sideways")
    assert "[graph]" in out and "=>   3    w = add(y, y)" in out
    assert "[python]" in out and "=>   2      w = v + v" in out
    assert "there is no view sideways" in out
