"""Stable sorts along an axis on CUDA.

What is sorted are pairs: a key, an integer of the wanted order, and the place of the element, which
decides between equal keys. So no two pairs are equal, and any network sorts them stably. A block
sorts up to `CHUNK` pairs in shared memory (Batcher's bitonic network, 1968); longer rows are sorted
in chunks, and these merged, two runs at a time, by blocks that find where their piece of the result
begins in either run (Green, McColl and Bader's merge path, 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.runtime.device.builtin import float_to_bits
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import DType, i32, i64

CHUNK = 2048
THREADS = 256
_MOST = 0x7FFFFFFFFFFFFFFF


def sort(
    x: Arg, values: Arg | None, indices: Arg, shape: tuple[int, int, int], kept: int,
    descending: bool,
) -> list[Grid]:  # fmt: skip
    """The first `kept` of each sequence in order. `shape`: elements before the axis, along it,
    behind it.
    """
    before, n, inner = shape
    rows, key = before * inner, key_of(x.dtype, descending)
    into = (values or x, values is not None, indices)
    if n <= CHUNK:
        room = max(64, 1 << (n - 1).bit_length())
        kernel = sort_whole(key, room)
        args = (x, *into, n, kept, inner)
        return [Grid(kernel, *args, grid=rows, block=min(room // 2, THREADS))]
    launches, _, places = sorted_pairs(sort_chunks(key), (x,), rows, n, inner)
    count = rows * kept
    args = (x, *into, places, n, kept, inner, count)
    return [*launches, Grid(pick_sorted, *args, grid=-(-count // THREADS), block=THREADS)]


def sorted_pairs(
    chunks: Callable, operands: tuple, rows: int, n: int, inner: int
) -> tuple[list[Grid], Scratch, Scratch]:
    """(launches, keys, places): pairs of rows of n in order, [rows, n], made by the kernel `chunks`
    from operands and merged.
    """
    keys = Scratch(i64, rows * n), Scratch(i64, rows * n)
    places = Scratch(i32, rows * n), Scratch(i32, rows * n)
    tiles = -(-n // CHUNK)
    grid = rows * tiles
    args = (*operands, keys[0], places[0], n, inner, tiles)
    launches = [Grid(chunks, *args, grid=grid, block=THREADS)]
    at, width = 0, CHUNK
    while width < n:
        arrays = (keys[at], places[at], keys[1 - at], places[1 - at])
        launches.append(Grid(merge_runs, *arrays, n, width, tiles, grid=grid, block=THREADS))
        at, width = 1 - at, 2 * width
    return launches, keys[at], places[at]


# --- keys -----------------------------------------------------------------------------------------


@cache
def key_of(dtype: DType, descending: bool) -> Callable:
    """An integer of the order wanted; NaN is larger than anything else, and -0.0 equals 0.0."""
    floating, wide = dtype.is_float, dtype.itemsize == 8

    def key(v):
        k = np.int64(0)
        if floating:
            if v != v:
                k = np.int64(_MOST)
            elif v != 0.0:
                k = np.int64(float_to_bits(v))
                k ^= (k >> 63) & (_MOST if wide else 0x7FFFFFFF)
        else:
            k = np.int64(v)
        return ~k if descending else k

    return key


def first_of(row, n, inner):
    """The first element of a sequence."""
    outer = row // inner
    return outer * n * inner + row - outer * inner


# --- in shared memory -----------------------------------------------------------------------------


@cache
def network(room: int):
    """Sorts `room` pairs, a power of 2, by all threads of a block."""
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
def sort_whole(key: Callable, room: int):
    """A block a sequence."""
    order_pairs = network(room)

    def sort_rows(x, values, with_values, indices, n, kept, inner):
        keys = cuda.shared.array(room, np.int64)
        places = cuda.shared.array(room, np.int32)
        start = first_of(np.int64(cuda.blockIdx.x), n, inner)
        for i in range(cuda.threadIdx.x, room, cuda.blockDim.x):
            keys[i] = key(x[start + i * inner]) if i < n else np.int64(_MOST)
            places[i] = i
        order_pairs(keys, places)
        into = first_of(np.int64(cuda.blockIdx.x), kept, inner)
        for i in range(cuda.threadIdx.x, kept, cuda.blockDim.x):
            place = np.int64(places[i])
            indices[into + i * inner] = place
            if with_values:
                values[into + i * inner] = x[start + place * inner]

    return sort_rows


@cache
def sort_chunks(key: Callable):
    """A block a chunk of a sequence; leaves its pairs."""
    order_pairs = network(CHUNK)

    def sort_chunks(x, into_keys, into_places, n, inner, tiles):
        keys = cuda.shared.array(CHUNK, np.int64)
        places = cuda.shared.array(CHUNK, np.int32)
        row = np.int64(cuda.blockIdx.x) // tiles
        chunk = (cuda.blockIdx.x - row * tiles) * CHUNK
        start = first_of(row, n, inner)
        for i in range(cuda.threadIdx.x, CHUNK, THREADS):
            there = chunk + i < n
            keys[i] = key(x[start + (chunk + i) * inner]) if there else np.int64(_MOST)
            places[i] = chunk + i
        order_pairs(keys, places)
        for i in range(cuda.threadIdx.x, min(CHUNK, n - chunk), THREADS):
            into_keys[row * n + chunk + i] = keys[i]
            into_places[row * n + chunk + i] = places[i]

    return sort_chunks


# --- merging --------------------------------------------------------------------------------------


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


def merge_runs(keys, places, into_keys, into_places, n, width, tiles):
    """A block makes `CHUNK` neighbouring pairs of what two runs of `width` become."""
    held_keys = cuda.shared.array(CHUNK, np.int64)
    held_places = cuda.shared.array(CHUNK, np.int32)
    thread = cuda.threadIdx.x
    row = np.int64(cuda.blockIdx.x) // tiles
    tile = (cuda.blockIdx.x - row * tiles) * CHUNK
    pair = tile // (2 * width) * (2 * width)
    first, second = row * n + pair, row * n + pair + width
    lengths = min(width, n - pair), max(0, min(width, n - pair - width))
    count = min(CHUNK, n - tile)
    begin = from_first_run(keys, places, first, second, lengths, tile - pair)
    end = from_first_run(keys, places, first, second, lengths, tile - pair + count)
    other = tile - pair - begin
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
        into_keys[row * n + tile + rank] = held_keys[i]
        into_places[row * n + tile + rank] = held_places[i]


def pick_sorted(x, values, with_values, indices, places, n, kept, inner, count):
    """A thread an element of the results, in the order of [rows, kept]."""
    t = cuda.grid(1)
    if t < count:
        row = t // kept
        i = t - row * kept
        place = np.int64(places[row * n + i])
        into = first_of(row, kept, inner) + i * inner
        indices[into] = place
        if with_values:
            values[into] = x[first_of(row, n, inner) + place * inner]
