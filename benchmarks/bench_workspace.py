"""Workspaces: what recording statistics costs a run, how fast rows are written, what is held in
memory while the disk is slow, and how fast views answer over 10 million rows.
"""

from __future__ import annotations

import time
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
from bench_runtime import EXAMPLES, bound, chain
from harness import SCRATCH, Measured, Timed, at_least, at_most, bench, times_peer

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.runtime.recording import Activation, Layout, RunInfo, StreamRecord
from opstep.runtime.statistics import WORDS
from opstep.trace.sink import Run, RunEnd, StepDone
from opstep.trace.workspace.sink import WorkspaceSink
from opstep.trace.workspace.store import open_reading, open_writing, transaction

OPS = 1000


@bench("statistics of every op into the workspace, AlexNet batch 32", peer="bare run",
       bars=[times_peer(1.2)])  # fmt: skip
def statistics_of_every_op():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    x = np.random.default_rng(0).standard_normal((32, 1, 224, 224), np.float32)
    recording = opstep.Recording(workspace=SCRATCH / "alexnet.db")
    recorded = bound(program, "main", {"x": x}, recording=recording)
    return Timed(recorded, bound(program, "main", {"x": x}), unit="ms", rounds=9)


# --- writing --------------------------------------------------------------------------------------


def records(path: Path) -> tuple[Run, list[StreamRecord]]:
    """A run, and the records of a step of it: 1,000 ops, statistics of each, in which no figure is
    like another.
    """
    program = opstep.loads(chain(OPS, 8, op="relu(x{})"))
    plan = program.plan(symbols={"N": 8}, policy=opstep.policy(streams=1))
    taken = [(k, plan.steps[k].results[0]) for k in range(OPS)]
    layout = Layout(plan, [list(range(OPS))], [taken])
    info = RunInfo(program, "chain", {}, plan.policy, "cpu", None, 0, 1)
    run = Run("0123abcd", info, time.time(), time.monotonic_ns(), "all", 1, {"workspace": path}, {})
    rng = np.random.default_rng(0)
    words = np.zeros((OPS, WORDS), np.int64)
    words[:, 16 + 30 : 16 + 44] = rng.integers(0, 5000, (OPS, 14))  # some 14 bins, as normal is
    words[:, 4] = rng.integers(0, 100, OPS)  # zeros
    words[:, 0] = words[:, 16:].sum(axis=1) + words[:, 4]
    words[:, 6] = -1
    real = words.view(np.float64)
    real[:, 7:12] = np.abs(rng.standard_normal((OPS, 5)))
    real[:, 7] *= -1
    times = time.monotonic_ns() + np.cumsum(rng.integers(100, 9000, 2 * OPS)).reshape(OPS, 2)
    activation = Activation(0, 0, layout)
    return run, [StreamRecord(activation, 0, times, np.zeros((0, 2), np.int64), words)]


def write(sink: WorkspaceSink, steps: int, flush_each: int = 20) -> float:
    """Seconds that it takes to write so many steps, with executions, flushed as a writer does."""
    run, (record,) = records(sink.path)
    began = time.perf_counter()
    sink.begin_run(run)
    for step in range(steps):
        activation = record.activation._replace(number=step, step=step)
        sink.add_record(run, record._replace(activation=activation))
        sink.end_step(run, StepDone(step, step * 1000, step * 1000 + 999, {}))
        if step % flush_each == flush_each - 1:
            sink.flush()
    sink.end_run(run, RunEnd(time.monotonic_ns(), steps, None, [], {}, {}))
    sink.close()
    return time.perf_counter() - began


@bench(
    "rows of statistics written, each with its execution",
    peer="sqlite_utils insert_all, rows made before",
    bars=[at_least(200_000, "rows/s")],
)
def rate():
    """The best of three: other work on the machine only makes it slower."""
    steps = 400
    seconds = min(write(WorkspaceSink(SCRATCH / f"rate{k}.db"), steps) for k in range(3))
    return Measured(steps * OPS / seconds, plain_rate(SCRATCH / "rate0.db"), unit="rows/s")


def plain_rate(path: Path, rows: int = 50_000) -> float:
    """Rows of `stats` a second, without executions, through the library alone."""
    import sqlite_utils

    found = list(sqlite_utils.Database(path).query(f"select * from stats limit {rows}"))
    database = sqlite_utils.Database(SCRATCH / "plain.db")
    database.enable_wal()
    key = ("run", "step", "op", "execution", "result")
    began = time.perf_counter()
    database["stats"].insert_all(found, pk=key, batch_size=1000)
    return rows / (time.perf_counter() - began)


# --- a slow disk ----------------------------------------------------------------------------------

