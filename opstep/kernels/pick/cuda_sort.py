"""Stable sorts along an axis on CUDA.

Several short rows are sorted by a block, in shared memory, by Batcher's bitonic network (1968) of
words of a key and a place, of which no two are equal, so any network sorts them stably. All others
are sorted by digits of 8 bits of the keys, from the lowest on: a block puts a tile in order, in
shared memory. If that is a whole row, it does so for all digits. A longer row takes three launches
a digit, without a wait between blocks: a block counts the digits of a tile; the counts of each
digit are added up over the tiles of a row; and a block writes a tile in order, neighbours of one
digit together (Satish, Harris and Garland, 2009). The first pass makes the keys as it reads, and
the last one may write something else.

A block has as many threads as there are digits. Element j of a thread stands 32 elements after
element j - 1 of it, and the elements of a warp in front of those of the next one, so a warp ranks
32 neighbours at a time, and equal digits keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.move.cuda_copying import reinterpreted
from opstep.kernels.pick.cuda_keys import (
    element,
    first_of,
    into_pairs,
    into_results,
    itself,
    keys_of,
    place,
)
from opstep.runtime.device.builtin import atomic_add
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    digit_of,
    pointer_to,
    rank_of_byte,
    shuffle_from,
    shuffle_up,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import DType, i32

DIGITS = THREADS = 256
LANES = 32
WARPS = THREADS // LANES
COUNTS = WARPS * DIGITS
TOP = 128  # the sign of a key in its highest digit
SHORT = {1: 256, 2: 256, 4: 256, 8: 128}  # elements that the network sorts, by the bytes of a key
WORDS = 2 * THREADS  # of the rows that a block sorts at once
WINDOW = 2 * LANES  # words that a warp orders alone
CHUNK = {1: 4096, 2: 4096, 4: 4096, 8: 2048}  # of a row that is a tile, by the bytes of a key
ITEMS = 16  # of a tile for each thread, where a pair has up to 8 bytes
RESIDENT = 3  # blocks of a multiprocessor that bring tiles in order
AHEAD = 8  # counts that are read together
FEW = 8  # tiles of a row whose counts a thread adds up alone
COPIES = 4  # of the counts of a block, so that warps seldom meet
BINS = COPIES * DIGITS
_MOST = 0x7FFFFFFFFFFFFFFF


class Rows(NamedTuple):
    """Rows to sort: `count` rows of n elements of `source`, `inner` apart, of which `key` makes
    keys of `bits` bits, held as `carrier`; `signed`: the highest is the sign. `held`: what comes
    with the keys, laid out as they are; without it, places in the row.
    """

    source: Arg | Scratch
    key: Callable
    carrier: DType
    bits: int
    count: int
    n: int
    inner: int = 1
    signed: bool = True
    held: Arg | Scratch | None = None

    @property
    def held_dtype(self) -> DType:
        return i32 if self.held is None else self.held.dtype


class Into(NamedTuple):
    """Their target: `put` writes to the arrays a and b the first `kept` of each row, `inner`
    apart. It may look at x, whose rows have n elements, as far apart.
    """

    put: Callable
    a: Arg | Scratch
    b: Arg | Scratch
    kept: int
    inner: int = 1
    x: Arg | Scratch | None = None
    n: int = 0


def arguments(rows: Rows, into: Into) -> tuple:
    """Of both, for kernels: source, held, x, a, b, n, inner, kept, apart, x_n."""
    held = rows.source if rows.held is None else rows.held
    x = rows.source if into.x is None else into.x
    return (rows.source, held, x, into.a, into.b, rows.n, rows.inner, into.kept, into.inner, into.n)


def sort(
    x: Arg, values: Arg | None, indices: Arg, shape: tuple[int, int, int], kept: int,
    descending: bool,
) -> list[Grid]:  # fmt: skip
    """The first `kept` of each sequence in order. `shape`: elements before the axis, along it,
    after it.
    """
    before, n, inner = shape
    keys = keys_of(x.stored, descending)
    source = reinterpreted(x, keys.carrier)
    rows = Rows(source, keys.of, keys.carrier, x.stored.bits, before * inner, n, inner)
    target = reinterpreted(values, keys.carrier) if values else source
    put = into_results(keys, values is not None)
    return sort_rows(rows, Into(put, target, indices, kept, inner, source, n))


def sorted_pairs(rows: Rows) -> tuple[list[Grid], Scratch, Scratch]:
    """(launches, keys, what comes with them): pairs [count, n] in order."""
    size = rows.count * rows.n
    keys, held = Scratch(rows.carrier, size), Scratch(rows.held_dtype, size)
    return sort_rows(rows, Into(into_pairs, keys, held, rows.n)), keys, held


def sort_rows(rows: Rows, into: Into) -> list[Grid]:
    n, size = rows.n, rows.carrier.itemsize
    if n <= SHORT[size]:
        room, value = max(32, 1 << (n - 1).bit_length()), place if rows.held is None else element
        kernel = sort_words(rows.key, value, into.put, room, size == 8)
        grid = -(-rows.count * room // WORDS)
        args = arguments(rows, into)
        return [Grid(kernel, *args, rows.count, grid=grid, block=THREADS)]
    passes = -(-rows.bits // 8)
    if n <= CHUNK[size]:
        items = 1 << (-(-n // THREADS) - 1).bit_length()
        return [_tiles(rows, into, items, 1, None, None, (passes, 0))]
    items = ITEMS if size + rows.held_dtype.itemsize <= 8 else max(1, ITEMS // 2)
    tiles = -(-n // (items * THREADS))
    pairs = [
        (Scratch(rows.carrier, rows.count * n), Scratch(rows.held_dtype, rows.count * n))
        for _ in range(2)
    ]
    counts = Scratch(i32, rows.count * DIGITS * tiles)
    totals = Scratch(i32, rows.count * DIGITS)
    threads = LANES
    while threads < min(THREADS, tiles // AHEAD):
        threads *= 2
    add = Grid(add_up, counts, totals, tiles, grid=rows.count * DIGITS, block=threads)
    if tiles <= FEW:
        add = Grid(add_few, counts, totals, tiles, grid=rows.count, block=THREADS)
    launches: list[Grid] = []
    for k in range(passes):
        last = k == passes - 1
        to = into if last else Into(into_pairs, *pairs[k % 2], n)
        digit = (8 * k, TOP if last and rows.signed else 0)
        kernel = count_digits(rows.key, rows.carrier.numpy.type, items)
        args = (rows.source, counts, n, rows.inner, tiles, *digit)
        count = Grid(kernel, *args, grid=rows.count * tiles, block=THREADS)
        launches += [count, add, _tiles(rows, to, items, tiles, counts, totals, digit)]
        rows = rows._replace(source=to.a, key=itself, inner=1, held=to.b)
    return launches


def _tiles(
    rows: Rows, into: Into, items: int, tiles: int, counts: Scratch | None, totals: Scratch | None,
    digits: tuple[int, int],
) -> Grid:  # fmt: skip
    """Brings tiles in order: of one digit by the counts, or without them of (so many, 0)."""
    alone = counts is None
    kind, held_kind = rows.carrier.numpy.type, rows.held_dtype.numpy.type
    value = place if rows.held is None else element
    if alone:
        digits = (digits[0], TOP if rows.signed else 0)
    kernel = sort_tiles(rows.key, value, into.put, kind, held_kind, items, alone)
    args = (*arguments(rows, into), counts or rows.source, totals or rows.source, tiles, *digits)
    return Grid(kernel, *args, grid=rows.count * tiles, block=THREADS, blocks=RESIDENT)


# --- kernels --------------------------------------------------------------------------------------


@cache
def sort_words(key: Callable, value: Callable, put: Callable, room: int, pairs: bool) -> Callable:
    """A block some rows, and a thread orders two words a step. A word is a key and its place, but
    for wide keys, which have their places beside them: `pairs`.
    """
    beside = WORDS if pairs else 1

    def order_words(words, places):
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
                after = a > b
                if pairs and a == b:
                    after = places[i] > places[i + stride]
                if after == ((i & (room - 1) & size) == 0):
                    words[i], words[i + stride] = b, a
                    if pairs:
                        places[i], places[i + stride] = places[i + stride], places[i]
                stride //= 2
            size *= 2

    def sort_words(source, held, x, a, b, n, inner, kept, apart, x_n, count):
        words = pointer_to(cuda.shared.array(WORDS, np.int64))
        places = pointer_to(cuda.shared.array(beside, np.int32))
        first = np.int64(cuda.blockIdx.x) * (WORDS // room)
        for i in range(cuda.threadIdx.x, WORDS, THREADS):
            row, at = first + i // room, i % room
            words[i] = np.int64(_MOST)
            if row < count and at < n:
                own = np.int64(key(source[first_of(row, n, inner) + at * inner]))
                words[i] = own if pairs else (own << 32) | at
            if pairs:
                places[i] = at
        cuda.syncthreads()
        order_words(words, places)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, WORDS, THREADS):
            row, at = first + i // room, i % room
            if row < count and at < kept:
                target, origin = first_of(row, kept, apart), first_of(row, x_n, apart)
                p = np.int64(places[i]) if pairs else words[i] & 0xFFFFFFFF
                own = value(held, row, p, n, inner)
                put(x, a, b, origin, target, at, words[i] if pairs else words[i] >> 32, own, apart)

    return sort_words


def first_item(items):
    """The place of the first element of a thread in a tile; the next ones are LANES apart."""
    return (cuda.threadIdx.x // LANES) * (LANES * items) + cuda.threadIdx.x % LANES


def sum_before(own, ends):
    """Of the numbers that the threads before this one have; `ends` is shared, a word for each warp.

    It is given: numba links a function with shared memory once for each that calls it.
    """
    lane = cuda.threadIdx.x % LANES
    warp = cuda.threadIdx.x // LANES
    up_to = np.int32(own)
    step = 1
    while step < LANES:
        other = shuffle_up(up_to, step)
        if lane >= step:
            up_to = np.int32(up_to + other)
        step *= 2
    cuda.syncthreads()
    if lane == LANES - 1:
        ends[warp] = up_to
    cuda.syncthreads()
    before = np.int32(up_to - own)
    for w in range(WARPS):
        if w < warp:
            before = np.int32(before + ends[w])
    return before


@cache
def reader(key: Callable, kind: Any, items: int, apart: int) -> Callable:
    """Makes the keys of a thread's elements of a tile, which stand `apart`."""
    pad = np.iinfo(kind).max

    def read(x, start, first, inner, end, whole, keys):
        """Elements from `first` to `end` of a sequence that begins at `start`; `whole` says that
        all threads have all of theirs, whose reads then wait for nothing.
        """
        at, step = start + first * inner, apart * inner
        if whole:
            for j in range(items):
                keys[j] = x[at + j * step]
            for j in range(items):
                keys[j] = key(np.int64(keys[j]))
        else:
            for j in range(items):
                there = first + j * apart < end
                keys[j] = key(np.int64(x[at + j * step])) if there else np.int64(pad)

    return read


