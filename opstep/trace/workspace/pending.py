"""Records of a run that are not in its workspace yet, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from opstep.runtime.recording import Activation, HostRecord, Layout, StreamRecord
from opstep.trace.free import FreeRecord, OpMet
from opstep.trace.packets import Ops
from opstep.trace.sink import Run, StepDone


class Sums:
    """Of each op of a plan over its executions: columns over the ops, as they are numbered."""

    def __init__(self, ops: int):
        self.executions = np.zeros(ops, np.int64)
        self.total = np.zeros(ops, np.int64)
        self.least = np.full(ops, np.iinfo(np.int64).max)
        self.most = np.zeros(ops, np.int64)
        self.timed = np.zeros(ops, bool)
        self.digest = np.zeros(ops, np.uint64)
        self.counted = np.zeros(ops, bool)  # whether it has statistics

    def add_times(self, rows: np.ndarray, times: np.ndarray) -> None:
        """`rows`: ops, each once; `times`: i64[k, n, 2], of k records."""
        took = times[:, :, 1] - times[:, :, 0]
        self.executions[rows] += len(times)
        self.total[rows] += took.sum(axis=0)
        self.least[rows] = np.minimum(self.least[rows], took.min(axis=0))
        self.most[rows] = np.maximum(self.most[rows], took.max(axis=0))
        self.timed[rows] = True

    def add_each(self, rows: np.ndarray, times: np.ndarray) -> None:
        """`rows`: ops, any of them several times; `times`: i64[n, 2]."""
        took = times[:, 1] - times[:, 0]
        for total, more in ((self.executions, 1), (self.total, took)):
            np.add.at(total, rows, more)
        np.minimum.at(self.least, rows, took)
        np.maximum.at(self.most, rows, took)
        self.timed[rows] = True

    def grown(self, ops: int) -> Sums:
        """The same for more ops."""
        found = Sums(ops) if ops > len(self.executions) else self
        if found is not self:
            for name, column in vars(self).items():
                vars(found)[name][: len(column)] = column
        return found

    def add_stats(self, rows: np.ndarray, hashed: np.ndarray) -> None:
        """`hashed`: u64[k, n], of k records."""
        with np.errstate(over="ignore"):
            np.add.at(self.digest, rows, hashed.sum(axis=0, dtype=np.uint64))
        self.counted[rows] = True

    def add(self, other: Sums) -> None:
        self.executions += other.executions
        self.total += other.total
        self.least = np.minimum(self.least, other.least)
        self.most = np.maximum(self.most, other.most)
        self.timed |= other.timed
        with np.errstate(over="ignore"):
            self.digest += other.digest
        self.counted |= other.counted

    def rows(self, run: int, first: int) -> Iterator[tuple]:
        """``executions, total_ns, least_ns, most_ns, digest, run, op`` of ops that ran."""
        for k in np.flatnonzero(self.executions | self.counted).tolist():
            times = (int(self.total[k]), int(self.least[k]), int(self.most[k]))
            digest = int(self.digest[k].astype(np.int64)) if self.counted[k] else None
            timing = times if self.timed[k] else (None, None, None)
            yield (int(self.executions[k]), *timing, digest, run, first + k)


class Columns:
    """Columns that are the same in all records of one stream of a plan."""

    def __init__(self, layout: Layout, stream: int, run: Run):
        plan, rows = layout.plan, layout.rows[stream]
        first, numbering = run.first_op(plan), run.numbering(plan)
        whole = [range(numbering.first[step], numbering.last[step] + 1) for step in rows]
        self.ops = np.array([op for ops in whole for op in ops], np.int64)
        self.rows = np.repeat(np.arange(len(rows)), [len(ops) for ops in whole])  # of times
        self.timed = np.array([numbering.last[step] for step in rows], np.int64)
        self.fused = np.setdiff1d(self.ops, self.timed)
        statistics = layout.stats[stream]
        before = run.numbers_before(plan)
        given = [
            (before[v] - first, 0) if v in before else numbering.giver(step, v)
            for step, v in statistics
        ]
        self.stat_ops = np.array([op for op, _ in given], np.int64)
        self.results = np.array([result for _, result in given], np.int64)
        self.types = [plan.values[value].type for _, value in statistics]
        self.is_float = np.array([t.dtype.is_float for t in self.types], bool)
        self.own = self.stat_ops >= 0  # not of what the plan found
        # what has statistics and no times: what the plan found comes before the ops, what has no
        # kernels after them
        self.found = sorted(set(self.stat_ops[~self.own].tolist()))
        rest = set(self.stat_ops[self.own].tolist()) - set(self.ops.tolist())
        self.untimed = [op for op in dict.fromkeys(self.stat_ops.tolist()) if op in rest]
        row = {op: k for k, op in enumerate([*self.found, *self.ops.tolist(), *self.untimed])}
        self.stat_rows = np.array([row[op] for op in self.stat_ops.tolist()], np.int64)
        self.first = first


class Numbered(NamedTuple):
    """A record, and the number of the first of its executions."""

    record: StreamRecord | HostRecord | FreeRecord
    first: int


@dataclass
class Pending:
    """Records of the run's step under way, or of steps that have ended."""

    records: list[Numbered] = field(default_factory=list)
    nbytes: int = 0  # that their rows take, about

    def absorb(self, other: Pending) -> None:
        """All that the other one has; it is empty then."""
        self.records += other.records
        self.nbytes += other.nbytes
        other.records, other.nbytes = [], 0


