"""A rank that is killed at a random moment of a command: all others end, and say so."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from waiting import runs, wait_until

NET = """param w: f32[32, 48] = normal(std=0.1)
param v: f32[10, 32] = normal(std=0.1)

graph loss(x: f32[N, 48], label: i32[N]) -> f32[] {
  h = linear(x, w)
  r = relu(h)
  y = linear(r, v)
  own = softmax_cross_entropy(y, label)
  return own
}
"""

STEP = """state s: f32[1024] = zeros()

graph main(x: f32[1024]) -> f32[1024] {
  y = mul(x, 0.5)
  total = all_reduce(y, reduction="mean")
  next = add(s, total)
  s <- next
  return total
}
"""
COMMANDS = (
    ("run", "step.opg", "-i", "ones", "--steps", 10**9, "--trace", "{rank}.pftrace"),
    ("train", "net.opg", "-d", "data.npz", "--batch", 24, "--epochs", 10**6, "-w", "runs.db",
     "--checkpoint-every", 50),
)  # fmt: skip


class Killed(NamedTuple):
    """`seconds`: until all had ended; `under_way`: all had done steps."""

    command: str
    ranks: int
    rank: int
    after_s: float
    seconds: float
    under_way: bool


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_under_way(command: str, folder: Path, ranks: int) -> bool:
    """Whether all ranks have done steps."""
    if command == "train":
        if not (folder / "runs.db").exists():
            return False
        with closing(sqlite3.connect(folder / "runs.db")) as db:
            return bool(db.execute("select 1 from sqlite_master where name = 'metrics'").fetchone()
                        and db.execute("select 1 from metrics").fetchone())  # fmt: skip
    files = [folder / f"{rank}.pftrace" for rank in range(ranks)]
    return all(file.exists() and file.stat().st_size > 20_000 for file in files)


def write(folder: Path) -> None:
    """What commands read."""
    (folder / "net.opg").write_text(NET)
    (folder / "step.opg").write_text(STEP)
    x = np.random.default_rng(0).normal(size=(48, 48)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, label=np.arange(48, dtype=np.int32) % 10)


def kills(folder: Path, count: int, seed: int, most: int, device: str = "cpu") -> Iterator[Killed]:
    """So many commands, each on 2 to `most` ranks, of which one is killed: the first of a kind once
    all are under way, others at a time between their start and as long again behind that.
    """
    rng, begun = random.Random(seed), {}
    write(folder)
    for k in range(count):
        for old in (*folder.glob("*.pftrace"), *folder.glob("runs.db*")):
            old.unlink()
        ranks, command = rng.randint(2, most), COMMANDS[k % len(COMMANDS)]
        yield _killed(folder, rng, command, ranks, device, begun)


def _killed(folder, rng, command, ranks, device, begun) -> Killed:
    line = [sys.executable, "-m", "opstep", *map(str, command), "--ranks", str(ranks)]
    began = time.monotonic()
    process = subprocess.Popen(
        [*line, "--device", device], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    found: list[int] = []
    victim = rng.randrange(ranks)
    try:
        wait_until(lambda: len(children(process.pid)) == ranks or process.poll() is not None)
        found += children(process.pid)
        if command[0] not in begun:
            wait_until(lambda: is_under_way(command[0], folder, ranks) or process.poll())
            begun[command[0]] = time.monotonic() - began
        else:
            time.sleep(max(0.0, rng.uniform(0, 2 * begun[command[0]]) - (time.monotonic() - began)))
        under_way = is_under_way(command[0], folder, ranks)
        after = time.monotonic()
        assert process.poll() is None, process.communicate()[1]
        os.kill(found[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=200)
        seconds = time.monotonic() - after
    finally:
        process.kill()
    assert process.returncode == 3, (process.returncode, err)
    assert f"rank {victim} was killed by SIGKILL, and the others with it" in err, err
    assert "Traceback" not in err, err
    assert not [pid for pid in found if runs(pid)]
    _check_workspace(folder)
    if under_way:
        assert f"waits for rank {victim}, which is gone" in err, err
        assert "step.opg:5" in err or "net.opg:" in err, err
    return Killed(command[0], ranks, victim, after - began, seconds, under_way)


def _check_workspace(folder: Path) -> None:
    """What was recorded can be read, and is whole."""
    if not (folder / "runs.db").exists():
        return
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
