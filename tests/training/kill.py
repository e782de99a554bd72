"""Kills ``opstep train`` at random moments and goes on with what is left, to the end.

    python tests/training/kill.py            # 20 times
    python tests/training/kill.py 3 --seed 1 --device cuda

Whenever a process was killed, its workspace has to be sound and its checkpoints whole. In the end
params, states and losses have to have the bits of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

import opstep

NET = """
param a.w: f32[256, 64] = normal(std=0.1)
param a.b: f32[256] = zeros()
param b.w: f32[10, 256] = normal(std=0.1)
state step: i64[] = 0

graph loss(x: f32[N, 64], label: i32[N]) -> f32[] {
  h = linear(x, a.w, a.b)
  r = relu(h)
  d = dropout(r, step, p=0.4, seed=11)
  y = linear(d, b.w)
  l = softmax_cross_entropy(y, label)
  return l
}
"""
ROWS, BATCH, EVERY = 4096, 64, 7
A_KILL = 60  # steps, about, from one kill to the next
PATIENCE_S = 240


def command(folder: Path, name: str, epochs: int, device: str, *more: str) -> list[str]:
    """The same but for the workspace and what it goes on from."""
    return [
        sys.executable, "-m", "opstep", "train", str(folder / "net.opg"),
        "--data", str(folder / "data.npz"), "--optimizer", "adamw", "--lr", "1e-3",
        "--batch", str(BATCH), "--epochs", str(epochs), "--seed", "5", "--device", device,
        "--workspace", str(folder / name), "--checkpoint-every", str(EVERY), *more,
    ]  # fmt: skip


def steps_of(path: Path) -> int:
    """Steps of the last run that are in the file; -1 where there is none."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as c:
        found = c.execute("select steps from runs order by id desc limit 1").fetchone()
        return -1 if found is None else found[0]
    return -1


def runs_of(path: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as c:
        return c.execute("select count(*) from runs").fetchone()[0]
    return 0


def kill_one(line: list[str], path: Path, rng: random.Random) -> None:
    """Starts the command, and kills it a random number of steps after its first."""
    before = runs_of(path)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + PATIENCE_S
    first = None
    wanted = rng.randrange(2 * A_KILL)
    while process.poll() is None:
        assert time.monotonic() < until, "no step for a long time"
        if runs_of(path) > before:
            steps = steps_of(path)
            first = steps if first is None else first
            if steps >= first + wanted:
                break
        select.select([], [], [], 0.001)
    select.select([], [], [], rng.random() * 0.02)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, f"it ended by itself: {told}"


def check(path: Path) -> None:
    """Nothing is damaged, no checkpoint is half there."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        counts = connection.execute(
            "select distinct (select count(*) from tensors where checkpoint = c.id) "
            "from checkpoints c where kind = 'train'"
        ).fetchall()
        assert len(counts) <= 1, f"checkpoints have {counts} tensors"
        lost = "select count(*) from tensors where digest not in (select digest from blobs)"
        assert connection.execute(lost).fetchone() == (0,)


def outcome(path: Path) -> tuple[dict[str, bytes], bytes]:
    """The bits of all params and states at the end, and of all losses."""
    with opstep.Workspace(path) as ws:
        found = ws.checkpoint("last")
        (line,) = ws.lines("loss")
        assert line.xs == list(range(found.made)), "losses are missing"
        values = ws.checkpoint_values(found)
        return {n: a.tobytes() for n, a in values.items()}, np.array(line.ys, float).tobytes()


def kill(count: int, seed: int, device: str) -> tuple[int, int]:
    """So many kills; the steps of the whole run, and those that were made twice."""
    rng = random.Random(seed)
    epochs = -(-(count + 1) * A_KILL * BATCH // ROWS) + 1
    with tempfile.TemporaryDirectory(prefix="opstep-kill-") as name:
        folder = Path(name)
        (folder / "net.opg").write_text(NET)
        x = np.random.default_rng(0).normal(size=(ROWS, 64)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, label=x[:, :10].argmax(1).astype(np.int32))
        whole = command(folder, "whole.db", epochs, device)
        subprocess.run(whole, check=True, timeout=PATIENCE_S, capture_output=True)
        path, again, kills = folder / "runs.db", 0, 0
        resumed: list[str] = []
        while kills < count:
            kill_one(command(folder, "runs.db", epochs, device, *resumed), path, rng)
            check(path)
            with opstep.Workspace(path) as ws:
                found = ws.checkpoints()
            if found:
                last = found[-1]
                again += max(0, steps_of(path) - last.made)
                resumed = ["--resume", last.reference]
            kills += 1
        end = command(folder, "runs.db", epochs, device, *resumed)
        subprocess.run(end, check=True, timeout=PATIENCE_S, capture_output=True)
        assert outcome(path) == outcome(folder / "whole.db"), "other bits than without kills"
        return steps_of(path), again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    steps, again = kill(given.count, given.seed, given.device)
    print(f"{given.count} killed: {steps} steps, {again} of them made twice, the same bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
