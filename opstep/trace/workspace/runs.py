"""One run of a workspace: what it was, and everything that is known of it."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from opstep.runtime.statistics import BINS, LOWEST, Statistics
from opstep.trace.workspace import names
from opstep.trace.workspace.reading import about_file, parsed, readable
from opstep.trace.workspace.records import (
    Channel,
    Checkpoint,
    ExecutionRecord,
    Finding,
    FirstBad,
    Metric,
    OpRecord,
    Quantiles,
    Signed,
    StatRecord,
    TensorRecord,
)

EAGER = "eager"  # the device of a script's run, whose ops PyTorch ran
FIGURES = (
    "count", "min", "max", "mean", "std", "l2", "absmax", "nan", "posinf", "neginf", "zero",
    "subnormal", "unwritten",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedRun:
    """A row of ``runs``, and the accessors of what belongs to it.

    What is not known is None: `ended` and `seconds` of a run that is under way or was killed. Lists
    are read anew from the file each time.
    """

    id: int
    key: str
    began: str  # UTC, ISO 8601
    ended: str | None
    seconds: float | None
    status: str  # running, done, incomplete, failed, interrupted
    error: str | None
    file: str
    program: str  # its text
    graph: str
    device: str
    streams: int
    alloc: str
    fill: str
    sync: str
    threads: int | None
    seed: int
    steps: int
    repeatable: int  # of these, how many from the first on ran on the inputs that are kept
    selection: str
    every: int
    arena_bytes: int | None
    param_bytes: int | None
    trace: str | None
    version: str
    host: str
    pid: int
    kernels: str | None
    name: str | None
    command: str | None
    digest: str  # SHA-256 of the program's text
    keep_inputs: int  # of each so many steps what a repeat needs is kept
    also: str | None  # what was taken beyond statistics: "quantiles,channels=-1"
    parent: int | None  # the run whose checkpoint it went on from, by id
    parent_step: int | None  # how many steps that one had made
    _connection: sqlite3.Connection = field(repr=False, compare=False)

    @property
    def switches(self) -> dict[str, Any]:
        """The settings that it ran with, as `Program.run` takes them."""
        names = ("device", "streams", "alloc", "fill", "sync", "threads", "seed")
        switches = {name: getattr(self, name) for name in names}
        return switches | ({"kernels": self.kernels} if self.kernels else {})

    @property
    def tags(self) -> dict[str, str | int | float]:
        """The tags that it was recorded with: ``--tag lr=0.1``."""
        return self._settings("tag")

    @property
    def scalars(self) -> dict[str, int | float]:
        """Its inputs that are scalars, as the first step had them."""
        return self._settings("input")

    def _settings(self, kind: str) -> dict[str, Any]:
        return dict(
            self._rows(
                "select name, value from settings where run = :run and kind = :kind order by name",
                {"kind": kind},
            )
        )

    @property
    def under_way(self) -> bool:
        """Whether it still runs. Of another machine, as far as the file says."""
        if self.status != "running" or self.host != platform.node():
            return self.status == "running"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # somebody else's process
        return True

    # --- ops and what they gave ---

    @property
    def ops(self) -> list[OpRecord]:
        """The ops of its plans, in the order in which they were planned."""
        results: dict[int, list[str]] = {}
        for op, name in self._rows("select op, name from results where run = :run order by result"):
            results.setdefault(op, []).append(name)
        rows = self._rows(
            "select op, name, site, graph, file, line, statement, operands, attrs, stream, bytes, "
            "flops, live_bytes, fused_into from ops where run = :run order by op"
        )
        return [
            OpRecord(
                *row[:7],
                operands=[(name, t) for name, t in parsed(row[7] or "[]")],
                results=results.get(row[0], []),
                attrs=parsed(row[8] or "{}"),
                stream=row[9], bytes=row[10], flops=row[11], live_bytes=row[12],
                fused_into=row[13],
            )
            for row in rows
        ]  # fmt: skip

    def executions(
        self, op: int | str | None = None, step: int | None = None
    ) -> list[ExecutionRecord]:
        """Each time that an op ran, in order. `op`: number, name (``relu``) or site."""
        where, arguments = _conditions(op, None, step, "executions")
        return [
            ExecutionRecord._make(row)
            for row in self._rows(
                "select executions.execution, executions.step, executions.op, ops.name, ops.site, "
                "executions.stream, executions.turn, executions.start_ns, executions.end_ns "
                f"from executions join ops using (run, op) where executions.run = :run{where} "
                "order by executions.execution",
                arguments,
            )
        ]

    def stats(
        self,
        op: int | str | None = None,
        value: str | None = None,
        step: int | None = None,
    ) -> list[StatRecord]:
        """Statistics of tensors, in order of execution.

        `op`: number, name (``relu``) or site (``main/features:p/c``); `value`: name of the tensor.
        In names and sites ``*``, ``?`` and ``[…]`` stand for what they do in a shell. A long run
        has millions of these: say which.
        """
        where, arguments = _conditions(op, value, step, "stats")
        return [_stat(row) for row in self._rows(f"{_STATS}{where} {_IN_ORDER}", arguments)]

    def quantiles(
        self, op: int | str | None = None, value: str | None = None, step: int | None = None
    ) -> list[Quantiles]:
        """Of tensors, in order of execution, where they were taken; chosen as in `stats`."""
        columns = ("p1", "p50", "p99", "abs_p1", "abs_p50", "abs_p99")
        return [
            Quantiles._make(row) for row in self._details("quantiles", columns, op, value, step)
        ]

    def signed(
        self, op: int | str | None = None, value: str | None = None, step: int | None = None
    ) -> list[Signed]:
        """Histograms of either sign, likewise."""
        columns = ("negative_lowest", "negative", "positive_lowest", "positive")
        return [
            Signed._make((*row[:7], bins(row[7], row[8]), bins(row[9], row[10])))
            for row in self._details("signed", columns, op, value, step)
        ]

    def channels(
        self, op: int | str | None = None, value: str | None = None, step: int | None = None
    ) -> list[Channel]:
        """One for each channel of each tensor, likewise."""
        columns = ("channel", "finite", "min", "max", "zero")
        return [Channel._make(row) for row in self._details("channels", columns, op, value, step)]

    def _details(
        self, table: str, columns: tuple[str, ...], op: Any, value: Any, step: Any
    ) -> list[tuple]:
        where, arguments = _conditions(op, value, step, "stats")
        listed = ", ".join(f'{table}."{column}"' for column in columns)
        return self._rows(
            f"select {table}.step, {table}.op, {table}.execution, ops.name, results.name, "
            f"ops.site, ops.line, {listed} from {STATS.replace('stats', table)} "
            f"where results.run = :run{where} "
            f"order by {table}.step, {table}.execution, {table}.result",
            arguments,
        )

    def first_bad(self) -> FirstBad | None:
        """The origin of the first NaN or infinity; None where there was none."""
        found = self._rows(
            "select step, execution, op, value, verdict from first_bad where run = :run"
        )
        if not found:
            return None
        step, execution, op, value, verdict = found[0]
        where, arguments = _conditions(op, None, step, "stats")
        arguments |= {"execution": execution, "value": value}
        where += " and stats.execution = :execution and results.name = :value"
        return FirstBad(_stat(self._rows(_STATS + where, arguments)[0]), verdict)

    # --- the run as a whole ---

    @property
    def metrics(self) -> list[Metric]:
        """Scalar outputs and ``seconds`` by step."""
        rows = self._rows(
            "select step, name, value from metrics where run = :run order by step, name"
        )
        return [Metric._make(row) for row in rows]

    def metric(self, name: str) -> list[float | None]:
        """One metric, step by step."""
        return [m.value for m in self.metrics if m.name == name]

    @property
    def findings(self) -> list[Finding]:
        rows = self._rows(
            "select step, op, kind, value, file, line, message from findings where run = :run "
            "order by id"
        )
        return [Finding._make(row) for row in rows]

    @property
    def cut(self) -> str | None:
        """For a file that could not be written to the run's end: how many steps are recorded."""
        return next((f.message for f in self.findings if f.kind == "cut"), None)

    @property
    def tensors(self) -> list[TensorRecord]:
        """Those that were kept: inputs, outputs, params and states."""
        return names.tensors(self._connection, run=self.id)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        rows = self._rows(
            "select id, step, kind, saved from checkpoints where run = :run order by id"
        )
        tensors = self.tensors
        return [
            Checkpoint(id, step, kind, saved, [t for t in tensors if t.checkpoint == id])
            for id, step, kind, saved in rows
        ]

    def counts(self) -> dict[str, int]:
        """The number of the run's rows in each table."""
        tables = ("ops", "executions", "stats", "tensors", "findings", "metrics")
        return {
            table: self._rows(f"select count(*) from {table} where run = :run")[0][0]
            for table in tables
        }

    def _rows(self, text: str, arguments: Mapping[str, Any] | None = None) -> list[tuple]:
        with about_file(self._connection):
            return self._connection.execute(text, {"run": self.id, **(arguments or {})}).fetchall()


