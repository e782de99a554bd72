"""Quantiles on CUDA: keys are sorted, then looked up, by launches that may be turned off."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from opstep.kernels.pick.cuda_sort import Rows, sorted_pairs
from opstep.kernels.statistics.keys import as_sort_keys, key_of
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Launch


def quantiles(
    x: Arg, enabled: Arg, words: Arg, percents: tuple[int, ...], infinity: int
) -> list[Grid | Launch]:
    """After the number of finite elements, of x and then of |x|, the keys between which each of
    the percents lies; those of |x| are negated. `infinity`: its key, 0 where x has none.
    """
    n, unsigned = x.size, x.dtype.kind in "ub"
    carrier = CARRIERS[x.stored.itemsize * (2 if unsigned else 1)]
    rows = Rows(as_sort_keys(x), key_of(x.dtype), carrier, x.dtype.bits + unsigned, 1, n)
    sorting, keys, _ = sorted_pairs(rows)
    args = (enabled, keys, words, percents, len(percents), n, infinity)
    return [*map(partial(where_enabled, enabled), sorting), Launch(look_up, *args, units=1)]


def where_enabled(enabled: Arg, launch: Grid) -> Grid:
    """The same launch, which does nothing where `enabled` is 0."""
    kernel = guarded(launch.kernel)
    size = {"grid": launch.grid, "block": launch.block, "blocks": launch.blocks}
    return Grid(kernel, enabled, *launch.args, **size)


@cache
def guarded(kernel: Callable) -> Callable:
    def run(enabled, rest):
        if enabled[0] != 0:
            kernel(*rest)

    run.__name__ = kernel.__name__
    return run


def look_up(enabled, keys, words, percents, count, n, infinity, lo, hi):
    if enabled[0] == 0:
        return
    begin, end = 0, n
    if infinity != 0:
        begin, end = first_above(keys, 0, n, -infinity), first_above(keys, 0, n, infinity - 1)
    m = end - begin
    words[0] = m
    if m == 0:
        for k in range(4 * count):
            words[1 + k] = 0
        return
    negative = first_above(keys, begin, end, -1)
    for q in range(count):
        for above in range(2):
            rank = min(percents[q] * (m - 1) // 100 + above, m - 1)
            words[1 + 2 * q + above] = keys[begin + rank]
            words[1 + 2 * (count + q) + above] = magnitude(keys, begin, negative, end, rank)


def first_above(keys, lo, hi, key):
    """The place of the first one that is greater."""
    while lo < hi:
        middle = (lo + hi) // 2
        if keys[middle] > key:
            hi = middle
        else:
            lo = middle + 1
    return lo


def magnitude(keys, begin, negative, end, rank):
    """The key of that rank by magnitude, negated. Sizes go up from `negative` to either side: of
    those before it `lo` are among the first `rank`.
    """
    lo, hi = max(0, rank - (end - negative)), min(rank, negative - begin)
    while lo < hi:
        middle = (lo + hi) // 2
        if keys[negative - 1 - middle] > -keys[negative + rank - middle - 1]:
            lo = middle + 1
        else:
            hi = middle
    left, right = negative - 1 - lo, negative + rank - lo
    if right >= end or (left >= begin and keys[left] > -keys[right]):
        return keys[left]
    return -keys[right]
