"""Rows into tables, many to a statement: SQLite works through one without Python's lock, and a row
alone costs more in Python than in SQLite. What rows have in common is bound once a statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

_MOST = 64  # rows of a statement, about


@cache
def _statement(into: str, row: str, widths: tuple[int, int, int], rows: int, records: int) -> str:
    """For so many records with so many rows each; `widths`: of what all share, what the k-th rows
    of the records share, and what a record's rows share.

    A row's own values have no numbers: SQLite looks for each number among all others. They come
    behind the last of the others, so that has to be named first; in a row that is ``{s[0]}``.
    """
    shared, alike, heads = widths
    given = rows * alike + records * heads + shared
    texts = []
    for record, k in product(range(records), range(rows)):
        o = _marks(k * alike, alike)
        r = _marks(rows * alike + record * heads, heads)
        s = _marks(given - shared, shared)[::-1]
        texts.append(row.format(s=s, o=o, r=r))
    return f"insert into {into} values ({'), ('.join(texts)})"


def _marks(behind: int, count: int) -> list[str]:
    return [f"?{behind + k + 1}" for k in range(count)]


def insert(
    connection: sqlite3.Connection,
    into: str,
    row: str,
    shared: Sequence[Any],
    alike: np.ndarray,
    heads: np.ndarray,
    values: list[Any],
) -> None:
    """The rows of records that have as many each.

    `row` tells the values of a row: ``{s[0]}`` is one of `shared`, ``{o[0]}`` of those that the
    k-th rows have in common (`alike`: i64[rows, n]), ``{r[0]}`` of those that a record's rows have
    (`heads`: i64[records, n]), ``?`` one of its own (`values`, row by row).
    """
    rows, records = len(alike), len(heads)
    width = len(values) // (rows * records)
    widths = (len(shared), alike.shape[1], heads.shape[1])
    for first in range(0, rows, _MOST):
        some = alike[first : first + _MOST]
        most = 1 << (max(_MOST // len(some), 1).bit_length() - 1) if len(some) == rows else 1
        common, last = some.ravel().tolist(), shared[::-1]
        done = 0
        while done < records:
            size = min(most, 1 << (records - done).bit_length() - 1)
            at = (done * rows + first) * width
            own = values[at : at + size * len(some) * width]
            given = [*common, *heads[done : done + size].ravel().tolist(), *last, *own]
            statement = _statement(into, row, widths, len(some), size)
            connection.execute(statement, given)
            done += size


def by_rows(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """The values of columns, row by row."""
    flat: list[Any] = [None] * (len(columns) * len(columns[0]))
    for k, column in enumerate(columns):
        flat[k :: len(columns)] = column
    return flat
