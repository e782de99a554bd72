"""A workspace with a few real runs, for tests that look at one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import opstep

EVIL = "<script>alert('path')</script>.opg"
TRAIN = """\
# </pre><script>alert("text")</script>
param w: f32[4, 1] = normal(std=0.5)

graph loss_of(x: f32[N, 4], y: f32[N, 1]) -> f32[] {
  guess = matmul(x, w)
  wrong = sub(guess, y)
  squared = mul(wrong, wrong)
  loss = mean(squared)
  return loss
}
"""
STEP = """
graph train(x: f32[N, 4], y: f32[N, 1]) -> f32[] {
  loss, d_w = loss_of_grad(x, y)
  change = mul(d_w, 0.1)
  next = sub(w, change)
  w <- next
  return loss
}
"""
NANS = """\
graph main(x: f32[8]) -> f32[8], f32[] {
  lower = sub(x, 1.0)
  bad = log(lower)
  worse = exp(bad)
  total = sum(worse)
  return worse, total
}
"""
NAN_LINE = 3  # of NANS
STEPS = 12


def training() -> opstep.Program:
    """A regression that learns; its path and its text would be code if they were not escaped."""
    gradient = opstep.loads(TRAIN).with_grad("loss_of", ["w"])["loss_of_grad"]
    return opstep.loads(f"{TRAIN}\n{gradient}\n{STEP}", EVIL)


def record_runs(path: Path) -> None:
    """Two runs of the training with different data, and one that makes NaNs at its second step."""
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((16, 4), dtype=np.float32)
        y = x @ np.array([[1.0], [-2.0], [0.5], [0.0]], np.float32)
        with opstep.Recording(workspace=path) as recording:
            training().run("train", {"x": x, "y": y}, steps=STEPS, recording=recording)
    program = opstep.loads(NANS, "nans.opg")
    with opstep.Recording(workspace=path) as recording:
        for least in (2.0, -1.0, 2.0):
            x = np.linspace(least, 4.0, 8, dtype=np.float32)
            program.run("main", {"x": x}, recording=recording)