ROW = [f.name for f in fields(RecordedRun) if not f.name.startswith("_")]


def read_run(connection: sqlite3.Connection, id: int) -> RecordedRun:
    return read_runs(connection, "id = ?", (id,))[0]


@readable
def read_runs(connection: sqlite3.Connection, where: str = "1", arguments=()) -> list[RecordedRun]:
    """Runs, the first first."""
    rows = connection.execute(
        f"select {', '.join(ROW)} from runs where {where} order by id", arguments
    )
    return [RecordedRun(**dict(zip(ROW, row, strict=True)), _connection=connection) for row in rows]


# --- statistics -----------------------------------------------------------------------------------

# By op, then by step: figures of few ops are found without a look at those of all others.
STATS = (
    "results cross join ops using (run, op) cross join steps on steps.run = results.run "
    "cross join stats on stats.run = steps.run and stats.step = steps.step "
    "and stats.op = results.op and stats.result = results.result"
)
_STATS = (
    "select stats.step, stats.op, stats.execution, ops.name, results.name, ops.site, ops.line, "
    + ", ".join(f'stats."{name}"' for name in (*FIGURES, "lowest", "histogram"))
    + f" from {STATS} where results.run = :run"
)
_IN_ORDER = "order by stats.step, stats.execution, stats.result"


