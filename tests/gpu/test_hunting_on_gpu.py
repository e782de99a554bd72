"""Hunting on a GPU: the seeded bugs, clean programs, flags inside of captured graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.hunting import hunt

sys.path.append(str(Path(__file__).parent.parent / "debugger"))

from seeded import break_kernel, bugs, clean, seeded
from test_hunting import holds


@pytest.mark.parametrize("path", bugs(), ids=lambda p: p.stem)
def test_a_seeded_bug_is_found_where_it_was_born(path, monkeypatch):
    case = seeded(path)
    if case.broken:
        break_kernel(monkeypatch, *case.broken)
    found = hunt(case.program, case.graph, case.inputs, steps=case.steps, device="cuda")
    if case.first.kind == "masked":
        assert not found.found
        holds(found.masked[0], case.first)
    else:
        assert found.step == case.step
        holds(found.findings[0], case.first)


@pytest.mark.parametrize("path", clean(), ids=lambda p: p.stem)
def test_a_clean_program_raises_no_alarm(path):
    case = seeded(path)
    found = hunt(case.program, case.graph, case.inputs, steps=4, device="cuda")
    assert not found.found, found.report()
    assert found.steps == 4


def test_flags_are_raised_by_replayed_graphs():
    """The step is captured the second time; what goes wrong at the sixth is seen all the same."""
    program = opstep.loads("""
state left: f32[] = 5.0
graph main(x: f32[4096]) -> f32[4096] {
  r = sqrt(left)
  a = mul(x, r)
  b = exp(a)
  c = add(b, x)
  next = sub(left, 1.0)
  left <- next
  return c
}
""")
    x = np.linspace(0, 1, 4096, dtype=np.float32)
    found = hunt(program, "main", {"x": x}, steps=20, device="cuda")
    assert (found.step, found.replays) == (6, 2)
    assert (found.first.op, found.first.verdict.rules[0][0]) == (
        "sqrt",
        "square root of a negative number",
    )
    assert float(program.params["left"]) == -1.0
