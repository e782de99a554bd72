"""Hunts in several ranks: who brought a NaN, and over what it came to the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

STEP = """mesh data: 2

state seen: f32[4] = ones()

graph main(x: f32[4], h: f16[4]) -> f32[2], f32[4], f16[4], f32[4] {
  y = log(x)
  part = reduce_scatter(y)
  r = rank()
  first = equal(r, 0)
  got = cond(first, seen, then=gives, else=takes)
  large = all_reduce(h)
  theirs = broadcast_from(got, root=1)
  twice = mul(theirs, 2.0)
  seen <- twice
  return part, got, large, twice
}

graph gives(x: f32[4]) -> f32[4] {
  less = sub(x, 2.0)
  root = sqrt(less)
  y = send(root, to=1)
  z = relu(x)
  return z
}

graph takes(x: f32[4]) -> f32[4] {
  y = recv(x, source=0)
  return y
}
"""


def test_the_rank_and_the_collective_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    Path("step.opg").write_text(STEP)
    for rank in range(2):
        x = np.array([1, 2, 3, -1 if rank == 0 else 4], np.float32)
        np.savez(f"x{rank}.npz", x=x, h=np.full(4, 40000, np.float16))
    given = [f"-i{n}=x{{rank}}.npz:{n}" for n in "xh"]
    ran = subprocess.run(
        [sys.executable, "-m", "opstep", "hunt", "step.opg", *given, "--ranks", "2", "--json"],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 5, ran.stderr
    told = json.loads(ran.stdout)
    ranks = {one["rank"]: one["findings"] for one in told["ranks"]}
    found = {
        r: {(f["op"], f["given"], f["line"]) for f in ranks[r] if f["kind"] == "origin"}
        for r in ranks
    }
    for r in (0, 1):  # no rank brought that: it is the sum's
        assert ("all_reduce", None, 11) in found[r]
    assert ("log", None, 6) in found[0]  # its part went to rank 1
    assert ("sqrt", None, 20) in found[0]
    assert ("reduce_scatter", "rank 0", 7) in found[1]
    assert ("recv", "rank 0", 27) in found[1]
    assert ("broadcast_from", "rank 1", 12) in found[0]
    assert not {op for op, *_ in found[1]} & {"log", "sqrt"}


COUNTED = """state count: f32[] = 0.0

graph main(x: f32[4]) -> f32[4] {
  total = all_reduce(x)
  more = add(count, 1.0)
  count <- more
  y = log(total)
  return y
}
"""


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
