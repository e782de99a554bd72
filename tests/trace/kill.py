"""Kills processes that record, at random moments, and looks at what they leave behind.

    python tests/trace/kill.py            # 100 of them
    python tests/trace/kill.py 10 --seed 3 --no-trace

All of them write to one workspace, so that each also goes on with what a killed one left. After
every kill the file has to be sound and to hold whole steps only, among them all those that ended
more than 0.1 s before the last one did; the timeline has to load in the real engine, with them.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import select
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import opstep
from opstep.trace.recording import LAG_S

# Large enough for two streams.
PROGRAM = """\
state count: i32[] = 0

graph main(x: f32[65536]) -> f32[] {
  r = relu(x)
  e = exp(r)
  y = while(e, test=large, body=half)
  t = tanh(x)
  u = square(t)
  both = add(y, u)
  total = sum(both)
  n = add(count, 1)
  count <- n
  return total
}
graph large(x: f32[65536]) -> bool[] {
  big = greater(x, 0.5)
  some = any(big)
  return some
}
graph half(x: f32[65536]) -> f32[65536] {
  y = mul(x, 0.5)
  return y
}
"""
X = np.linspace(-1.0, 1.0, 65536, dtype=np.float32)
ALSO = ("quantiles", "signed")
TABLES = ("executions", "stats", "metrics", *ALSO)


def endless(folder: Path, name: str, out: int, trace: bool) -> None:
    """Records until it is killed; tells of each step that has ended, with the time."""
    program = opstep.loads(PROGRAM, "kill.opg")
    files = {"trace": folder / f"{name}.pftrace"} if trace else {}
    recording = opstep.Recording(workspace=folder / "runs.db", stats_also=",".join(ALSO), **files)

    def told() -> None:
        os.write(out, f"{time.monotonic_ns()}\n".encode())

    program.run("main", {"x": X}, recording=recording, steps=1 << 30, on_step=told)


def kill_one(folder: Path, name: str, rng: random.Random, trace: bool) -> int:
    """A process that records, killed: the last step that has to be in the files, -1 for none."""
    reads, writes = os.pipe()
    fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, 1 << 20)  # it is read when all is over
    process = os.fork()
    if process == 0:
        os.close(reads)
        try:
            endless(folder, name, writes, trace)
        finally:
            os._exit(1)  # it has to be killed, not to end
    os.close(writes)
    if rng.random() < 0.8:
        select.select([reads], [], [], 30)
        time.sleep(rng.random() * 0.15)
    else:  # while the file is opened and the run begins
        time.sleep(rng.random() * 0.5)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with open(reads, "rb") as file:
        ends = [int(line) for line in file.read().split(b"\n")[:-1]]
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"{name} ended by itself")
    return recorded_by(ends)


def recorded_by(ends: list[int]) -> int:
    """The last step that has to be there when the steps have ended, and been told of, at these
    times: a run waits for its files where they are more than `LAG_S` behind at the end of a step.
    """
    if len(ends) < 2:
        return -1
    last = ends[-2] + 1  # the last step's end was after that
    return sum(end < last - LAG_S * 1e9 for end in ends) - 1


def rows_of_a_step(folder: Path) -> Counter[str]:
    """How many rows a whole step has in each of `TABLES`: from a run that nobody disturbs."""
    whole = folder / "whole.db"
    with opstep.Recording(workspace=whole, stats_also=",".join(ALSO)) as recording:
        opstep.loads(PROGRAM).run("main", {"x": X}, recording=recording)
    connection = sqlite3.connect(whole)
    count = "select count(*) from {} where step = 0"
    found = {t: connection.execute(count.format(t)).fetchone()[0] for t in TABLES}
    connection.close()
    return Counter(found)


def check(path: Path, said: int, expected: Counter[str]) -> int:
    """Looks at the last run of the file; how many steps it has. `said`: the last that must."""
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    run = connection.execute("select max(id), steps, status from runs").fetchone()
    run, told, status = run if run[0] is not None else (0, 0, "running")
    numbers = [s for (s,) in connection.execute(
        "select step from steps where run = ? and step >= 0 order by step", (run,)
    )]  # fmt: skip
    assert numbers == list(range(told)), "steps are missing"
    assert told > said, f"step {said} has to be in the file, which has {told}"
    assert status == "running"
    for table in TABLES:
        counts = connection.execute(
            f"select step, count(*) from {table} where run = ? and step >= 0 group by step", (run,)
        ).fetchall()
        assert counts == [(s, expected[table]) for s in numbers], f"half a step in {table}"
    connection.close()
    return told


def check_trace(path: Path, said: int) -> None:
    """The timeline loads without an error and shows all steps that were said to be in it."""
    from opstep.trace.viewer.engine import Engine

    with Engine(path) as engine:
        wrong = "select name, value from stats where severity != 'info' and value != 0"
        assert not engine.query(wrong).rows
        steps = engine.query("select count() from slice where name glob 'step [0-9]*'").rows[0][0]
    assert steps > said


def kill(count: int, seed: int, trace: bool) -> tuple[int, int]:
    """So many of them, one after the other: steps that they left, and how many left none."""
    rng, steps, none = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="opstep-kill-") as name:
        folder = Path(name)
        process = os.fork()  # threads are not taken along by a fork: none are started here
        if process == 0:
            rows = rows_of_a_step(folder)
            (folder / "rows").write_text(" ".join(str(rows[t]) for t in TABLES))
            os._exit(0)
        os.waitpid(process, 0)
        numbers = map(int, (folder / "rows").read_text().split())
        expected = Counter(dict(zip(TABLES, numbers, strict=True)))
        for k in range(count):
            runs = folder / "runs.db"
            before = last_run(runs)
            said = kill_one(folder, str(k), rng, trace)
            if last_run(runs) == before:  # killed before its run began
                assert said < 0
                none += 1
                continue
            steps += check(runs, said, expected)
            if trace and said >= 0:
                check_trace(folder / f"{k}.pftrace", said)
    return steps, none


def last_run(path: Path) -> int:
    """The highest number of a run in the file; 0 where there is none."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        return connection.execute("select coalesce(max(id), 0) from runs").fetchone()[0]
    except sqlite3.OperationalError:  # killed before the tables were made
        assert connection.execute("select count(*) from sqlite_master").fetchone() == (0,)
        return 0
    finally:
        connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--no-trace", action="store_true", help="only a workspace is recorded")
    options = parser.parse_args()
    steps, none = kill(options.count, options.seed, not options.no_trace)
    print(f"{options.count} killed: {steps} steps, all whole; {none} before their run began")
    return 0


if __name__ == "__main__":
    sys.exit(main())