def _stat(row: tuple) -> StatRecord:
    *figures, lowest, histogram = row[7:]
    counts: dict[str, Any] = dict(zip(FIGURES, figures, strict=True))
    statistics = Statistics(**counts, histogram=bins(lowest, histogram))
    return StatRecord._make((*row[:7], statistics))


def bins(lowest: int | None, histogram: str | None) -> tuple[int, ...]:
    """All `BINS` counts of a histogram, of which those from `lowest` on were written down."""
    counts = parsed(histogram) if histogram else []
    before = 0 if lowest is None else lowest - LOWEST
    return (*[0] * before, *counts, *[0] * (BINS - before - len(counts)))


def _conditions(
    op: int | str | None, value: str | None, step: int | None, table: str
) -> tuple[str, dict[str, Any]]:
    """The rest of a WHERE clause, and what its names stand for."""
    where, arguments = "", {}
    if isinstance(op, int):
        where, arguments = " and ops.op = :op", {"op": op}
    elif op is not None:
        column = "site" if "/" in op else "name"
        where, arguments = f" and ops.{column} glob :op", {"op": op}
    if value is not None:
        where, arguments = f"{where} and results.name glob :value", {**arguments, "value": value}
    if step is not None:
        column = "steps.step" if table == "stats" else f"{table}.step"
        where, arguments = f"{where} and {column} = :step", {**arguments, "step": step}
    return where, arguments
