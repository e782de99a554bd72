"""From the records of a run to the rows of `executions` and `stats`, many records at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.runtime.recording import HostRecord
from opstep.trace.workspace.details import insert_details
from opstep.trace.workspace.inserting import insert
from opstep.trace.workspace.rows import HOST, hashes, is_usual, stats_columns
from opstep.trace.workspace.taken import Columns, Numbered, RunState

EXECUTIONS = "executions (run, execution, step, op, stream, activation, turn, start_ns, end_ns)"
STATS = (
    "stats (run, step, op, execution, result, count, min, max, mean, std, l2, absmax, nan, posinf, "
    "neginf, zero, subnormal, unwritten, lowest, histogram)"
)
_TIMED, _UNTIMED = "?1, #, #, #, ?2, #, #, #, #", "?1, #, #, #, ?2, #, #, null, null"
_ANY = "?1" + ", #" * 19
# where nothing is NaN, infinite, subnormal or known to be unwritten
_USUAL = "?1" + ", #" * 11 + ", 0, 0, 0, #, 0, null, #, #"
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
    for numbered in records:
        groups.setdefault(_kind(numbered), []).append(numbered)
    executions = stats = 0
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
        self.first = np.array([numbered.first for numbered in alike], np.int64)
        places = [(a.step, a.number, a.turn) for a in (r.activation for r in self.records)]
        self.places = np.array(places, np.int64)
        self.sums = state.sums_of(self.records[0].activation, ended)

    def calls(self) -> tuple[int, int]:
        """Control flow, which the host runs."""
        activation = self.records[0].activation
        steps = np.array(activation.layout.calls, np.int64)
        times = np.stack([r.calls for r in self.records])
        self.sums.add_times(steps, times)
        ops = steps + self.state.run.first_op(activation.plan)
        return self._executions(HOST, ops, 0, times), 0

    def stream(self) -> tuple[int, int]:
        record = self.records[0]
        columns = self.state.columns(record)
        count = 0
        if len(columns.ops):
            times = np.stack([r.times for r in self.records])
            self.sums.add_times(columns.steps, times)
            count = self._executions(record.stream, columns.ops, 0, times)
        if record.stats is None or not len(record.stats):
            return count, 0
        if columns.untimed:
            ops = np.array(columns.untimed, np.int64) + (
                columns.stat_ops[0] - columns.stat_steps[0]
            )
            count += self._executions(record.stream, ops, len(columns.ops), None)
            self.sums.executions[columns.untimed] += len(self.records)
        return count, self._stats(columns)

    def _executions(self, stream: int, ops: np.ndarray, behind: int, times) -> int:
        """One each for ops; `behind`: so many others of the record."""
        shape = (len(self.records), len(ops))
        parts = [
            self.first[:, None] + behind + np.arange(len(ops)),
            self.places[:, :1],
            ops[None],
            self.places[:, 1:2],
            self.places[:, 2:],
        ]
        parts += [] if times is None else [times[:, :, 0], times[:, :, 1]]
        columns = [np.broadcast_to(part, shape).ravel().tolist() for part in parts]
        row = _UNTIMED if times is None else _TIMED
        insert(
            self.connection, f"{self.schema}.{EXECUTIONS}", (self.state.id, stream), row, columns
        )
        return shape[0] * shape[1]

    def _stats(self, columns: Columns) -> int:
        words = np.stack([r.stats for r in self.records])
        records, count, width = words.shape
        shape, flat = (records, count), words.reshape(-1, width)
        steps, turns = (np.repeat(self.places[:, k], count) for k in (0, 2))
        results = np.tile(columns.results, records)
        hashed = hashes(flat, steps, turns, results)
        self.sums.add_stats(columns.stat_steps, hashed.reshape(shape))
        ops = np.broadcast_to(columns.stat_ops, shape).ravel()
        executions = (self.first[:, None] + columns.stat_rows).ravel()
        head = [array.tolist() for array in (steps, ops, executions, results)]
        figures = stats_columns(flat, np.tile(columns.is_float, records))
        row = _ANY
        if is_usual(flat):
            row, k = _USUAL, _NAN_COLUMN
            figures = [*figures[:k], figures[k + 3], *figures[k + 6 :]]
        into, shared = f"{self.schema}.{STATS}", (self.state.id,)
        insert(self.connection, into, shared, row, [*head, *figures])
        return len(flat)
