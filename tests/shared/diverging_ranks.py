"""Training on two ranks that goes wrong on one of them: scenes for ranks on CPUs and on GPUs."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

NET = """param w: f32[10, 48] = normal(std=0.1)

graph loss(x: f32[N, 48], label: i32[N]) -> f32[] {
  y = linear(x, w)
  scaled = log(y)
  own = softmax_cross_entropy(scaled, label)
  return own
}
"""
STEADY = NET.replace("log(y)", "mul(y, 1.0)")
ROWS, BATCH, LATE = 64, 8, 30  # the row that spoils a step


def write(folder: Path, text: str) -> None:
    x = np.ones((ROWS, 48), np.float32)
    x[LATE] = -1 if "log" in text else 1000
    np.savez(folder / "data.npz", x=x, label=np.arange(ROWS, dtype=np.int32) % 10)
    (folder / "net.opg").write_text(text.replace("normal(std=0.1)", "full(value=0.1)"))


def train(folder: Path, *more: object) -> tuple[int, str, str]:
    line = [sys.executable, "-m", "opstep", "train", "net.opg", "-d", "data.npz", "--ranks", 2,
            "--batch", BATCH, "--lr", 1e-6, "-w", "runs.db", *more]  # fmt: skip
    ran = subprocess.run([*map(str, line)], cwd=folder, capture_output=True, text=True, timeout=400)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


def where() -> tuple[int, int]:
    """The step that has the row, and the rank."""
    from opstep.training.data import Batches, Dataset, Position

    order = Batches(Dataset({"x": np.zeros(ROWS)}), BATCH, seed=0).order(Position().epoch)
    step, place = divmod([*order].index(LATE), BATCH)
    return step, place // (BATCH // 2)


def hunted(folder: Path, *more: object) -> None:
    """The rank where a NaN was born is named, with the row; others say over what it came."""
    write(folder, NET)
    step, rank = where()
    code, out, err = train(folder, "--hunt", *more)
    assert code == 5, err
    first, *lines = out.splitlines()
    assert first.startswith(f"rank {rank}: loss_step: step {step} is bad"), out
    assert "log of a negative number" in out and f"row {LATE} of the data" in out, out
    assert any(
        line.startswith(f"rank {1 - rank}: NaN came from rank {rank} over") for line in lines
    ), out
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        told = [
            row[0] for row in db.execute("select message from findings where step = ?", (step,))
        ]
        assert db.execute("select count(*) from metrics where name = 'loss'").fetchone() == (step,)
    assert any("log of a negative number" in text for text in told), told
    assert any("came from rank" in text for text in told) == (rank == 1), told


def watched(folder: Path, *more: object) -> None:
    """A condition on what one rank has ends both."""
    write(folder, STEADY)
    step, rank = where()
    code, out, err = train(folder, "--watch", "absmax(y) > 100", *more)
    assert code == 5, err
    assert out.startswith(f"rank {rank}: step {step}: absmax(y) > 100 holds"), out
    code, out, err = train(folder, "--watch", "loss > 0", "--json", *more)
    assert code == 5, err
    (condition,) = json.loads(out)["watch"]["conditions"]
    assert condition["ranks"] == [0, 1] and condition["condition"] == "loss > 0"
    code, out, err = train(folder, "--hunt", "--watch", "loss > 1e9", "--save", "end.opg", *more)
    assert code == 0, err