class RunState:
    """The sink's state of a run."""

    def __init__(self, run: Run, id: int):
        self.run = run
        self.id = id
        # by first op of a plan: how it was run at first, where its ops are not written yet
        self.new: dict[int, Activation] = {}
        self.met: list[OpMet] = []  # of no plan, and not written yet
        self.held: dict[int, int] = {}  # bytes that the callers of a plan hold, at most
        self.grown: dict[int, int] = {}  # by how much, since its ops were written
        self._ops = Ops(run)
        self.sums: dict[int, Sums] = {}  # by first op of a plan: of steps that have ended
        self.open_sums: dict[int, Sums] = {}  # of the step under way
        self.open = Pending()
        self.ended = Pending()
        self.steps: list[StepDone] = []  # ended, not written
        self.done = 0  # steps that have ended
        self.repeatable = 0  # of these, how many ran on the inputs that are kept
        self.next_execution = 0
        self.spilled = False  # part of the step under way stands in temporary tables
        self.summed_at = 0.0  # when `ops` got its sums
        self.described = False  # whether the rows of inputs and named tensors are written
        self._columns: dict[tuple[int, int], Columns] = {}

    def add_record(self, record: StreamRecord | HostRecord | FreeRecord) -> None:
        if isinstance(record, FreeRecord):
            self.met += record.met
            self.open.records.append(Numbered(record, self.next_execution))
            self.open.nbytes += record.nbytes
            self.next_execution += len(record.ops)
            return
        activation = record.activation
        first = self.run.first_op(activation.plan)
        if first not in self.sums:
            self.new[first] = activation
            self.sums[first] = Sums(len(self.run.numbering(activation.plan)))
        if activation.caller or first not in self.held:
            self._note_held(activation, first)
        if isinstance(record, HostRecord):
            count, stats = len(record.calls), 0
        else:
            columns = self._columns.get((first, record.stream)) or self.columns(record)
            has_stats = record.stats is not None and len(record.stats) > 0
            count = len(columns.ops) + len(columns.found + columns.untimed) * has_stats
            stats = record.stats.nbytes if record.stats is not None else 0
            stats += 3 * record.details.nbytes if record.details is not None else 0
        if count:
            self.open.records.append(Numbered(record, self.next_execution))
            self.open.nbytes += 1000 + 100 * count + stats
            self.next_execution += count

    def _note_held(self, activation: Activation, first: int) -> None:
        caller = activation.caller
        held = self._ops.live(caller, activation.call) if caller else 0
        more = held - self.held.setdefault(first, 0)
        if more > 0:
            self.held[first] = held
            if first not in self.new:
                self.grown[first] = self.grown.get(first, 0) + more

    def end_step(self, step: StepDone) -> None:
        self.ended.absorb(self.open)
        for first, sums in self.open_sums.items():
            self.sums[first].add(sums)
        self.open_sums.clear()
        self.steps.append(step)
        self.done = step.step + (not step.failed)
        if step.repeatable:
            self.repeatable = self.done

    def columns(self, record: StreamRecord) -> Columns:
        """Columns that are the same in all records of that stream and plan."""
        layout = record.activation.layout
        first = self.run.first_op(layout.plan)
        found = self._columns.get((first, record.stream))
        if found is None:
            found = Columns(layout, record.stream, self.run)
            self._columns[first, record.stream] = found
        return found

    def sums_of(self, activation: Activation, ended: bool) -> Sums:
        """Those that the executions of the activation's ops are added to."""
        first = self.run.first_op(activation.plan)
        if ended:
            return self.sums[first]
        numbering = self.run.numbering(activation.plan)
        return self.open_sums.setdefault(first, Sums(len(numbering)))
