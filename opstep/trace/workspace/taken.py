"""What was taken of a run and is not in its workspace yet, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np

from opstep.runtime.recording import Activation, HostRecord, Layout, StreamRecord
from opstep.trace.sink import Run, StepDone
from opstep.trace.workspace.rows import HOST, hashes, is_usual, stats_columns

NAN_COLUMN = 7  # of the figures: nan, posinf, neginf, zero, subnormal, unwritten


class Sums:
    """Of each op of a plan over its executions: columns over the plan's steps."""

    def __init__(self, ops: int):
        self.executions = np.zeros(ops, np.int64)
        self.total = np.zeros(ops, np.int64)
        self.least = np.full(ops, np.iinfo(np.int64).max)
        self.most = np.zeros(ops, np.int64)
        self.timed = np.zeros(ops, bool)
        self.digest = np.zeros(ops, np.uint64)
        self.counted = np.zeros(ops, bool)  # whether it has statistics

    def add_times(self, rows: np.ndarray, times: np.ndarray) -> None:
        """`rows`: steps, each once; `times`: i64[n, 2]."""
        took = times[:, 1] - times[:, 0]
        self.executions[rows] += 1
        self.total[rows] += took
        self.least[rows] = np.minimum(self.least[rows], took)
        self.most[rows] = np.maximum(self.most[rows], took)
        self.timed[rows] = True

    def add_stats(self, rows: np.ndarray, hashed: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            np.add.at(self.digest, rows, hashed)
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
            given = times if self.timed[k] else (None, None, None)
            yield (int(self.executions[k]), *given, digest, run, first + k)


class Columns:
    """What is the same in all records of one stream of a plan."""

    def __init__(self, layout: Layout, stream: int, first: int):
        plan = layout.plan
        self.steps = np.array(layout.rows[stream], np.int64)
        self.ops = (self.steps + first).tolist()
        taken = layout.stats[stream]
        self.stat_steps = np.array([step for step, _ in taken], np.int64)
        self.stat_ops = (self.stat_steps + first).tolist()
        self.results = np.array(
            [plan.steps[step].results.index(value) for step, value in taken], np.int64
        )
        dtypes = (plan.values[value].type.dtype for _, value in taken)
        self.is_float = np.array([dtype.is_float for dtype in dtypes], bool)
        # ops without kernels have statistics and no times: their executions come behind the others
        row = {step: k for k, step in enumerate(layout.rows[stream])}
        self.untimed = [s for s in dict.fromkeys(self.stat_steps.tolist()) if s not in row]
        row |= {step: len(self.steps) + k for k, step in enumerate(self.untimed)}
        self.stat_rows = np.array([row[s] for s in self.stat_steps.tolist()], np.int64)


@dataclass
class Taken:
    """Records of the run's step under way, or of steps that have ended."""

    executions: list[Iterator[tuple]] = field(default_factory=list)
    stats: list[Callable[[], tuple[bool, Iterator[tuple]]]] = field(default_factory=list)
    nbytes: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0])  # executions, rows of statistics

    def take_over(self, other: Taken) -> None:
        """All that the other one has; it is empty then."""
        self.executions += other.executions
        self.stats += other.stats
        self.nbytes += other.nbytes
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        other.executions, other.stats, other.nbytes, other.counts = [], [], 0, [0, 0]


