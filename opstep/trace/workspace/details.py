"""Rows of `quantiles`, `signed` and `channels` from the words that devices leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from opstep.kernels.statistics.details import CHANNEL
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.recording import StreamRecord
from opstep.runtime.statistics import BINS
from opstep.trace.details import extremes, quantiles
from opstep.trace.workspace.bins import histograms
from opstep.trace.workspace.pending import Numbered, RunState
from opstep.trace.workspace.transactions import insert_rows


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
    """What is known of n tensors of that type. `positions`: step, op, execution and result, i64[n]
    each; `words`: i64[n, all words of such a tensor].
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
