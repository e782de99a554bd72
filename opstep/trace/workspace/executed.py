"""From the records of a run to the rows of `executions`, `stats`, `quantiles`, `signed` and
`channels`, many records at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from opstep.kernels.statistics.details import CHANNEL
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.recording import HostRecord, StreamRecord
from opstep.runtime.statistics import BINS
from opstep.trace.free import FreeRecord
from opstep.trace.selection import extremes, quantiles
from opstep.trace.workspace.pending import Columns, Numbered, RunState, Sums
from opstep.trace.workspace.rows import HOST, hashes, histograms, is_usual, stats_columns
from opstep.trace.workspace.transactions import by_rows, insert, insert_rows

STATS = (
    "stats (run, step, op, execution, result, count, min, max, mean, std, l2, absmax, nan, posinf, "
    "neginf, zero, subnormal, unwritten, lowest, histogram)"
)
_TIMED, _UNTIMED = "?" + ", ?" * 8, "?" + ", ?" * 6 + ", null, null"
# all figures, or those where nothing is NaN, infinite, subnormal or known to be unwritten
_ANY = "?" + ", ?" * 19
_USUAL = "?" + ", ?" * 11 + ", 0, 0, 0, ?, 0, null, ?, ?"
_NAN_COLUMN = 7  # of the figures: nan, posinf, neginf, zero, subnormal, unwritten


def insert_records(
    connection: sqlite3.Connection,
    schema: str,
    state: RunState,
    records: Sequence[Numbered],
    ended: bool,
) -> tuple[int, int]:
    """Their rows; how many executions and how many statistics. `ended`: their steps have."""
    groups: dict[tuple, list[Numbered]] = {}
    executions = stats = 0
    for numbered in records:
        if isinstance(numbered.record, FreeRecord):
            more = _insert_free(connection, schema, state, numbered.record, numbered.first)
            executions, stats = executions + more[0], stats + more[1]
        else:
            groups.setdefault(_kind(numbered), []).append(numbered)
    for alike in groups.values():
        inserting = _Inserting(connection, schema, state, alike, ended)
        more = inserting.calls() if isinstance(alike[0].record, HostRecord) else inserting.stream()
        executions, stats = executions + more[0], stats + more[1]
        insert_details(connection, schema, state, alike)
    return executions, stats


def _kind(numbered: Numbered) -> tuple:
    record = numbered.record
    if isinstance(record, HostRecord):
        return (id(record.activation.layout.plan), HOST, len(record.calls))
    return (id(record.activation.layout.plan), record.stream, record.stats is not None)


class _Inserting:
    """Records that differ in their figures alone."""

    def __init__(self, connection, schema: str, state: RunState, alike, ended: bool):
        self.connection = connection
        self.schema = schema
        self.state = state
        self.records: list[Any] = [numbered.record for numbered in alike]
        placed = [(n.first, n.record.activation) for n in alike]
        # i64[records, 4]: first execution, step, activation, turn
        self.positions = np.array([(k, a.step, a.number, a.turn) for k, a in placed], np.int64)
        self.sums = state.sums_of(self.records[0].activation, ended)

    def calls(self) -> tuple[int, int]:
        """Control flow, which the host runs."""
        activation = self.records[0].activation
        run, plan = self.state.run, activation.plan
        last = run.numbering(plan).last
        ops = np.array([last[step] for step in activation.layout.calls], np.int64)
        times = np.stack([r.calls for r in self.records])
        self.sums.add_times(ops, times)
        return self._executions(HOST, ops + run.first_op(plan), 0, times), 0

    def stream(self) -> tuple[int, int]:
        record = self.records[0]
        columns = self.state.columns(record)
        has_stats = record.stats is not None and len(record.stats) > 0
        before = len(columns.found) if has_stats else 0
        count = 0
        if len(columns.ops):
            times = np.stack([r.times for r in self.records])
            self.sums.add_times(columns.timed, times)
            self.sums.executions[columns.fused] += len(self.records)
            ops = columns.ops + columns.first
            count = self._executions(record.stream, ops, before, times[:, columns.rows])
        if not has_stats:
            return count, 0
        after = before + len(columns.ops)
        for offset, untimed in ((0, columns.found), (after, columns.untimed)):
            if untimed:
                ops = np.array(untimed, np.int64) + columns.first
                count += self._executions(record.stream, ops, offset, None)
        self.sums.executions[columns.untimed] += len(self.records)
        return count, self._stats(columns)

    def _executions(self, stream: int, ops: np.ndarray, offset: int, times) -> int:
        """One each for ops; `offset`: so many others of the record."""
        count = len(self.records)
        first, step, activation, turn = (np.repeat(p, len(ops)) for p in self.positions.T)
        number = first + np.tile(np.arange(offset, offset + len(ops)), count)
        columns = [self.state.id, number, step, np.tile(ops, count), stream, activation, turn]
        into = f"{self.schema}.executions"
        if times is None:
            insert(self.connection, into, _UNTIMED, by_rows(columns))
        else:
            insert(self.connection, into, _TIMED, by_rows([*columns, *times.reshape(-1, 2).T]))
        return count * len(ops)

    def _stats(self, columns: Columns) -> int:
        words = np.stack([r.stats for r in self.records])
        records, count, width = words.shape
        flat = words.reshape(-1, width)
        steps, turns = (np.repeat(self.positions[:, k], count) for k in (1, 3))
        hashed = hashes(flat, steps, turns, np.tile(columns.results, records))
        hashed = hashed.reshape(records, count)[:, columns.own]
        self.sums.add_stats(columns.stat_ops[columns.own], hashed)
        ops, rows, results = (
            np.tile(c, records)
            for c in (columns.stat_ops + columns.first, columns.stat_rows, columns.results)
        )
        positions = [
            self.state.id,
            steps,
            ops,
            np.repeat(self.positions[:, 0], count) + rows,
            results,
        ]
        is_float = np.tile(columns.is_float, records)
        _insert_stats(self.connection, self.schema, positions, flat, is_float)
        return len(flat)


def _insert_stats(
    connection: sqlite3.Connection, schema: str, positions: Sequence[Any], words: np.ndarray,
    is_float: np.ndarray,
) -> None:  # fmt: skip
    """`positions`: the columns before the figures."""
    figures = stats_columns(words, is_float)
    row = _ANY
    if is_usual(words):
        row, k = _USUAL, _NAN_COLUMN
        figures = [*figures[:k], figures[k + 3], *figures[k + 6 :]]
    insert(connection, f"{schema}.{STATS}", row, by_rows([*positions, *figures]))


def _insert_free(
    connection: sqlite3.Connection, schema: str, state: RunState, record: FreeRecord, first: int
) -> tuple[int, int]:
    """Ops that ran without a plan, an execution for each."""
    activation, ops = record.activation, record.ops
    numbers = np.arange(first, first + len(ops))
    places = [state.id, numbers, activation.step, ops, record.stream, activation.number]
    columns = [*places, record.turns, *record.times.T]
    insert(connection, f"{schema}.executions", _TIMED, by_rows(columns))
    sums = state.sums[0] = state.sums.get(0, Sums(0)).grown(record.count)
    sums.add_each(ops, record.times)
    if not len(record.stats):
        return len(ops), 0
    rows, results = record.rows, record.results
    steps = np.full(len(rows), activation.step)
    sums.add_stats(ops[rows], hashes(record.stats, steps, record.turns[rows], results)[None])
    positions = [state.id, activation.step, ops[rows], first + rows, results]
    _insert_stats(connection, schema, positions, record.stats, record.is_float)
    return len(ops), len(rows)


# --- quantiles, signed histograms, channels -------------------------------------------------------


def insert_details(
    connection: sqlite3.Connection, schema: str, state: RunState, alike: Sequence[Numbered]
) -> None:
    """Of records of one stream of a plan, where these were taken."""
    first = alike[0].record
    if not isinstance(first, StreamRecord) or first.details is None:
        return
    columns = state.columns(first)
    records: list[Any] = [n.record for n in alike]
    words = np.stack([r.details for r in records])
    steps = np.array([r.activation.step for r in records], np.int64)
    executions = np.array([n.first for n in alike], np.int64)
    at = 0
    for k, t in enumerate(columns.types):
        op, row, result = (
            columns.stat_ops[k] + columns.first,
            columns.stat_rows[k],
            columns.results[k],
        )
        positions = [steps, np.full_like(steps, op), executions + row, np.full_like(steps, result)]
        end = at + sum(size for _, size in state.run.details.words(t))
        _insert(connection, schema, state, t, positions, words[:, at:end])
        at = end


def insert_initial_details(connection: sqlite3.Connection, state: RunState) -> None:
    """Of inputs and named tensors, as `rows.initial_rows` numbers them."""
    for k, tensor in enumerate(state.run.initial):
        if tensor.details is not None:
            positions = [np.array([n], np.int64) for n in (-1, -1 - k, -1 - k, 0)]
            _insert(connection, "main", state, tensor.type, positions, tensor.details[None])


def _insert(
    connection: sqlite3.Connection,
    schema: str,
    state: RunState,
    t: TensorType,
    positions: Sequence[np.ndarray],
    words: np.ndarray,
) -> None:
    """Optional statistics of n tensors of that type. `positions`: step, op, execution and result,
    i64[n] each; `words`: i64[n, all words of such a tensor].
    """
    at = 0
    for kind, size in state.run.details.words(t):
        part = words[:, at : at + size]
        at += size
        each = size // CHANNEL if kind == "channels" else 1
        head = [np.repeat(column, each).tolist() for column in positions]
        columns = [repeat(state.id), *head, *_COLUMNS[kind](part, t.dtype)]
        insert_rows(connection, f"{schema}.{kind}", zip(*columns, strict=False))


def _quantile_columns(words: np.ndarray, dtype: DType) -> Sequence[Sequence[Any]]:
    return quantiles(words, dtype).T.tolist()


def _signed_columns(words: np.ndarray, dtype: DType) -> Sequence[Sequence[Any]]:
    return [*histograms(words[:, :BINS]), *histograms(words[:, BINS:])]


def _channel_columns(words: np.ndarray, dtype: DType) -> Sequence[Sequence[Any]]:
    channels = words.shape[1] // CHANNEL
    return [list(range(channels)) * len(words), *extremes(words, dtype)]


_COLUMNS = {
    "quantiles": _quantile_columns,
    "signed": _signed_columns,
    "channels": _channel_columns,
}
