"""Hunts in several ranks: who brought a NaN, and over what it came to the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rank_scenes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_rank_and_the_collective_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rank_scenes.found_by_a_hunt(tmp_path)


COUNTED = """state count: f32[] = 0.0

graph main(x: f32[4]) -> f32[4] {
  total = all_reduce(x)
  more = add(count, 1.0)
  count <- more
  y = log(total)
  return y
}
"""


@pytest.mark.slow
def test_a_program_that_keeps_something_between_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    Path("step.opg").write_text(COUNTED)
    for value, code in ((1.0, 0), (-1.0, 5)):
        np.save("x.npy", np.full(4, value, np.float32))
        ran = subprocess.run(
            [sys.executable, "-m", "opstep", "hunt", "step.opg", "-i", "x=x.npy", "--ranks", "2"],
            capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        assert ("log of a negative number" in ran.stdout) == (code == 5)


SCALARS = """mesh data: 3

graph main(x: f32[4], s: f32[]) -> f32[], f32[], f32[], f32[], f32[], f32[4], f32[1], f32[] {
  p = log(x)
  own = mean(p)
  a = all_reduce(own, over=data)
  b = all_reduce(own, over=data, reduction="mean")
  c = all_reduce(own, over=data, reduction="max")
  d = broadcast_from(own, root=1)
  e = barrier(own)
  f = all_reduce(p, over=data)
  one = reshape(own, shape=[1])
  rows = all_gather(one)
  g = reduce_scatter(rows)
  h = all_reduce(s, over=data)
  return a, b, c, d, e, f, g, h
}
"""


@pytest.mark.slow
def test_scalars_and_what_several_ranks_brought(tmp_path, monkeypatch):
    """Ranks 1 and 2 have a NaN in one place: no collective made it. inf - inf is made by one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "step.opg").write_text(SCALARS)
    for rank, (first, s) in enumerate([(1, np.inf), (-2, -np.inf), (-3, 0)]):
        np.savez(tmp_path / f"x{rank}.npz", x=np.array([first, 2, 3, 4], "f4"), s=np.float32(s))
    given = [f"-i{n}=x{{rank}}.npz:{n}" for n in "xs"]
    code, out, err = rank_scenes.run(
        tmp_path, "hunt", "step.opg", *given, "--ranks", 3, "--json", "--wanted", "s"
    )
    assert code == 5, err
    found = {
        one["rank"]: {(f["op"], f["given"], f["line"]) for f in one["findings"] if f["op"]}
        for one in json.loads(out)["ranks"]
    }
    made, born = ("all_reduce", None, 15), ("log", None, 4)
    over = [("all_reduce", 6), ("all_reduce", 7), ("all_reduce", 8), ("broadcast_from", 9),
            ("all_reduce", 11), ("all_gather", 13)]  # fmt: skip
    assert found[1] >= {born, made} and found[2] >= {born, made}
    assert found[0] >= {made, *((op, "rank 1", line) for op, line in over)}
    (sums,) = [f for f in json.loads(out)["ranks"][0]["findings"] if f["line"] == 15]
    assert sums["rules"][0]["rule"] == "inf - inf, over ranks"
    (element,) = sums["elements"]
    assert len(element["of"]) == 1, "the term of this rank alone"
    for its in found.values():
        assert {(op, line) for op, given, line in its if given is None} <= {("log", 4), made[::2]}
