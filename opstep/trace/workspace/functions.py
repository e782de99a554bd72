"""Functions that SQL has over a workspace, beside SQLite's own: quantiles of a column."""

from __future__ import annotations

import sqlite3


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


def add_functions(connection: sqlite3.Connection) -> None:
    """Gives a connection `quantile`, `median` and `p99`."""
    aggregates: tuple[tuple[str, int, type[Quantile]], ...] = (
        ("quantile", 2, Quantile), ("median", 1, Median), ("p99", 1, P99),
    )  # fmt: skip
    for name, arguments, aggregate in aggregates:
        connection.create_aggregate(name, arguments, aggregate)  # pyright: ignore[reportArgumentType]
