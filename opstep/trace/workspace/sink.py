"""Writes runs into a workspace: whole steps, several to a transaction."""

from __future__ import annotations

import io
import os
import platform
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import IO, Any

import numpy as np

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.op import OPS
from opstep.runtime.recording import HostRecord, Overhead, StreamRecord
from opstep.runtime.statistics import BINS
from opstep.trace.sink import Checkpoint, Run, RunEnd, SinkReport, StepDone
from opstep.trace.workspace.blobs import insert_checkpoint, now, text_digest
from opstep.trace.workspace.executed import STATS, insert_initial_details, insert_records
from opstep.trace.workspace.judging import first_wrong
from opstep.trace.workspace.pending import Pending, RunState
from opstep.trace.workspace.rows import buffer_rows, histograms, initial_rows, op_rows, plain
from opstep.trace.workspace.runs import EAGER
from opstep.trace.workspace.schema import DETAILS
from opstep.trace.workspace.store import file_bytes, open_writing
from opstep.trace.workspace.transactions import FINDINGS, insert, insert_rows, transaction

# What is held in memory, beside the writer's queue: 64 MiB with it, however slow the disk is.
SPILL = 8 << 20  # bytes of one step from which on it waits for its end in temporary tables
BATCH = 4 << 20  # bytes of steps that have ended, from which on they are committed
RESERVED = 1 << 18  # bytes of the disk that are left for the end of a run
SPILLED = ("executions", "stats", *DETAILS)  # tables that it waits in
SUMS_S = 1.0  # between two updates of the sums in `ops`

_OPS = (
    "ops (run, op, name, site, plan, graph, frame, file, line, statement, operands, sources, "
    "attrs, stream, bytes, flops, live_bytes, fused_into)"
)


