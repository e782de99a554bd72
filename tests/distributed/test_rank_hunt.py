"""Hunts in several ranks: who brought a NaN, and over what it came to the others."""

from __future__ import annotations

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
