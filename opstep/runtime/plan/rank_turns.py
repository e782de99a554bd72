"""Loops that ranks leave after different numbers of turns, followed once for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# What is known of a value: an array with an element for each rank or one for all, or the axes along
# which ranks have the same.
Fact = np.ndarray | frozenset


class End(NamedTuple):
    """Of a loop, for ranks that leave it together: how much was said in it, what they carry out,
    and how many steps may still be followed.
    """

    said: int
    carried: list[Fact]
    budget: int


class Turns:
    """A loop that ranks leave after different numbers of turns, followed once for all of them."""

    def __init__(self, ranks: np.ndarray):
        self.left: dict[int, tuple[int, int]] = {}  # by rank: which of `ends`, and its place there
        self.ends: list[End] = []
        self.said: list[Any] = []  # a part of a trace
        self.ranks = ranks  # those that are still in it: at the end, those not seen to leave it
        self.budget = 0  # of these, how many steps may still be followed

    def leave(self, out: np.ndarray, end: End) -> list[Fact]:
        """These of the ranks in it are done; what the others carry on."""
        self.left |= {r: (len(self.ends), k) for k, r in enumerate(self.ranks[out].tolist())}
        self.ends.append(end._replace(carried=[_of_ranks(f, out) for f in end.carried]))
        self.ranks = self.ranks[~out]
        return [_of_ranks(f, ~out) for f in end.carried]

    def of(self, ranks: np.ndarray) -> End | None:
        """The end of ranks that leave it together; None where they are not known to."""
        found = [self.left[r] for r in ranks.tolist() if r in self.left]
        if len(found) < len(ranks) or len({end for end, _ in found}) > 1:
            return None
        end, places = self.ends[found[0][0]], np.array([k for _, k in found])
        return end._replace(carried=[_of_ranks(f, places) for f in end.carried])

    def is_open(self, ranks: np.ndarray) -> bool:
        """Whether none of these was seen to leave it."""
        return set(ranks.tolist()) <= set(self.ranks.tolist())

    def way(self, ranks: np.ndarray) -> np.ndarray:
        return np.array([self.left.get(r, (len(self.ends), 0))[0] for r in ranks.tolist()])


def _of_ranks(fact: Fact, some: np.ndarray) -> Fact:
    return fact[some] if isinstance(fact, np.ndarray) and fact.ndim else fact