class WorkspaceSink:
    """See `trace.sink.Sink`. What has ended is committed by `flush`, a step whole or not at all.

    `patience`: seconds to wait for others who write, if not `store.BUSY_S`; `at_opening`: before
    the file is open, if it differs.
    """

    def __init__(
        self, path: str | Path, patience: float | None = None, at_opening: float | None = None
    ):
        self.path = Path(path)
        self._connection = open_writing(self.path, patience if at_opening is None else at_opening)
        if patience is not None:
            self._connection.execute(f"pragma busy_timeout = {round(1000 * patience)}")
        histograms(np.ones((1, BINS), np.int64))  # compiled here, so that no run waits for that
        self._connection.execute("pragma cache_size = -65536")  # KiB
        self._connection.execute("pragma wal_autocheckpoint = 4000")  # pages
        self._states: dict[str, RunState] = {}
        self._counts = {"step": 0, "execution": 0, "statistics row": 0, "tensor": 0}
        self._found: list[str] = []
        self._reserve = _reserve(self.path.parent)

    def begin_run(self, run: Run) -> None:
        with self._transaction():
            id = _insert(self._connection, "runs", _run_row(run))
            arrays = [("input", n, a) for n, a in run.info.inputs.items()]
            tensors = run.info.program.module.tensors
            arrays += [(tensors[n].kind, n, a) for n, a in run.params.items()]
            self._insert_checkpoint(id, -1, "start", arrays)
            settings = ((id, *setting) for setting in _settings(run))
            insert_rows(self._connection, "settings", settings)
        self._states[run.key] = RunState(run, id)

    def add_record(self, run: Run, record: StreamRecord | HostRecord) -> None:
        state = self._states[run.key]
        state.add_record(record)
        if state.open.nbytes > SPILL:
            self._spill(state)

    def add_overhead(self, run: Run, spent: Overhead) -> None:
        """A timeline shows that."""

    def end_step(self, run: Run, step: StepDone) -> None:
        state = self._states[run.key]
        state.end_step(step)
        if state.ended.nbytes > BATCH:
            self.flush()

    def add_checkpoint(self, run: Run, checkpoint: Checkpoint) -> None:
        tensors = run.info.program.module.tensors
        those: list[Any] = [("input", n, a) for n, a in checkpoint.inputs.items()]
        those += [(tensors[n].kind, n, a) for n, a in checkpoint.params.items()]
        with self._transaction():
            self._insert_checkpoint(self._states[run.key].id, checkpoint.step - 1, "kept", those)

    def add_metrics(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of a step that has ended before."""
        self.flush()
        rows = ((self._states[run.key].id, step, name, value) for name, value in metrics.items())
        with self._transaction():
            self._connection.executemany("insert or replace into metrics values (?, ?, ?, ?)", rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it, with what is counted, or nothing."""
        counts = dict(self._counts)
        try:
            with transaction(self._connection):
                yield
        except BaseException:
            self._counts = counts
            raise

    def flush(self) -> None:
        waiting = [state for state in self._states.values() if state.steps]
        if waiting:
            with self._transaction():
                for state in waiting:
                    self._write(state)

    def end_run(self, run: Run, end: RunEnd) -> None:
        state = self._states[run.key]
        with self._transaction():
            state.summed_at = 0.0
            self._write(state)
            self._end(state, end)
        del self._states[run.key]

    def close(self, ends: Sequence[tuple[Run, RunEnd]] = ()) -> SinkReport:
        self._reserve.close()
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            try:
                self._cut_off(ends)
            except sqlite3.Error:
                self._connection.execute("pragma wal_checkpoint(restart)")  # the log has room then
                self._cut_off(ends)
        finally:
            self._connection.close()
        counts = list(self._counts.items())
        return SinkReport(self.path, file_bytes(self.path), counts, findings=self._found)

    # --- steps ---

    def _write(self, state: RunState) -> None:
        """All that has ended, within a transaction."""
        connection = self._connection
        self._describe(state)
        self._insert_pending("main", state, state.ended, True)
        if state.spilled and state.steps:
            for table in SPILLED:
                connection.execute(
                    f"insert into main.{table} select * from temp.{table} where run = ?",
                    (state.id,),
                )
                connection.execute(f"delete from temp.{table} where run = ?", (state.id,))
            state.spilled = False
        steps, state.steps = state.steps, []
        if steps:
            self._insert_steps(state.id, steps)
            connection.execute(
                "update runs set steps = ?, repeatable = ?, seconds = ? where id = ?",
                (state.done, state.repeatable, _seconds(state.run, steps[-1].ended_ns), state.id),
            )
            self._counts["step"] += len(steps)
        if monotonic() - state.summed_at > SUMS_S:
            self._sum_up(state)

    def _insert_steps(self, run: int, steps: list[StepDone]) -> None:
        values = [v for s in steps for v in (run, s.step, s.began_ns, s.ended_ns)]
        insert(self._connection, "steps", "?, ?, ?, ?", values)
        self._connection.execute(
            "insert into metrics select run, step, 'seconds', (end_ns - start_ns) / 1e9 "
            "from steps where run = ? and step between ? and ?",
            (run, steps[0].step, steps[-1].step),
        )
        insert_rows(self._connection, "metrics", _metrics(run, steps))

    def _sum_up(self, state: RunState) -> None:
        for first, sums in state.sums.items():
            self._connection.executemany(
                "update ops set executions = ?, total_ns = ?, least_ns = ?, most_ns = ?, "
                "digest = ? where run = ? and op = ?",
                sums.rows(state.id, first),
            )
        state.summed_at = monotonic()

    def _describe(self, state: RunState) -> None:
        """Ops that are new, and before the first of them what the run was given."""
        if state.grown:
            self._grow(state)
        if state.met:
            rows = [op.row(state.id) for op in state.met if op.is_new]
            insert_rows(self._connection, _OPS, rows)
            results = [row for op in state.met for row in op.result_rows(state.id)]
            insert_rows(self._connection, "results", results)
            state.met.clear()
        if not state.new:
            return
        connection, run = self._connection, state.run
        ops: list[tuple] = []
        results: list[tuple] = []
        main = not state.described
        if main:
            ops, results, executions, stats = initial_rows(state.id, run.info.graph, run.initial)
            insert_rows(connection, "executions", executions)
            insert_rows(connection, STATS, stats)
            connection.execute(
                "insert into steps values (?, -1, ?, ?)", (state.id, run.began_ns, run.began_ns)
            )
            insert_initial_details(connection, state)
            self._count(len(executions), len(stats))
            state.described = True
        kinds = {n: t.kind for n, t in run.info.program.module.tensors.items()}
        buffers: list[tuple] = []
        for first, activation in state.new.items():
            layout, caller = activation.layout, activation.caller
            main_plan = main and layout.plan.graph == run.info.graph
            before = run.numbers_before(layout.plan)
            more = op_rows(
                state.id, first, layout, run.numbering(layout.plan), before, state.held[first]
            )
            called = run.op(caller.plan, activation.call) if caller else None
            buffers += buffer_rows(
                state.id, first, layout.plan, run.numbering(layout.plan), kinds, called
            )
            ops += more[0]
            results += more[1]
            if main_plan:
                connection.execute(
                    "update runs set arena_bytes = ? where id = ?", (layout.plan.arena, state.id)
                )
        state.new.clear()
        insert_rows(connection, _OPS, ops)
        insert_rows(connection, "results", results)
        insert_rows(connection, "buffers", buffers)

    def _grow(self, state: RunState) -> None:
        """Plans were called by others that hold more."""
        for first, more in state.grown.items():
            last = first + len(state.sums[first].executions) - 1
            self._connection.execute(
                "update ops set live_bytes = live_bytes + ? where run = ? and op between ? and ?",
                (more, state.id, first, last),
            )
        state.grown.clear()

    def _insert_pending(self, schema: str, state: RunState, pending: Pending, ended: bool) -> None:
        self._count(*insert_records(self._connection, schema, state, pending.records, ended))
        Pending().absorb(pending)

    def _count(self, executions: int, stats: int) -> None:
        self._counts["execution"] += executions
        self._counts["statistics row"] += stats

    def _spill(self, state: RunState) -> None:
        """Rows of a large step under way go to temporary tables, which nobody else sees and which
        keep nobody from writing. No step that has ended waits there beside it.
        """
        self.flush()
        connection = self._connection
        for table in SPILLED:
            connection.execute(f"create temp table if not exists {table} as "
                               f"select * from main.{table} where 0")  # fmt: skip
        with transaction(connection, "deferred"):  # the file itself is not written to
            self._insert_pending("temp", state, state.open, False)
        state.spilled = True

    # --- the end ---

    def _cut_off(self, ends: Sequence[tuple[Run, RunEnd]]) -> None:
        """The ends of runs whose last part could not be written."""
        end_of = {run.key: end for run, end in ends}
        for state in self._states.values():
            end = end_of.get(state.run.key)
            with transaction(self._connection):
                if end is not None:
                    self._ended(state, end, "incomplete")
                query = "select steps from runs where id = ?"
                (steps,) = self._connection.execute(query, (state.id,)).fetchone()
                of = "" if end is None else f" of {end.steps:,}"
                self._connection.execute(
                    "insert into findings (run, step, kind, message) values (?, ?, 'cut', ?)",
                    (state.id, steps, f"{steps:,}{of} steps are recorded: the file could not be "
                     "written any more"),
                )  # fmt: skip

    def _ended(self, state: RunState, end: RunEnd, status: str = "done") -> None:
        error = None
        if end.error is not None:
            status = "interrupted" if end.interrupted else "failed"
            error = plain(str(end.error) or type(end.error).__name__)
        self._connection.execute(
            "update runs set ended = ?, seconds = ?, status = ?, error = ? where id = ?",
            (now(), _seconds(state.run, end.ended_ns), status, error, state.id),
        )

    def _end(self, state: RunState, end: RunEnd) -> None:
        connection, run = self._connection, state.run
        last = end.steps - 1
        tensors = run.info.program.module.tensors
        params = [(tensors[n].kind, n, a) for n, a in end.params.items()]
        outputs = [("output", n, a) for n, a in end.outputs.items()]
        parts = [(last - 1, params), (last, outputs)] if end.undone else [(last, params + outputs)]
        for step, arrays in parts:
            self._insert_checkpoint(state.id, step, "end", arrays)
        self._ended(state, end)
        found = list(_findings(connection, state, end))
        insert_rows(connection, FINDINGS, found)
        for _, step, _, kind, _, file, line, message in found:
            if kind in ("nan", "inf"):
                location = f"{file}:{line}: " if file else ""
                self._found.append(f"{location}{message} (run {run.key}, step {step})")

    def _insert_checkpoint(self, run: int, step: int, kind: str, tensors: list) -> None:
        """A checkpoint with these tensors: (kind, name, array)."""
        if tensors:
            insert_checkpoint(self._connection, run, step, kind, tensors)
            self._counts["tensor"] += len(tensors)


def _reserve(folder: Path) -> IO[bytes]:
    """A file without a name that keeps some of the disk for a run's end; closing it gives that
    back.
    """
    try:
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed at the end
        file.write(bytes(RESERVED))
    except OSError:  # it may fit all the same
        return io.BytesIO()
    return file


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> int:
    """One row; its id."""
    names = ", ".join(row)
    marks = ", ".join(f":{name}" for name in row)
    row = {name: plain(v) if isinstance(v, str) else v for name, v in row.items()}
    cursor = connection.execute(f"insert into {table} ({names}) values ({marks})", row)
    return int(cursor.lastrowid or 0)


def _settings(run: Run) -> Iterator[tuple[str, str, Any]]:
    """Rows of `settings`: kind, name, value."""
    for name, value in run.tags.items():
        yield "tag", plain(name), plain(value) if isinstance(value, str) else value
    for name, array in run.info.inputs.items():
        if array.ndim == 0:
            value = array.astype(np.float64) if array.dtype.kind not in "iub" else array
            yield "input", name, value.item()


def _command() -> str:
    """As it would be written again: ``opstep run net.opg``, ``train.py --lr 0.1``."""
    program, *rest = sys.argv or [""]
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *rest])


