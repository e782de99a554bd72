"""Fields of an answer as JSON has them: short, and nothing that a client would read wrongly.

Most are what they are. What JSON or JavaScript has no word for is an object with one key that names
it: ``{"int": "9007199254740993"}``, ``{"float": "inf"}``, ``{"bytes": 4096}``; a long text is
``{"text": its beginning, "length": all of it}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST = 500  # characters of a text that are sent with its row
_EXACT = 1 << 53  # what a double holds exactly

Cell = None | int | float | str | dict[str, Any]


def cell(value: Any) -> Cell:
    """One field as it is sent."""
    if isinstance(value, str):
        if len(value) <= LONGEST:
            return value
        return {"text": value[:LONGEST], "length": len(value)}
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else {"int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return value


def json_rows(rows: Iterable[Sequence[Any]]) -> list[list[Cell]]:
    """Rows as they are sent."""
    return [[cell(value) for value in row] for row in rows]


def column_kinds(rows: Sequence[Sequence[Any]], columns: int) -> list[str]:
    """Of each column ``number``, ``text``, ``bytes`` or ``mixed``, as these rows have it; ``""``
    where all are null.
    """
    found: list[str] = []
    for k in range(columns):
        kinds = {_kind(row[k]) for row in rows} - {""}
        found.append(kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "")
    return found


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "bytes"
