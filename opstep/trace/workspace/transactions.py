"""Transactions of a workspace's connections. Rows are inserted many to a statement: SQLite works
through one without Python's lock, and a row alone costs more in Python than in SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str = "immediate") -> Iterator[None]:
    """All of it, or nothing; waits for other writers first, not in the middle. `mode`: ``deferred``
    where only temporary tables are written, which needs no turn.
    """
    connection.execute(f"begin {mode}")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("rollback")
        raise


_MOST = 64  # rows of a statement
FINDINGS = "findings (run, step, op, kind, value, file, line, message)"


@cache
def _statement(into: str, row: str, rows: int) -> str:
    return f"insert into {into} values {', '.join([f'({row})'] * rows)}"


def insert(connection: sqlite3.Connection, into: str, row: str, values: list[Any]) -> None:
    """Rows of one form. `row` says how one is made, ``?, null, ?``; `values` are for its ``?``, row
    by row. None is numbered or named: CPython takes those from a mapping alone, which is slower.
    """
    width = row.count("?")
    count = len(values) // width
    at = 0
    while at < count:
        size = min(_MOST, 1 << (count - at).bit_length() - 1)
        some = values[at * width : (at + size) * width]
        connection.execute(_statement(into, row, size), some)
        at += size


def insert_rows(connection: sqlite3.Connection, into: str, rows: Iterable[tuple]) -> None:
    """Rows of any number, one at a time: into a table, or some of its columns."""
    rows = list(rows)
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"insert into {into} values ({marks})", rows)


def by_rows(columns: Sequence[Sequence[Any] | np.ndarray | int]) -> list[Any]:
    """The values of columns, row by row. A number stands for a column of it; one is none."""
    count = max(len(c) for c in columns if not isinstance(c, int))
    flat: list[Any] = [None] * (len(columns) * count)
    for k, column in enumerate(columns):
        if isinstance(column, int):
            flat[k :: len(columns)] = [column] * count
        else:
            flat[k :: len(columns)] = column.tolist() if isinstance(column, np.ndarray) else column
    return flat