def _run_row(run: Run) -> dict[str, Any]:
    from opstep.version import __version__

    info = run.info
    module = info.program.module
    source = module.source
    trace = run.files.get("trace")
    began = datetime.fromtimestamp(run.began, UTC).isoformat(timespec="milliseconds")
    text = text_of(module)
    params: list[Any] = [declared.type.nbytes for declared in module.tensors.values()]
    return {
        "key": run.key,
        "began": began.replace("+00:00", "Z"),
        "began_ns": run.began_ns,
        "status": "running",
        "file": source.path if source else None,
        "program": text,
        **{name: getattr(info, name) for name in ("graph", "device", "threads", "seed", "kernels")},
        **{name: getattr(info.policy, name) for name in ("streams", "alloc", "fill", "sync")},
        **{name: getattr(run, name) for name in ("selection", "every", "name", "keep_inputs")},
        "steps": 0,
        "repeatable": 0,
        "param_bytes": sum(params),
        "trace": str(trace.absolute()) if trace else None,
        "version": __version__,
        "host": platform.node(),
        "pid": os.getpid(),
        "command": _command(),
        "digest": text_digest(text),
        "also": run.details.text or None,
    }


def _seconds(run: Run, ended_ns: int) -> float:
    return (ended_ns - run.began_ns) / 1e9


