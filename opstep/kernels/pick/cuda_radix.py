"""Stable sorts of long rows on CUDA, by 8 bits of the keys a pass, from the lowest on.

A pass takes three launches, without a wait between blocks: a block counts the digits of a tile; the
counts of each digit are added up over the tiles of a row; and a block puts a tile in order, in
shared memory, from where neighbours of one digit are written together (Satish, Harris and Garland,
2009). The first pass makes the keys as it reads, and the last one may write something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.pick.cuda_keys import element, first_of, into_pairs, itself, place
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
    sum_before,
)
from opstep.runtime.device.builtin import atomic_add
from opstep.runtime.device.cuda.compiling.names import cuda, digit_of, pointer_to
from opstep.runtime.device.launch import Grid, Scratch
from opstep.runtime.ir.types import i32

ITEMS = 16  # of a tile for each thread, where a pair has up to 8 bytes
RESIDENT = 3  # blocks of a multiprocessor that bring tiles in order
AHEAD = 8  # counts that are read together
FEW = 8  # tiles of a row whose counts a thread adds up alone
COPIES = 4  # of the counts of a block, so that warps seldom meet
BINS = COPIES * DIGITS


def sort_long(rows: Rows, into: Into) -> list[Grid]:
    size = rows.count * rows.n
    wide = rows.carrier.itemsize + rows.held_dtype.itemsize > 8
    items = max(1, ITEMS // 2) if wide else ITEMS
    tiles = -(-rows.n // (items * THREADS))
    passes = -(-rows.bits // 8)
    pairs = [(Scratch(rows.carrier, size), Scratch(rows.held_dtype, size)) for _ in range(2)]
    counts = Scratch(i32, rows.count * DIGITS * tiles)
    totals = Scratch(i32, rows.count * DIGITS)
    launches: list[Grid] = []
    for k in range(passes):
        last = k == passes - 1
        to = into if last else Into(into_pairs, *pairs[k % 2], rows.n)
        digits = (8 * k, TOP if last and rows.signed else 0)
        launches += _pass(rows, to, items, tiles, counts, totals, digits)
        rows = rows._replace(source=to.a, key=itself, inner=1, held=to.b)
    return launches


def _pass(
    rows: Rows, to: Into, items: int, tiles: int, counts: Scratch, totals: Scratch,
    digits: tuple[int, int],
) -> list[Grid]:  # fmt: skip
    grid, ends = rows.count * tiles, (tiles, *digits)
    kind, held_kind = rows.carrier.numpy.type, rows.held_dtype.numpy.type
    value = place if rows.held is None else element
    count = Grid(
        *(count_digits(rows.key, kind, items), rows.source, counts, rows.n, rows.inner, *ends),
        grid=grid,
        block=THREADS,
    )
    threads = LANES
    while threads < min(THREADS, tiles // AHEAD):
        threads *= 2
    sums = (counts, totals, tiles)
    add = Grid(add_up, *sums, grid=rows.count * DIGITS, block=threads)
    if tiles <= FEW:
        add = Grid(add_few, *sums, grid=rows.count, block=THREADS)
    move = Grid(
        move_tiles(rows.key, value, to.put, kind, held_kind, items),
        *(*arguments(rows, to), counts, totals, *ends),
        grid=grid,
        block=THREADS,
        blocks=RESIDENT,
    )
    return [count, add, move]


# --- kernels --------------------------------------------------------------------------------------


@cache
def count_digits(key: Callable, kind: Any, items: int) -> Callable:
    """A block a tile: counts [row, digit, tile]."""
    read, size = reader(key, kind, items, THREADS), THREADS * items

    def count_digits(x, counts, n, inner, tiles, shift, flip):
        bins = pointer_to(cuda.shared.array(BINS, np.int32))
        keys = cuda.local.array(items, kind)
        thread = cuda.threadIdx.x
        copy = (thread // LANES) % COPIES * DIGITS
        row = np.int64(cuda.blockIdx.x) // tiles
        tile = cuda.blockIdx.x - row * tiles
        for c in range(COPIES):
            bins[c * DIGITS + thread] = 0
        cuda.syncthreads()
        end = min((tile + 1) * size, n)
        first = tile * size + thread
        read(x, first_of(row, n, inner), first, inner, end, end == (tile + 1) * size, keys)
        for j in range(items):
            if first + j * THREADS < end:
                atomic_add(bins, copy + digit_of(keys[j], shift, flip), 1)
        cuda.syncthreads()
        total = 0
        for c in range(COPIES):
            total += bins[c * DIGITS + thread]
        counts[(row * DIGITS + thread) * tiles + tile] = total

    return count_digits


def add_few(counts, totals, tiles):
    """A block a row, a thread a digit: what is before each tile, and in all."""
    mine = np.int64(cuda.blockIdx.x) * DIGITS + cuda.threadIdx.x
    before = np.int64(0)
    for t in range(mine * tiles, (mine + 1) * tiles):
        count = counts[t]
        counts[t] = before
        before += count
    totals[mine] = before


def add_up(counts, totals, tiles):
    """The same, by a block a digit of a row."""
    ends = pointer_to(cuda.shared.array(WARPS, np.int32))
    found = cuda.local.array(AHEAD, np.int32)
    each = (tiles + cuda.blockDim.x - 1) // cuda.blockDim.x
    base = np.int64(cuda.blockIdx.x) * tiles
    first = min(cuda.threadIdx.x * each, tiles)
    last = min(first + each, tiles)
    own = 0
    for t in range(first, last, AHEAD):
        for j in range(AHEAD):
            own += counts[base + t + j] if t + j < last else 0
    before = np.int64(sum_before(own, ends))
    for t in range(first, last, AHEAD):
        for j in range(AHEAD):
            found[j] = counts[base + t + j] if t + j < last else 0
        for j in range(AHEAD):
            if t + j < last:
                counts[base + t + j] = before
            before += found[j]
    if cuda.threadIdx.x == cuda.blockDim.x - 1:
        totals[cuda.blockIdx.x] = before


@cache
def move_tiles(
    key: Callable, value: Callable, put: Callable, kind: Any, held_kind: Any, items: int
) -> Callable:
    """A block a tile: brings it in order and writes it."""
    read, rank_tile = reader(key, kind, items, LANES), ranker(items)
    size = THREADS * items

    def move_tiles(
        source, held, x, a, b, n, inner, kept, apart, x_n, counts, totals, tiles, shift, flip
    ):
        ordered = pointer_to(cuda.shared.array(size, kind))
        ordered_held = pointer_to(cuda.shared.array(size, held_kind))
        warps = pointer_to(cuda.shared.array(COUNTS, np.int32))
        starts = pointer_to(cuda.shared.array(DIGITS, np.int32))
        offsets = pointer_to(cuda.shared.array(DIGITS, np.int32))
        ends = pointer_to(cuda.shared.array(WARPS, np.int32))
        keys = cuda.local.array(items, kind)
        values = cuda.local.array(items, held_kind)
        ranks = cuda.local.array(items, np.int32)
        thread = cuda.threadIdx.x
        row = np.int64(cuda.blockIdx.x) // tiles
        tile = cuda.blockIdx.x - row * tiles
        end = min((tile + 1) * size, n)
        whole, count = end == (tile + 1) * size, end - tile * size
        first = tile * size + first_item(items)
        read(source, first_of(row, n, inner), first, inner, end, whole, keys)
        mine = row * DIGITS + thread
        offsets[thread] = counts[mine * tiles + tile] + sum_before(totals[mine], ends)
        rank_tile(keys, ranks, warps, starts, ends, shift, flip)
        offsets[thread] = offsets[thread] - starts[thread]
        for j in range(items):
            ordered[ranks[j]] = keys[j]
        for j in range(items):
            i = first + j * LANES
            values[j] = value(held, row, i, n, inner) if whole or i < end else 0
        for j in range(items):
            ordered_held[ranks[j]] = values[j]
        cuda.syncthreads()
        target, origin = first_of(row, kept, apart), first_of(row, x_n, apart)
        for j in range(items):
            i = thread + j * THREADS
            if i < count:
                own = ordered[i]
                at = np.int64(offsets[digit_of(own, shift, flip)] + i)
                if at < kept:
                    put(x, a, b, origin, target, at, own, ordered_held[i], apart)

    return move_tiles