@cache
def ranker(items: int) -> Callable:
    """Ranks a tile of `items` elements a thread."""

    def rank_tile(keys, ranks, counts, starts, ends, shift, flip):
        """ranks: the place in the order of digits of each of a thread's keys; starts: of each
        digit, where its first element goes. counts and ends are shared: of each warp, a word
        for each digit, and one.
        """
        thread = cuda.threadIdx.x
        lane, own = thread % LANES, (thread // LANES) * DIGITS
        for w in range(WARPS):
            counts[w * DIGITS + thread] = 0
        for j in range(items):
            rank, last = rank_of_byte(digit_of(keys[j], shift, flip))
            ranks[j] = rank * LANES + last
        cuda.syncthreads()
        for j in range(items):
            rank, last = np.int32(ranks[j] // LANES), np.int32(ranks[j] % LANES)
            before = np.int32(0)
            if lane == last:  # for all of the warp that have its digit
                at = own + digit_of(keys[j], shift, flip)
                before = np.int32(atomic_add(counts, at, rank + 1))
            ranks[j] = rank + shuffle_from(before, last)
            cuda.syncwarp()
        cuda.syncthreads()
        total = np.int32(0)
        for w in range(WARPS):
            count = counts[w * DIGITS + thread]
            counts[w * DIGITS + thread] = total
            total = np.int32(total + count)
        starts[thread] = sum_before(total, ends)
        cuda.syncthreads()
        for j in range(items):
            digit = digit_of(keys[j], shift, flip)
            ranks[j] = ranks[j] + starts[digit] + counts[own + digit]

    return rank_tile


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
def sort_tiles(
    key: Callable, value: Callable, put: Callable, kind: Any, held_kind: Any, items: int,
    alone: bool,
) -> Callable:  # fmt: skip
    """A block a tile: brings it in order and writes it, by the digit from bit `shift` on; `alone`
    by so many digits, where a tile is a row, of which places travel with the keys.
    """
    read, rank_tile = reader(key, kind, items, LANES), ranker(items)
    size, with_keys = THREADS * items, np.int16 if alone else held_kind

    def sort_tiles(
        source, held, x, a, b, n, inner, kept, apart, x_n, counts, totals, tiles, shift, flip
    ):
        ordered = pointer_to(cuda.shared.array(size, kind))
        ordered_held = pointer_to(cuda.shared.array(size, with_keys))
        warps = pointer_to(cuda.shared.array(COUNTS, np.int32))
        starts = pointer_to(cuda.shared.array(DIGITS, np.int32))
        offsets = pointer_to(cuda.shared.array(DIGITS, np.int32))
        ends = pointer_to(cuda.shared.array(WARPS, np.int32))
        keys = cuda.local.array(items, kind)
        values = cuda.local.array(items, with_keys)
        ranks = cuda.local.array(items, np.int32)
        thread = cuda.threadIdx.x
        row = np.int64(cuda.blockIdx.x) // tiles
        tile = cuda.blockIdx.x - row * tiles
        end = min((tile + 1) * size, n)
        whole, count = end == (tile + 1) * size, end - tile * size
        first = tile * size + first_item(items)
        read(source, first_of(row, n, inner), first, inner, end, whole, keys)
        target, origin = first_of(row, kept, apart), first_of(row, x_n, apart)
        if alone:
            for j in range(items):
                values[j] = first + j * LANES
            for p in range(shift):
                highest = p == shift - 1
                rank_tile(keys, ranks, warps, starts, ends, 8 * p, flip if highest else 0)
                for j in range(items):
                    ordered[ranks[j]] = keys[j]
                    ordered_held[ranks[j]] = values[j]
                cuda.syncthreads()
                if not highest:
                    for j in range(items):
                        keys[j] = ordered[first + j * LANES]
                        values[j] = ordered_held[first + j * LANES]
            for i in range(thread, kept, THREADS):
                own = value(held, row, np.int64(ordered_held[i]), n, inner)
                put(x, a, b, origin, target, i, ordered[i], own, apart)
        else:
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
            for j in range(items):
                i = thread + j * THREADS
                if i < count:
                    own = ordered[i]
                    at = np.int64(offsets[digit_of(own, shift, flip)] + i)
                    if at < kept:
                        put(x, a, b, origin, target, at, own, ordered_held[i], apart)

    return sort_tiles
