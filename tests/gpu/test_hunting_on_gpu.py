"""Hunting on a GPU: the seeded bugs, clean programs, flags inside of captured graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.hunting.search import hunt

sys.path.append(str(Path(__file__).parent.parent / "hunting"))

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


def test_a_hunt_that_is_recorded(tmp_path):
    case = seeded(next(p for p in bugs() if p.stem == "third_step"))
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        found = hunt(
            case.program, case.graph, case.inputs, steps=9, device="cuda", recording=recording
        )
    assert found.step == 2
    run = opstep.Workspace(tmp_path / "runs.db").runs[0]
    assert run.counts()["executions"] >= 6


def test_a_step_is_replayed_from_the_state_that_it_began_with():
    program = opstep.loads("""
param w: f32[4096] = full(value=8.0)
graph main(x: f32[4096]) -> f32[4096] {
  y = log(w)
  h = mul(w, 0.25)
  z = sub(h, 0.5)
  w <- z
  out = mul(x, y)
  return out
}
""")
    found = hunt(program, "main", {"x": np.ones(4096, np.float32)}, steps=9, device="cuda")
    assert found.step == 2
    assert found.first.verdict.elements[0].blamed[0].value == -0.125
    assert set(program.params["w"].tolist()) == {-0.125}
