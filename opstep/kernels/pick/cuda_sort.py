"""Stable sorts along an axis on CUDA.

Rows of up to `CHUNK` elements are sorted in shared memory: short ones by Batcher's bitonic network
(1968) of pairs, the key and the place, of which no two are equal, so any network sorts them stably;
others by digits, a block a row. `cuda_radix` sorts longer rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.pick.cuda_keys import (
    carried,
    element,
    first_of,
    into_pairs,
    into_results,
    keys_of,
    place,
)
from opstep.kernels.pick.cuda_radix import sort_long
from opstep.kernels.pick.cuda_ranking import (
    COUNTS,
    DIGITS,
    LANES,
    THREADS,
    TOP,
    WARPS,
    Into,
    Rows,
    arguments,
    first_item,
    ranker,
    reader,
)
from opstep.runtime.device.cuda.compiling.names import cuda, pointer_to
from opstep.runtime.device.launch import Arg, Grid, Scratch

SHORT = {1: 256, 2: 256, 4: 256, 8: 128}  # elements that the network sorts, by the bytes of a key
WORDS = 2 * THREADS  # of the rows that a block sorts at once: pairs of which a word has room
WINDOW = 2 * LANES  # words that a warp orders alone
CHUNK = {1: 4096, 2: 4096, 4: 4096, 8: 2048}  # by the bytes of a key
_MOST = 0x7FFFFFFFFFFFFFFF


def sort(
    x: Arg, values: Arg | None, indices: Arg, shape: tuple[int, int, int], kept: int,
    descending: bool,
) -> list[Grid]:  # fmt: skip
    """The first `kept` of each sequence in order. `shape`: elements before the axis, along it,
    behind it.
    """
    before, n, inner = shape
    keys = keys_of(x.stored, descending)
    source = carried(x)
    rows = Rows(source, keys.of, keys.carrier, x.stored.bits, before * inner, n, inner)
    target = carried(values) if values else source
    put = into_results(keys, values is not None)
    return sort_rows(rows, Into(put, target, indices, kept, inner, source, n))


def sorted_pairs(rows: Rows) -> tuple[list[Grid], Scratch, Scratch]:
    """(launches, keys, what comes with them): pairs [count, n] in order."""
    size = rows.count * rows.n
    keys, held = Scratch(rows.carrier, size), Scratch(rows.held_dtype, size)
    return sort_rows(rows, Into(into_pairs, keys, held, rows.n)), keys, held


def sort_rows(rows: Rows, into: Into) -> list[Grid]:
    n, value = rows.n, place if rows.held is None else element
    args = arguments(rows, into)
    if n <= SHORT[rows.carrier.itemsize]:
        room = max(32, 1 << (n - 1).bit_length())
        if rows.carrier.itemsize == 8:
            kernel = sort_short(rows.key, value, into.put, room)
            return [Grid(kernel, *args, grid=rows.count, block=min(room // 2, THREADS))]
        kernel, grid = sort_words(rows.key, value, into.put, room), -(-rows.count * room // WORDS)
        return [Grid(kernel, *args, rows.count, grid=grid, block=THREADS)]
    if n <= CHUNK[rows.carrier.itemsize]:
        items = -(-n // THREADS)
        items = max(1, 1 << (items - 1).bit_length())
        passes, flip = -(-rows.bits // 8), TOP if rows.signed else 0
        kernel = sort_whole(rows.key, value, into.put, rows.carrier.numpy.type, items)
        return [Grid(kernel, *args, passes, flip, grid=rows.count, block=THREADS, blocks=3)]
    return sort_long(rows, into)


# --- kernels --------------------------------------------------------------------------------------


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
def sort_short(key: Callable, value: Callable, put: Callable, room: int) -> Callable:
    """A block a row."""

    order_pairs = network(room)

    def sort_short(source, held, x, a, b, n, inner, kept, apart, x_n):
        keys = cuda.shared.array(room, np.int64)
        places = cuda.shared.array(room, np.int32)
        row = np.int64(cuda.blockIdx.x)
        start, target = first_of(row, n, inner), first_of(row, kept, apart)
        origin = first_of(row, x_n, apart)
        for i in range(cuda.threadIdx.x, room, cuda.blockDim.x):
            keys[i] = key(source[start + i * inner]) if i < n else np.int64(_MOST)
            places[i] = i
        order_pairs(keys, places)
        for i in range(cuda.threadIdx.x, kept, cuda.blockDim.x):
            at = np.int64(places[i])
            own = value(held, row, at, n, inner)
            put(x, a, b, origin, target, i, keys[i], own, apart)

    return sort_short


@cache
def sort_words(key: Callable, value: Callable, put: Callable, room: int) -> Callable:
    """A block some rows: a key and its place are one word, and a thread orders two a step."""

    def order_words(words):
        t = cuda.threadIdx.x
        size = 2
        while size <= room:
            stride = size // 2
            while stride > 0:
                if stride >= LANES and size > WINDOW:
                    cuda.syncthreads()
                else:
                    cuda.syncwarp()
                i = 2 * t - (t & (stride - 1))
                a, b = words[i], words[i + stride]
                if (a > b) == ((i & (room - 1) & size) == 0):
                    words[i], words[i + stride] = b, a
                stride //= 2
            size *= 2

    def sort_words(source, held, x, a, b, n, inner, kept, apart, x_n, count):
        words = pointer_to(cuda.shared.array(WORDS, np.int64))
        first = np.int64(cuda.blockIdx.x) * (WORDS // room)
        for i in range(cuda.threadIdx.x, WORDS, THREADS):
            row, at = first + i // room, i % room
            words[i] = np.int64(_MOST)
            if row < count and at < n:
                own = np.int64(key(source[first_of(row, n, inner) + at * inner]))
                words[i] = (own << 32) | at
        cuda.syncthreads()
        order_words(words)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, WORDS, THREADS):
            row, at = first + i // room, i % room
            if row < count and at < kept:
                target, origin = first_of(row, kept, apart), first_of(row, x_n, apart)
                p = words[i] & 0xFFFFFFFF
                own = value(held, row, p, n, inner)
                put(x, a, b, origin, target, at, words[i] >> 32, own, apart)

    return sort_words


@cache
def sort_whole(key: Callable, value: Callable, put: Callable, kind: Any, items: int) -> Callable:
    """A block a row, by digits."""
    read, rank_tile = reader(key, kind, items, LANES), ranker(items)
    size = THREADS * items

    def sort_whole(source, held, x, a, b, n, inner, kept, apart, x_n, passes, flip):
        ordered = pointer_to(cuda.shared.array(size, kind))
        ordered_places = pointer_to(cuda.shared.array(size, np.int16))
        starts = pointer_to(cuda.shared.array(DIGITS, np.int32))
        ends = pointer_to(cuda.shared.array(WARPS, np.int32))
        warps = pointer_to(cuda.shared.array(COUNTS, np.int32))
        keys = cuda.local.array(items, kind)
        places = cuda.local.array(items, np.int16)
        ranks = cuda.local.array(items, np.int32)
        row = np.int64(cuda.blockIdx.x)
        start, target = first_of(row, n, inner), first_of(row, kept, apart)
        origin = first_of(row, x_n, apart)
        first = first_item(items)
        read(source, start, first, inner, n, n == size, keys)
        for j in range(items):
            places[j] = first + j * LANES
        for p in range(passes):
            highest = p == passes - 1
            rank_tile(keys, ranks, warps, starts, ends, 8 * p, flip if highest else 0)
            for j in range(items):
                ordered[ranks[j]] = keys[j]
                ordered_places[ranks[j]] = places[j]
            cuda.syncthreads()
            if not highest:
                for j in range(items):
                    keys[j] = ordered[first + j * LANES]
                    places[j] = ordered_places[first + j * LANES]
        for i in range(cuda.threadIdx.x, kept, THREADS):
            at = np.int64(ordered_places[i])
            own = value(held, row, at, n, inner)
            put(x, a, b, origin, target, i, ordered[i], own, apart)

    return sort_whole
