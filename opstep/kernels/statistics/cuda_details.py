"""Quantiles on CUDA: keys are sorted, then looked up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from opstep.kernels.statistics.cuda_merging import CHUNK, THREADS, merge_runs, sort_chunks
from opstep.kernels.statistics.keys import as_sort_keys, key_of
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.ir.types import i32, i64


def quantiles(
    x: Arg, enabled: Arg, words: Arg, percents: tuple[int, ...], infinity: int
) -> list[Grid | Launch]:
    """Behind the number of finite elements, of x and then of |x|, the keys between which each of
    the percents lies; those of |x| are negated. `infinity`: its key, 0 where x has none.
    """
    n = x.size
    tiles = -(-n // CHUNK)
    keys, places = ([Scratch(t, max(n, 1)) for _ in range(2)] for t in (i64, i32))
    first = (as_sort_keys(x), enabled, keys[0], places[0], n)
    made: list[Grid | Launch] = [
        Grid(chunks_sorter(key_of(x.dtype)), *first, grid=tiles, block=THREADS)
    ]
    at, width = 0, CHUNK
    while width < n:
        arrays = (keys[at], places[at], keys[1 - at], places[1 - at])
        made.append(Grid(merge_where, enabled, *arrays, n, width, grid=tiles, block=THREADS))
        at, width = 1 - at, 2 * width
    made.append(Launch(look_up, enabled, keys[at], words, percents, len(percents), n, infinity,
                       units=1))  # fmt: skip
    return made


@cache
def chunks_sorter(key: Callable):
    sort = sort_chunks(key)

    def sort_where(x, enabled, keys, places, n):
        if enabled[0] != 0:
            sort(x, keys, places, n)

    return sort_where


def merge_where(enabled, keys, places, into_keys, into_places, n, width):
    if enabled[0] != 0:
        merge_runs(keys, places, into_keys, into_places, n, width)


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
    """Where the first one stands that is greater."""
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
