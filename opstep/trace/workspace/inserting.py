"""Rows into tables, many to a statement: SQLite works through one without Python's lock, and a row
alone costs more in Python than in SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

_MOST = 64  # rows of a statement


@cache
def _statement(into: str, shared: int, row: str, count: int) -> str:
    """`row`: its values, ``#`` for one of its own, ``@`` for its place among the rows."""
    rows, given = [], shared
    for k in range(count):
        parts = row.replace("@", str(k)).split("#")
        text = parts[0]
        for part in parts[1:]:
            given += 1
            text += f"?{given}{part}"
        rows.append(f"({text})")
    return f"insert into {into} values {', '.join(rows)}"


def insert(
    connection: sqlite3.Connection,
    into: str,
    shared: Sequence[Any],
    row: str,
    columns: Sequence[Sequence[Any]],
) -> None:
    """Rows whose values `row` tells: ``?1, ?2 + @, #, 0, #``, where ``?k`` are those that all share
    and ``#`` the columns' in turn.
    """
    width, count = len(columns), len(columns[0])
    flat = list(chain.from_iterable(zip(*columns, strict=True)))
    at = 0
    while at < count:
        size = min(_MOST, 1 << (count - at).bit_length() - 1)
        given = [*shared, *flat[at * width : (at + size) * width]]
        connection.execute(_statement(into, len(shared), row, size), given)
        at += size
