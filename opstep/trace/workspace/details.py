"""Rows of `quantiles`, `signed` and `channels` from the words that devices leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.kernels.details import CHANNEL
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.statistics import BINS
from opstep.trace.details import Details, extremes, quantiles
from opstep.trace.sink import Run
from opstep.trace.workspace.bins import histograms
from opstep.trace.workspace.inserting import insert

_PLACE = "run, step, op, execution, result"
INTO = {
    "quantiles": f"quantiles ({_PLACE}, p1, p50, p99, abs_p1, abs_p50, abs_p99)",
    "signed": f"signed ({_PLACE}, negative_lowest, negative, positive_lowest, positive)",
    "channels": f"channels ({_PLACE}, channel, finite, min, max, zero)",
}


def insert_details(
    connection: sqlite3.Connection,
    schema: str,
    run: int,
    details: Details,
    types: Sequence[TensorType],
    places: Sequence[np.ndarray],
    words: np.ndarray,
) -> None:
    """Of each of k records what is known of each of n tensors of these types.

    `places`: step, op, execution and result, i64[k, n] each; `words`: i64[k, all words].
    """
    at = 0
    for tensor, t in enumerate(types):
        for kind, size in details.words(t):
            part = words[:, at : at + size]
            at += size
            each = size // CHANNEL if kind == "channels" else 1
            head = [np.repeat(column[:, tensor], each).tolist() for column in places]
            columns = [*head, *_COLUMNS[kind](part, t.dtype)]
            if columns[0]:
                row = ", ".join(["?1", *["#"] * len(columns)])
                insert(connection, f"{schema}.{INTO[kind]}", (run,), row, columns)


def insert_initial_details(connection: sqlite3.Connection, run: int, given: Run) -> None:
    """Of inputs and named tensors, as `rows.initial_rows` numbers them."""
    for k, initial in enumerate(given.initial):
        if initial.details is not None:
            places = [np.full((1, 1), n, np.int64) for n in (-1, -1 - k, -1 - k, 0)]
            words = initial.details[None]
            insert_details(connection, "main", run, given.details, [initial.type], places, words)


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
