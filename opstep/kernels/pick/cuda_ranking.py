"""What radix sorts on CUDA share: where each element of a tile goes by 8 bits of its key.

A block has as many threads as there are digits. Element j of a thread stands 32 elements behind
element j - 1 of it, and the elements of a warp in front of those of the next one, so a warp ranks
32 neighbours at a time, and equal digits keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.builtin import atomic_add
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    digit_of,
    rank_of_byte,
    shuffle_from,
    shuffle_up,
)
from opstep.runtime.device.launch import Arg, Scratch
from opstep.runtime.ir.types import DType, i32

DIGITS = THREADS = 256
LANES = 32
WARPS = THREADS // LANES
COUNTS = WARPS * DIGITS
TOP = 128  # the sign of a key in its highest digit


class Rows(NamedTuple):
    """What is sorted: `count` rows of n elements of `source`, `inner` apart, of which `key` makes
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
    """Where it goes: `put` writes to the arrays a and b the first `kept` of each row, `inner`
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
    """What kernels take of both: source, held, x, a, b, n, inner, kept, apart, x_n."""
    held = rows.source if rows.held is None else rows.held
    x = rows.source if into.x is None else into.x
    return (rows.source, held, x, into.a, into.b, rows.n, rows.inner, into.kept, into.inner, into.n)


def first_item(items):
    """Where the first element of a thread stands in a tile; the next ones are LANES apart."""
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