class RunState:
    """What the sink knows of a run."""

    def __init__(self, run: Run, id: int):
        self.run = run
        self.id = id
        self.layouts: dict[int, Layout] = {}  # of plans whose ops are not written yet, by first op
        self.sums: dict[int, Sums] = {}  # by first op of a plan: of steps that have ended
        self.open_sums: dict[int, Sums] = {}  # of the step under way
        self.open = Taken()
        self.ended = Taken()
        self.steps: list[StepDone] = []  # ended, not written
        self.done = 0  # steps that have ended
        self.repeatable = 0  # of these, how many ran on the inputs that are kept
        self.next_execution = 0
        self.spilled = False  # part of the step under way stands in temporary tables
        self.summed_at = 0.0  # when `ops` got its sums
        self.described = False  # whether the rows of inputs and named tensors are written
        self._columns: dict[tuple[int, int], Columns] = {}

    def take(self, record: StreamRecord | HostRecord) -> None:
        activation = record.activation
        first = self.run.first_op(activation.plan)
        if first not in self.sums:
            self.layouts[first] = activation.layout
            self.sums[first] = Sums(len(activation.plan.steps))
        if isinstance(record, HostRecord):
            self._take_calls(record, first)
        else:
            self._take_stream(record, first)

    def end_step(self, step: StepDone) -> None:
        self.ended.take_over(self.open)
        for first, sums in self.open_sums.items():
            self.sums[first].add(sums)
        self.open_sums.clear()
        self.steps.append(step)
        self.done = step.step + (not step.failed)
        if step.repeatable:
            self.repeatable = self.done

    def _open_sums(self, activation: Activation, first: int) -> Sums:
        if first not in self.open_sums:
            self.open_sums[first] = Sums(len(activation.plan.steps))
        return self.open_sums[first]

    def _numbers(self, count: int) -> range:
        self.next_execution += count
        return range(self.next_execution - count, self.next_execution)

    def _take_calls(self, record: HostRecord, first: int) -> None:
        calls = record.activation.layout.calls
        if not calls:
            return
        steps = np.array(calls, np.int64)
        ops = (steps + first).tolist()
        self._open_sums(record.activation, first).add_times(steps, record.calls)
        self._add_executions(self._numbers(len(ops)), ops, HOST, record.activation, record.calls)

    def _take_stream(self, record: StreamRecord, first: int) -> None:
        activation, stream = record.activation, record.stream
        columns = self._columns.get((first, stream))
        if columns is None:
            columns = Columns(activation.layout, stream, first)
            self._columns[first, stream] = columns
        sums = self._open_sums(activation, first)
        if columns.ops:
            sums.add_times(columns.steps, record.times)
        numbers = self._numbers(len(columns.ops))
        self._add_executions(numbers, columns.ops, stream, activation, record.times)
        if record.stats is None or not len(record.stats):
            return
        untimed = [first + s for s in columns.untimed]
        self._add_executions(self._numbers(len(untimed)), untimed, stream, activation, None)
        if untimed:
            sums.executions[columns.untimed] += 1
        hashed = hashes(record.stats, activation.step, activation.turn, columns.results)
        sums.add_stats(columns.stat_steps, hashed)
        self.open.stats.append(
            partial(_stats_rows, self.id, activation.step, columns, numbers.start, record.stats)
        )
        self.open.nbytes += record.stats.nbytes
        self.open.counts[1] += len(record.stats)

    def _add_executions(self, numbers, ops, stream: int, activation: Activation, times) -> None:
        if not ops:
            return
        starts, ends = (repeat(None), repeat(None)) if times is None else times.T.tolist()
        place = (repeat(stream), repeat(activation.number), repeat(activation.turn))
        self.open.executions.append(
            zip(repeat(self.id), numbers, repeat(activation.step), ops, *place, starts, ends)
        )
        self.open.nbytes += 1000 + 100 * len(ops)
        self.open.counts[0] += len(ops)


def _stats_rows(
    run: int, step: int, columns: Columns, execution: int, words: np.ndarray
) -> tuple[bool, Iterator[tuple]]:
    """Decoded when they are written: until then a record takes the memory that was counted. Usual
    rows are without the columns that are the same in all of them.
    """
    executions = (columns.stat_rows + execution).tolist()
    head = (repeat(run), repeat(step), columns.stat_ops, executions, columns.results.tolist())
    figures, usual = stats_columns(words, columns.is_float), is_usual(words)
    if usual:
        figures = [*figures[:NAN_COLUMN], figures[NAN_COLUMN + 3], *figures[NAN_COLUMN + 6 :]]
    return usual, zip(*head, *figures, strict=False)
