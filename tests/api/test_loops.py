"""Loops of programs run through the Python API."""

from __future__ import annotations

import numpy as np
import pytest
from mixes import LOOP, in_every_mix

import opstep

F32 = np.float32


def test_a_while_loop_runs_until_its_test_is_false():
    result, _ = in_every_mix(LOOP, "main", {"x": np.array([6, 3], F32)})
    assert result["z"].tolist() == [-0.75, -0.375]
    assert int(result["turns"]) == 3
    result, _ = in_every_mix(LOOP, "main", {"x": np.array([0.5], F32)})
    assert int(result["turns"]) == 0


def test_a_loop_whose_body_swaps_its_operands_swaps_them():
    text = """
graph go(a: f32[2], b: f32[2], n: i32[]) -> bool[] {
  t = less(n, 5)
  return t
}
graph swap(a: f32[2], b: f32[2], n: i32[]) -> f32[2], f32[2], i32[] {
  m = add(n, 1)
  return b, a, m
}
graph main(a: f32[2], b: f32[2]) -> f32[2], f32[2] {
  x, y, n = while(a, b, 0, test=go, body=swap)
  return x, y
}
"""
    result, _ = in_every_mix(text, "main", {"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert result["x"].tolist() == [3, 4]
    assert result["y"].tolist() == [1, 2]


COLLECTING = """
graph below(rows: f32[T, 2], t: i32[], y: f32[T, 2], s: f32[2]) -> bool[] {
  n = extent(of=[T], dtype=i32)
  left = less(t, n)
  return left
}
graph collect(
    rows: f32[T, 2], t: i32[], y: f32[T, 2], s: f32[2],
) -> f32[T, 2], i32[], f32[T, 2], f32[2] {
  row = gather(rows, t)
  sum = add(s, row)
  BEFORE
  place = reshape(t, shape=[1])
  new = scatter_nd(y, place, sum)
  AFTER
  next = add(t, 1)
  return rows, next, new, end
}
graph main(rows: f32[T, 2]) -> RESULTS {
  y = zeros(shape=[T, 2])
  s = zeros(shape=[2])
  same, turns, z, e = while(rows, 0, y, s, test=below, body=collect)
  return RETURNED
}
"""


@pytest.mark.parametrize(
    "before, after",
    [
        ("", "end = identity(sum)"),
        ("first = gather(y, 0)", "end = add(sum, first)"),  # before it is overwritten
        ("", "old = gather(y, t)\n  end = add(sum, old)"),  # what it was, afterwards
        ("", "now = gather(new, 0)\n  end = add(sum, now)"),
    ],
    ids=["write only", "read before", "read the old one after", "read the new one"],
)
@pytest.mark.parametrize("returned", ["z", "z, e, same, turns", "e, z, y"])
def test_a_loop_that_collects_rows(before, after, returned):
    types = {
        "z": "f32[T, 2]",
        "y": "f32[T, 2]",
        "e": "f32[2]",
        "same": "f32[T, 2]",
        "turns": "i32[]",
    }
    text = COLLECTING.replace("BEFORE", before).replace("AFTER", after)
    text = text.replace("RESULTS", ", ".join(types[n] for n in returned.split(", ")))
    rows = np.arange(6, dtype=F32).reshape(3, 2)
    result, _ = in_every_mix(text.replace("RETURNED", returned), "main", {"rows": rows})
    y, s = np.zeros((3, 2), F32), np.zeros(2, F32)
    for t in range(3):
        first, old, added = y[0].copy(), y[t].copy(), s + rows[t]
        y[t] = added
        s = added + {"add(sum, first)": first, "add(sum, old)": old, "add(sum, now)": y[0]}.get(
            after.rpartition("= ")[2], 0
        )
    wanted = {"z": y, "e": s, "same": rows, "turns": 3, "y": np.zeros((3, 2))}
    for name in returned.split(", "):
        np.testing.assert_array_equal(result[name], wanted[name])


def test_a_loops_rows_are_written_in_place():
    text = COLLECTING.replace("BEFORE", "").replace("AFTER", "end = identity(sum)")
    program = opstep.loads(text.replace("RESULTS", "f32[T, 2]").replace("RETURNED", "z"))
    program.run("main", {"rows": np.ones((3, 2), F32)})
    plans = {p.graph: p for p in program._plans.values()}
    body, main = plans["collect"], plans["main"]
    buffers = {v.name: v.buffer for p in (body, main) for v in p.values}
    assert buffers["new"] == body.values[body.inputs[2]].buffer
    assert buffers["y"] == buffers["z"] and buffers["s"] == buffers["e"]
    assert {main.values[v].name for v in main.unread} == {"same", "turns", "e"}


def test_a_loop_past_its_limit_is_an_error_at_its_line():
    program = opstep.loads(LOOP.replace("body=halve", "body=halve, limit=4"), "loop.opg")
    with pytest.raises(opstep.OpstepError, match=r"loop.opg:13:.*has not ended after 4 turns"):
        program.run("main", {"x": np.array([1e9], F32)})
    assert int(program.run("main", {"x": np.array([3], F32)})["turns"]) == 2
