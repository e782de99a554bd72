"""Numbers that stand for frames, scopes and values in messages, for as long as a stop lasts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from opstep.dap.registry import DapError

T = TypeVar("T")

STALE = 2000


class References:
    """Of one session. A number is never given twice, so one from an earlier stop is told from one
    of this stop ("Lifetime of Objects References" in the protocol's overview).
    """

    def __init__(self) -> None:
        self._last = 0
        self._values: dict[int, Any] = {}
        self._numbers: dict[Hashable, int] = {}

    def add(self, value: Any, key: Hashable | None = None) -> int:
        """A number for the value, above 0. The same `key` gives the same number within a stop,
        which stands for the newest value.
        """
        if key is not None and key in self._numbers:
            self._values[self._numbers[key]] = value
            return self._numbers[key]
        self._last += 1
        self._values[self._last] = value
        if key is not None:
            self._numbers[key] = self._last
        return self._last

    def get(self, number: int, kind: type[T], what: str) -> T:
        """What the number stands for. Raises `DapError` where that is gone, or not a `kind`."""
        value = self._values.get(number)
        if not isinstance(value, kind):
            stale = 0 < number <= self._last and value is None
            why = "the run went on since" if stale else "there is no such"
            raise DapError(f"{what} {number}: {why}", STALE)
        return value

    def clear(self) -> None:
        """The run goes on: nothing of this stop holds any more."""
        self._values.clear()
        self._numbers.clear()
