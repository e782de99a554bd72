"""Packs buffers into one arena: each gets an offset so that those alive together do not overlap.

Best fit in order of time runs in O(n log n) and is exact for most graphs. Where it leaves gaps, and
buffers are few, other orders are tried too: first what lives when most does, longest lived first;
by size (greedy; Pisarchyk, Lee, "Efficient memory management for deep neural net inference", 2020).
The smallest wins.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from opstep.runtime.plan.cost import SYNC_NS

ALIGNMENT = 64
FOREVER = 1 << 62  # of outputs: later than any step
LITTLE = 64 * 1024  # bytes for which no stream waits for another
_SLACK_PART = 4  # long dead: for a quarter of the time that has passed, and some synchronisations
_SLACK_NS = 4 * SYNC_NS
_TIGHT = 1.02  # a packing within this of the lower bound is not improved
_MAX_ORDERED = 2_000  # blocks up to which packings in other orders are tried: quadratic time
_MAX_ROUNDS = 20  # of packings in an order
_MAX_PAIRS = 100_000  # pairs of blocks in all those rounds: a bound on the time that they take
_MAX_HOLES = 32  # holes looked at for one that other streams are done with
_MAX_MERGED = 256  # holes up to which neighbours are merged before the arena grows


def rounded(nbytes: int) -> int:
    """Bytes that a buffer takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_long_dead(end, now):
    """Whether what should end at `end` is over by `now`, even if the estimate is somewhat off."""
    return end + end // _SLACK_PART + _SLACK_NS <= now


@dataclass(slots=True)
class Blocks:
    """Columns, in order of `begin`. `size` is rounded; a block lives for ``begin <= time < end``.

    With several streams ``users[k]`` has for each stream the number of the last step there that
    touches the block, and ``clocks[k][s]`` how many steps of stream s are over when it is first
    written. If `patient`, bytes go from stream to stream only where they are long dead.
    """

    size: list[int]
    begin: list[int]
    end: list[int]
    users: list[dict[int, int]] | None = None
    clocks: list[tuple[int, ...]] | None = None
    patient: bool = True

    def may_follow(self, k: int, end: int, users: dict[int, int] | None) -> bool:
        """Whether block k may use bytes whose last use ended at `end`, and was that of `users`."""
        if end > self.begin[k]:
            return False
        if users is None or self.clocks is None:
            return True
        clock = self.clocks[k]
        for s, n in users.items():
            if clock[s] < n:
                return not self.patient or is_long_dead(end, self.begin[k])
        return True


class Packing(NamedTuple):
    """Offsets of the blocks, the arena's bytes, the largest sum of blocks that live at once, and
    when that is.
    """

    offsets: list[int]
    arena: int
    peak: int
    when: int


def pack(blocks: Blocks) -> Packing:
    """Offsets, multiples of `ALIGNMENT`."""
    best = _best_fit(blocks)
    if best.arena > max(LITTLE, best.peak * _TIGHT) and blocks.users is not None:
        blocks = replace(blocks, patient=False)
        best = min(best, _best_fit(blocks), key=lambda p: p.arena)
    if best.arena > best.peak * _TIGHT and len(blocks.size) <= _MAX_ORDERED:
        best = _one_by_one(blocks, best)
    return best


# --- best fit in time -----------------------------------------------------------------------------


def _best_fit(blocks: Blocks) -> Packing:
    size, begin, end, seen = blocks.size, blocks.begin, blocks.end, blocks.users
    holes = _Holes()
    offsets: list[int] = []
    live = peak = when = dead = 0
    by_end = sorted(range(len(size)), key=end.__getitem__)
    for k, now in enumerate(begin):
        while end[by_end[dead]] <= now:
            j = by_end[dead]
            dead += 1
            if size[j]:
                holes.free(_Hole(offsets[j], size[j], end[j], seen[j] if seen else None))
                live -= size[j]
        offsets.append(holes.allocate(blocks, k) if size[k] else 0)
        live += size[k]
        if live > peak:
            peak, when = live, now
    return Packing(offsets, holes.top, peak, when)


class _Hole:
    """Free bytes, and who used them last."""

    __slots__ = ("end", "size", "start", "users")

    def __init__(self, start: int, size: int, end: int, users: dict[int, int] | None):
        self.start = start
        self.size = size
        self.end = end
        self.users = users

    def merged(self, right: _Hole) -> _Hole:
        """This one and its right neighbour."""
        users = self.users
        if users is not None and right.users is not None:
            streams = users.keys() | right.users.keys()
            users = {s: max(users.get(s, 0), right.users.get(s, 0)) for s in streams}
        return _Hole(self.start, self.size + right.size, max(self.end, right.end), users)