def text_of(module: Module) -> str:
    """The text of a program, as it is kept: that of its file, where this has all of it. A gradient
    that was added to it stands in none.
    """
    from opstep.runtime.ir.lexer import cut
    from opstep.runtime.ir.printer import print_module

    text = module.source.text if module.source else ""
    if text and {p.name for p in cut(text) if p.kind == "graph"} == set(module.graphs):
        return text
    return print_module(module)


def _metrics(run: int, steps: list[StepDone]):
    for s in steps:
        for name, value in s.metrics.items():
            yield run, s.step, name if name != "seconds" else "seconds (output)", value


def _findings(connection: sqlite3.Connection, state: RunState, end: RunEnd):
    """Rows of `findings`: the first NaN, the first infinity, what no op wrote, what went wrong."""
    is_script = state.run.info.device == EAGER  # only a hunt knows what does harm in one
    bad = None if is_script else first_wrong(connection, state.run, state.id)
    if bad is not None:
        step, op, nan, value, file, line, name, count, wrong, verdict = bad
        kind = "nan" if nan else "inf"
        what = f"{nan or wrong:,} of {count:,} elements are {'NaN' if nan else 'infinite'}"
        if op < 0:
            when = " before the first step" if step < 0 else ""
            message = f"{name} {value}{when}: {what}"
        else:
            clean = ""
            if verdict == "origin":
                of_ranks = name in OPS and OPS[name].traits.collective
                clean = "what this rank brought was" if of_ranks else "its operands were"
                clean = f"; {clean} finite"
            message = f"{name} gives {value}: {what}{clean}"
        yield state.id, step, op, kind, value, file, line, message
    for u in end.unwritten:
        source = state.run.info.program.module.source
        line = source.locate(u.step.statement.span.start)[0] if source else None
        message = f"{u.step.op.name} never wrote {u.count:,} of {u.size:,} elements of {u.value}"
        file = plain(source.path) if source else None
        yield state.id, end.steps - 1, None, "unwritten", u.value, file, line, message
    if isinstance(end.error, OpstepError):
        for d in end.error.diagnostics:
            line = d.source.locate(d.span.start)[0] if d.source and d.span else None
            file = plain(d.source.path) if d.source else None
            yield state.id, end.steps, None, "error", None, file, line, plain(d.message)
