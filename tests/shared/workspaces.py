"""Real workspaces for tests: small programs, recorded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

import opstep

TRAIN = """\
param w: f32[3, 2] = normal(std=0.5)
param bias: f32[3]
state count: i32[] = 0

graph main(x: f32[N, 2], target: f32[N, 3]) -> f32[], f32[N, 3] {
  y = linear(x, w, bias)
  r = relu(y)
  d = sub(r, target)
  q = square(d)
  loss = mean(q)
  scaled = mul(bias, 0.5)
  bias <- scaled
  n = add(count, 1)
  count <- n
  return loss, r
}
"""

# As TRAIN, but one op gives other numbers: that of `q`, in line 9.
CHANGED = TRAIN.replace("q = square(d)", "q = abs(d)")

ROOTS = """\
graph main(x: f32[N]) -> f32[N], f32[] {
  moved = sub(x, 1.0)
  root = sqrt(moved)
  twice = mul(root, 2.0)
  total = sum(twice)
  return twice, total
}
"""

HALVING = """\
graph main(x: f32[N]) -> f32[N] {
  y = while(x, test=large, body=half)
  return y
}
graph large(x: f32[N]) -> bool[] {
  big = greater(x, 1.0)
  some = any(big)
  return some
}
graph half(x: f32[N]) -> f32[N] {
  y = mul(x, 0.5)
  return y
}
"""


def train_inputs(rows: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, 2), np.float32),
        "target": random.standard_normal((rows, 3), np.float32),
    }


def train_program(text: str = TRAIN) -> opstep.Program:
    """`TRAIN` with the param that has no initialiser set."""
    program = opstep.loads(text, "train.opg")
    program.params["bias"] = np.array([0.25, -0.5, 1.0], np.float32)
    return program


def record(
    path: Path,
    program: opstep.Program | None = None,
    inputs: dict[str, Any] | None = None,
    *,
    stats: str = "all",
    stats_every: int = 1,
    stats_also: str = "",
    tags: dict[str, float] | None = None,
    **options: Any,
) -> str:
    """Runs a program, `TRAIN` by default, into the workspace; the key of the run."""
    program = program or train_program()
    inputs = train_inputs() if inputs is None else inputs
    with opstep.Recording(
        workspace=path, stats=stats, stats_every=stats_every, stats_also=stats_also, tags=tags
    ) as recording:
        program.run("main", inputs, recording=recording, **options)
    return recording.runs[0].key


def sound(path: Path) -> None:
    """The file is whole, as SQLite sees it."""
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    connection.close()
