"""Functions that SQL has over a workspace, beside SQLite's own: quantiles of a column."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

LONGEST = 1 << 28  # bytes of one string or blob; parts of tensors have 2**26
_WIDEST = 100_000  # characters of a field of `printf`
_FIELD = re.compile(r"%[-+ 0,!#]*(\*|\d*)(?:\.(\*|\d*))?l*(.)", re.DOTALL)


class Quantile:
    """``quantile(x, q)``: of the numbers of a column the one below which the share q of them lies,
    between two of them in proportion; nulls do not count. Null where there are none.
    """

    share = 0.5

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: object, share: float | None = None) -> None:
        if isinstance(value, (int, float)):
            self.values.append(value)
        if isinstance(share, (int, float)):
            self.share = share

    def finalize(self) -> float | int | None:
        if not self.values or not 0 <= self.share <= 1:
            return None
        self.values.sort()
        at = self.share * (len(self.values) - 1)
        low, high = self.values[int(at)], self.values[min(int(at) + 1, len(self.values) - 1)]
        between = at - int(at)
        return low if between == 0 or low == high else low + (high - low) * between


class Median(Quantile):
    """``median(x)``"""


class P99(Quantile):
    """``p99(x)``"""

    share = 0.99


def _widths(text: str, values: Iterator[object]) -> Iterator[float]:
    """Of the fields of a text for `printf`, given the values that these take."""
    for field in _FIELD.finditer(text):
        for width in field.group(1, 2):
            given = next(values, 0) if width == "*" else width
            with suppress(TypeError, ValueError):
                yield abs(float(given or 0))  # pyright: ignore[reportArgumentType]
        if field[3] not in "%n":
            next(values, None)


def _printf() -> Callable[..., Any]:
    """SQLite's own, for fields that it writes at once: nothing can stop it within one."""
    plain: list[sqlite3.Connection] = []

    def printf(*given: Any) -> Any:
        text = given[0] if given else None
        text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        if any(width > _WIDEST for width in _widths(text, iter(given[1:]))):
            raise OverflowError  # SQLite's words: string or blob too big
        if not plain:
            plain.append(sqlite3.connect(":memory:", check_same_thread=False))
        marks = ", ".join("?" * len(given))
        return plain[0].execute(f"select printf({marks})", given).fetchone()[0]

    return printf


def add_functions(connection: sqlite3.Connection) -> None:
    """Gives a connection `quantile`, `median` and `p99`, and bounds what one call may take."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    printf = _printf()
    for name in ("printf", "format"):
        connection.create_function(name, -1, printf, deterministic=True)
    aggregates: tuple[tuple[str, int, type[Quantile]], ...] = (
        ("quantile", 2, Quantile), ("median", 1, Median), ("p99", 1, P99),
    )  # fmt: skip
    for name, arguments, aggregate in aggregates:
        connection.create_aggregate(name, arguments, aggregate)  # pyright: ignore[reportArgumentType]