class _Holes:
    """The free bytes below `top`; neighbours are merged if the same streams used them last."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []  # (size, start)
        self._at: dict[int, _Hole] = {}
        self._ending_at: dict[int, _Hole] = {}

    def free(self, hole: _Hole) -> None:
        left = self._ending_at.get(hole.start)
        if left is not None and _same_streams(left, hole):
            self._remove(left)
            hole = left.merged(hole)
        right = self._at.get(hole.start + hole.size)
        if right is not None and _same_streams(hole, right):
            self._remove(right)
            hole = hole.merged(right)
        self._add(hole)

    def allocate(self, blocks: Blocks, k: int) -> int:
        """The offset of bytes for block k: the smallest hole that will do, else the arena grows."""
        size = blocks.size[k]
        at = bisect_left(self._by_size, (size, -1))
        for _, start in self._by_size[at : at + _MAX_HOLES]:
            hole = self._at[start]
            if blocks.may_follow(k, hole.end, hole.users):
                return self._cut(hole, size)
        if blocks.users is not None and len(self._at) <= _MAX_MERGED:
            hole = self._merge(blocks, k)
            if hole is not None:
                return self._cut(hole, size)
        hole = self._ending_at.get(self.top)
        if hole is not None and blocks.may_follow(k, hole.end, hole.users):
            self._remove(hole)
            self.top = hole.start + size
            return hole.start
        self.top += size
        return self.top - size

    def _cut(self, hole: _Hole, size: int) -> int:
        self._remove(hole)
        if hole.size > size:
            self._add(_Hole(hole.start + size, hole.size - size, hole.end, hole.users))
        return hole.start

    def _merge(self, blocks: Blocks, k: int) -> _Hole | None:
        """Merges neighbours that block k may follow, up to the first hole that will do."""
        for start in sorted(self._at):
            hole = self._at.get(start)
            if hole is None or not blocks.may_follow(k, hole.end, hole.users):
                continue
            right = self._at.get(hole.start + hole.size)
            while right is not None and blocks.may_follow(k, right.end, right.users):
                self._remove(hole)
                self._remove(right)
                hole = hole.merged(right)
                self._add(hole)
                right = self._at.get(hole.start + hole.size)
            if hole.size >= blocks.size[k]:
                return hole
        return None

    def _add(self, hole: _Hole) -> None:
        insort(self._by_size, (hole.size, hole.start))
        self._at[hole.start] = self._ending_at[hole.start + hole.size] = hole

    def _remove(self, hole: _Hole) -> None:
        del self._by_size[bisect_left(self._by_size, (hole.size, hole.start))]
        del self._at[hole.start]
        del self._ending_at[hole.start + hole.size]


def _same_streams(a: _Hole, b: _Hole) -> bool:
    return a.users is None or b.users is None or a.users.keys() == b.users.keys()


# --- one by one, in an order ----------------------------------------------------------------------


def _one_by_one(blocks: Blocks, found: Packing) -> Packing:
    """In some orders, each again and again with those first that stuck out at the top."""
    size, begin, peak, when = blocks.size, blocks.begin, found.peak, found.when
    lasts = [e - b for b, e in zip(begin, blocks.end, strict=True)]
    others = [not b <= when < e for b, e in zip(begin, blocks.end, strict=True)]
    conflicts = _conflicts(blocks)
    rounds = min(_MAX_ROUNDS, _MAX_PAIRS // (1 + sum(map(len, conflicts))))
    everything = range(len(size))
    best = found
    for key in (  # two with what lives at the peak first, longest lived first
        lambda k: (others[k], -lasts[k] * (size[k] if others[k] else 1)),
        lambda k: (others[k], -size[k] if others[k] else -lasts[k], begin[k]),
        lambda k: (-size[k], begin[k]),
    ):
        order = sorted(everything, key=key)
        for _ in range(1 + rounds):
            offsets, arena = _in_order(size, order, conflicts)
            if arena < best.arena:
                best = found._replace(offsets=offsets, arena=arena)
            if arena <= peak * _TIGHT:
                return best
            order = _those_on_top_first(order, offsets, size, arena)
    return best


def _conflicts(blocks: Blocks) -> list[list[int]]:
    """For each block those that it must not share bytes with."""
    import numpy as np  # here: planning a chain needs no arrays, and no time to import them

    begin, end = np.array(blocks.begin), np.array(blocks.end)
    before = end[:, None] <= begin
    if blocks.users is not None and blocks.clocks is not None:
        streams = range(len(blocks.clocks[0]))
        seen = np.array([[s.get(t, 0) for t in streams] for s in blocks.users])
        ordered = (seen[:, None, :] <= np.array(blocks.clocks)).all(axis=2)
        if blocks.patient:
            before &= ordered | is_long_dead(end[:, None], begin)
    conflict = ~(before | before.T)
    np.fill_diagonal(conflict, False)
    return [np.nonzero(row)[0].tolist() for row in conflict]


def _in_order(
    size: Sequence[int], order: Sequence[int], conflicts: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Places blocks in this order, each into the smallest gap that its conflicts leave."""
    offset = [-1] * len(order)
    arena = 0
    for k in order:
        nbytes, chosen, least = size[k], -1, -1
        top = 0  # of the conflicts so far
        for low, j in sorted([(offset[j], j) for j in conflicts[k] if offset[j] >= 0]):
            gap = low - top
            if gap >= nbytes and (least < 0 or gap < least):
                chosen, least = top, gap
            top = max(top, low + size[j])
        offset[k] = top if chosen < 0 else chosen
        arena = max(arena, offset[k] + nbytes)
    return offset, arena


def _those_on_top_first(order: list[int], offset: list[int], size: list[int], arena: int):
    return sorted(order, key=lambda k: offset[k] + size[k] < arena)
