"""A tensor that ranks should have alike, compared over them, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from opstep.runtime.expressions.text import value_text


class Difference(NamedTuple):
    """What `ranks` have otherwise than most: `count` elements, the first of them at `first`, where
    they have `value`.
    """

    ranks: list[int]
    count: int
    first: tuple[int, ...]
    value: np.generic
    shape: tuple[int, ...] | None = None  # where that is another one


class Comparison(NamedTuple):
    """`alike`: the ranks that most agree with, or the first of as many; `array`: what they have."""

    alike: list[int]
    array: np.ndarray
    others: list[Difference]

    def lines(self, name: str) -> list[str]:
        """What is to be told, without a line end."""
        alike = listed(self.alike)
        if not self.others:
            return [f"{name} is the same on {alike}"]
        found = []
        for one in self.others:
            on = f"{name} differs on {listed(one.ranks)}"
            if one.shape is not None:
                found.append(f"{on}: it is {list(one.shape)}, on {alike} {list(self.array.shape)}")
                continue
            place = f"element [{', '.join(map(str, one.first))}]" if one.first else "it"
            usual = value_text(self.array[one.first][()])
            found.append(
                f"{on} from {place}: {value_text(one.value)}, on {alike} {usual} "
                f"({one.count:,} of {self.array.size:,} elements)"
            )
        return found


def compared(arrays: Mapping[int, np.ndarray]) -> Comparison:
    """Of at least one rank."""
    classes: list[tuple[np.ndarray, list[int]]] = []
    for rank, array in arrays.items():
        for other, ranks in classes:
            if array.shape == other.shape and not _unlike(array, other).any():
                ranks.append(rank)
                break
        else:
            classes.append((array, [rank]))
    array, alike = max(classes, key=lambda c: (len(c[1]), -c[1][0]))
    others = [_difference(array, a, r) for a, r in classes if r is not alike]
    return Comparison(alike, array, others)


def _difference(usual: np.ndarray, array: np.ndarray, ranks: list[int]) -> Difference:
    if array.shape != usual.shape:
        return Difference(ranks, 0, (), array.dtype.type(0), array.shape)
    unlike = _unlike(array, usual)
    first = np.unravel_index(int(unlike.argmax()), array.shape)
    place = tuple(map(int, first))
    return Difference(ranks, int(np.count_nonzero(unlike)), place, array[place][()])


def _unlike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements have other bits."""
    word = f"u{a.dtype.itemsize}"
    return np.ascontiguousarray(a).view(word) != np.ascontiguousarray(b).view(word)


def listed(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``"""
    parts: list[str] = []
    k = 0
    while k < len(ranks):
        end = k
        while end + 1 < len(ranks) and ranks[end + 1] == ranks[end] + 1:
            end += 1
        joint = ", " if end == k + 1 else "-"
        parts.append(str(ranks[k]) if end == k else f"{ranks[k]}{joint}{ranks[end]}")
        k = end + 1
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(parts)}"
