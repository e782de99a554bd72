"""Keys in order, on CUDA, by launches that may be turned off: chunks are sorted, and these merged,
two runs at a time, by blocks that find where their piece of the result begins in either run (Green,
McColl and Bader's merge path, 2012). Places decide between equal keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.runtime.device.cuda.compiling.names import cuda

CHUNK = 2048
THREADS = 256
_MOST = 0x7FFFFFFFFFFFFFFF


@cache
def network(room: int):
    """Sorts `room` pairs, a power of 2, by all threads of a block: Batcher's network (1968)."""
    half = room // 2

    def order_pairs(keys, places):
        size = 2
        while size <= room:
            stride = size // 2
            while stride > 0:
                cuda.syncthreads()
                for t in range(cuda.threadIdx.x, half, cuda.blockDim.x):
                    i = 2 * t - (t & (stride - 1))
                    j = i + stride
                    a, b, p, q = keys[i], keys[j], places[i], places[j]
                    after = a > b or (a == b and p > q)
                    if after == ((i & size) == 0):
                        keys[i], keys[j], places[i], places[j] = b, a, q, p
                stride //= 2
            size *= 2
        cuda.syncthreads()

    return order_pairs


@cache
def sort_chunks(key: Callable):
    """A block a chunk; leaves its pairs."""
    order_pairs = network(CHUNK)

    def sort_chunks(x, into_keys, into_places, n):
        keys = cuda.shared.array(CHUNK, np.int64)
        places = cuda.shared.array(CHUNK, np.int32)
        chunk = np.int64(cuda.blockIdx.x) * CHUNK
        for i in range(cuda.threadIdx.x, CHUNK, THREADS):
            keys[i] = key(x[chunk + i]) if chunk + i < n else np.int64(_MOST)
            places[i] = chunk + i
        order_pairs(keys, places)
        for i in range(cuda.threadIdx.x, min(CHUNK, n - chunk), THREADS):
            into_keys[chunk + i] = keys[i]
            into_places[chunk + i] = places[i]

    return sort_chunks


def precedes(keys, places, i, j):
    """Whether pair i is before pair j."""
    a, b = keys[i], keys[j]
    return a < b or (a == b and places[i] < places[j])


def from_first_run(keys, places, first, second, lengths, count):
    """How many of the first `count` pairs of two runs merged are of the first one."""
    lo, hi = max(count - lengths[1], 0), min(count, lengths[0])
    while lo < hi:
        middle = (lo + hi) // 2
        if precedes(keys, places, first + middle, second + count - 1 - middle):
            lo = middle + 1
        else:
            hi = middle
    return lo


def merge_runs(keys, places, into_keys, into_places, n, width):
    """A block makes `CHUNK` neighbouring pairs of what two runs of `width` become."""
    held_keys = cuda.shared.array(CHUNK, np.int64)
    held_places = cuda.shared.array(CHUNK, np.int32)
    thread = cuda.threadIdx.x
    tile = np.int64(cuda.blockIdx.x) * CHUNK
    first = tile // (2 * width) * (2 * width)
    second = first + width
    lengths = min(width, n - first), max(0, min(width, n - second))
    count = min(CHUNK, n - tile)
    begin = from_first_run(keys, places, first, second, lengths, tile - first)
    end = from_first_run(keys, places, first, second, lengths, tile - first + count)
    other = tile - first - begin
    mine = end - begin
    for i in range(thread, count, THREADS):
        p = first + begin + i if i < mine else second + other + i - mine
        held_keys[i], held_places[i] = keys[p], places[p]
    cuda.syncthreads()
    for i in range(thread, count, THREADS):
        # the rank of a pair: its place in its own run, and how many of the other one are before it
        lo, hi = (mine, count) if i < mine else (0, mine)
        start = lo
        while lo < hi:
            middle = (lo + hi) // 2
            if precedes(held_keys, held_places, middle, i):
                lo = middle + 1
            else:
                hi = middle
        rank = (i if i < mine else i - mine) + lo - start
        into_keys[tile + rank] = held_keys[i]
        into_places[tile + rank] = held_places[i]
