"""A map from byte ranges to items: each byte has one item, neighbours may differ."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class IntervalMap(Generic[T]):
    """All bytes from 0 on, cut into segments that have one item each.

    Assigning costs amortised O(log n) searches: it adds at most two cuts and removes those it
    covers. Where a segment is cut in two, `split` makes the second part's item from the first's.
    """

    def __init__(self, item: T, split: Callable[[T], T] = lambda item: item):
        self._starts = [0]
        self._items = [item]
        self._split = split

    def __len__(self) -> int:
        return len(self._starts)

    def overlapping(self, low: int, high: int) -> list[T]:
        """The items of all segments that share a byte with ``low <= byte < high``."""
        first = bisect_right(self._starts, low) - 1
        last = bisect_left(self._starts, high)
        return self._items[first:last]

    def segments(self, low: int, high: int) -> list[tuple[int, int, T]]:
        """(start, end, item) of all parts of ``low <= byte < high``."""
        first = bisect_right(self._starts, low) - 1
        last = bisect_left(self._starts, high)
        cuts = [low, *self._starts[first + 1 : last], high]
        return list(zip(cuts, cuts[1:], self._items[first:last], strict=False))

    def cut(self, low: int, high: int) -> list[T]:
        """Cuts so that ``low <= byte < high`` is made of whole segments, and gives their items."""
        first = self._cut_at(low)
        return self._items[first : self._cut_at(high)]

    def assign(self, low: int, high: int, item: T) -> None:
        """Gives all of ``low <= byte < high`` the item."""
        first = self._cut_at(low)
        last = self._cut_at(high)
        self._starts[first:last] = [low]
        self._items[first:last] = [item]

    def _cut_at(self, position: int) -> int:
        """The index of the segment that starts at `position`, which it makes if need be."""
        k = bisect_left(self._starts, position)
        if k == len(self._starts) or self._starts[k] != position:
            self._starts.insert(k, position)
            self._items.insert(k, self._split(self._items[k - 1]))
        return k