LOOP = """\
graph main(x: f32[8]) -> f32[8] {
  y = while(x, test=test, body=body, limit=300)
  return y
}
graph test(x: f32[8]) -> bool[] {
  less = less(x, 299.5)
  some = any(less)
  return some
}
"""


class SlowConnection:
    """A connection whose writing of many rows takes 10 ms more."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def executemany(self, sql, rows):
        time.sleep(0.01)
        return self._connection.executemany(sql, rows)


@bench("memory that waits for a slowed disk, one step of 300,000 ops", bars=[at_most(64, "MiB")])
def slow_disk():
    """The step makes 190 MiB of records much faster than they are written; what Python and NumPy
    allocated for them at their most.
    """
    body = "\n".join(
        f"  v{k} = add({f'v{k - 1}' if k else 'x'}, {int(k == 0)}.0)" for k in range(OPS)
    )
    text = f"{LOOP}graph body(x: f32[8]) -> f32[8] {{\n{body}\n  return v{OPS - 1}\n}}\n"
    program, x = opstep.loads(text), np.zeros(8, np.float32)
    with opstep.Recording(workspace=SCRATCH / "warm.db") as recording:  # all that is made once
        program.run("main", {"x": x + 298}, recording=recording)
    recording = opstep.Recording(workspace=SCRATCH / "slow.db")
    (guard,) = recording._guards
    guard.sink._connection = SlowConnection(guard.sink._connection)
    tracemalloc.start()
    program.run("main", {"x": x}, recording=recording)
    (written,) = recording.close()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if written.problem or dict(written.counts)["statistics row"] < 300 * OPS:
        raise InputError(f"not all was written: {written}")
    return Measured(most / 2**20, unit="MiB")


# --- reading --------------------------------------------------------------------------------------

STEPS, RUNS = 5000, 2
QUESTIONS = {
    "first_bad": "select * from first_bad where run = 1",
    "slowest_ops": "select * from slowest_ops where run = 1 order by total_ns desc",
    "stat_history": "select * from stat_history where run = 1 and value = 'x500'",
    "memory_peak": "select * from memory_peak where run = 1",
    "run_compare": "select * from run_compare where run = 1 and other = 2 order by op",
}


@cache
def large() -> Path:
    """Two runs of 5,000 steps of 1,000 ops: one is recorded, the rest are its rows once more. The
    first has a NaN, in its last step.
    """
    path = SCRATCH / "large.db"
    write(WorkspaceSink(path), 1)
    connection = open_writing(path)
    connection.execute("pragma journal_mode = off")  # the file is only made to be read
    tables = ("runs", "ops", "results", "steps", "executions", "stats")
    for table in tables:
        step = " and step >= 0" if table in ("steps", "executions", "stats") else ""
        run = "id" if table == "runs" else "run"
        connection.execute(
            f"create temp table one_{table} as select * from main.{table} where {run} = 1{step}"
        )
        connection.execute(f"delete from main.{table}")
    connection.execute("create temp table numbers (n integer primary key)")
    connection.executemany("insert into numbers values (?)", ((n,) for n in range(STEPS)))

    def copy(table: str, **made: str) -> None:
        columns = [c for _, c, *_ in connection.execute(f"pragma table_info({table})")]
        values = ", ".join(made.get(name, f't."{name}"') for name in columns)
        steps = "numbers cross join " if "step" in made else ""
        connection.execute(f"insert into main.{table} select {values} from {steps}one_{table} as t")

    for run in range(1, RUNS + 1):
        with transaction(connection):
            copy("runs", id=f"{run}", key=f"'{run:08}'", steps=f"{STEPS}")
            for table in ("ops", "results"):
                copy(table, run=f"{run}")
            for table in ("steps", "executions", "stats"):
                copy(table, run=f"{run}", step="n", execution=f"t.execution + n * {OPS}")
    connection.execute(
        "update stats set nan = 3 where run = 1 and step = ? and op = ?", (STEPS - 1, OPS // 2)
    )
    connection.execute("pragma journal_mode = wal")
    (rows,) = connection.execute("select count(*) from stats").fetchone()
    connection.close()
    if rows < STEPS * RUNS * OPS:
        raise InputError(f"only {rows} rows were made")
    return path


@bench("10 million rows of statistics, one run's answer: {}", peer="all rows of the run counted",
       bars=[at_most(1, "s")], over=list(QUESTIONS))  # fmt: skip
def view(name: str):
    connection = open_reading(large())

    def ask() -> None:
        if not connection.execute(QUESTIONS[name]).fetchall():
            raise InputError(f"{name} has no answer")

    def scan() -> None:
        connection.execute("select count(nan > 0) from stats where run = 1").fetchall()

    return Timed(ask, scan, unit="s", rounds=3)
