"""Elements picked by index, on CUDA; see `kernels.pick.index`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from opstep.kernels.move.cuda_copying import reinterpreted, repeated
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.rules.axes import strides_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load2, mod32, store2
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Scratch
from opstep.runtime.ir.types import i32, i64

THREADS = 256  # of a block
TURN = 4  # words that a thread of a long row copies
EACH = 4  # elements that a thread of `gather_elements` picks, and `locate` finds


def gather_rows(
    x: Arg, index: Arg | Scratch, y: Arg, outer: int, n: int, inner: int, nothing: int
) -> Grid | None:
    """Rows of `inner` elements of x [outer, n, inner], those that index names; `nothing` (the bits
    of an element) where there is none.
    """
    rows = outer * index.size
    if max(rows, inner) >= LIMIT or x.stored is not x.dtype:
        return None
    itemsize, group = x.stored.itemsize, 1
    while group * itemsize < 16 and inner % (2 * group) == 0:
        group *= 2
    pair = group * itemsize == 16
    word = CARRIERS[8 if pair else group * itemsize]
    count = inner // group
    bits = min(THREADS.bit_length(), max(1, count // TURN).bit_length()) - 1
    each = count if count < THREADS * TURN else THREADS * TURN
    across = -(-count // each)
    args = (reinterpreted(x, word), index, reinterpreted(y, word), repeated(nothing, itemsize))
    grid = across * -(-rows // (THREADS >> bits))
    kernel = rows_kernel(pair)
    return Grid(
        kernel, *args, count, rows, index.size, n, each, across, bits, grid=grid, block=THREADS
    )


@cache
def rows_kernel(pair: bool):
    """`each` words of a row for a block of 2**bits threads side by side, one row below another."""

    def read_one(x, p):
        return x[p]

    def write_one(y, q, word):
        y[q] = word

    def read_two(x, p):
        return load2(x, 2 * p)

    def write_two(y, q, word):
        store2(y, 2 * q, word)

    def one_of(nothing):
        return nothing

    def two_of(nothing):
        return nothing, nothing

    read, write = (read_two, write_two) if pair else (read_one, write_one)
    none = two_of if pair else one_of

    def gather_rows(x, index, y, nothing, count, rows, places, n, each, across, bits):
        block = div32(cuda.blockIdx.x, across)
        row = (block * THREADS + cuda.threadIdx.x) >> bits
        if row >= rows:
            return
        outer = div32(row, places)
        k = np.int64(index[row - outer * places])
        k = k + n if k < 0 else k
        there = k >= 0 and k < n
        p = (outer * n + k) * count
        q = row * count
        wide = 1 << bits
        j = (cuda.blockIdx.x - block * across) * each + (cuda.threadIdx.x & (wide - 1))
        end = min(count, (cuda.blockIdx.x - block * across + 1) * each)
        while there and j + 3 * wide < end:
            a = read(x, p + j)
            b = read(x, p + j + wide)
            c = read(x, p + j + 2 * wide)
            d = read(x, p + j + 3 * wide)
            write(y, q + j, a)
            write(y, q + j + wide, b)
            write(y, q + j + 2 * wide, c)
            write(y, q + j + 3 * wide, d)
            j += 4 * wide
        while j < end:
            write(y, q + j, read(x, p + j) if there else none(nothing))
            j += wide

    return gather_rows


def gather_elements(
    x: Arg, index: Arg, y: Arg, dims, n: int, along: int, nothing: int
) -> Grid | None:
    """One element of x for each index: `dims` walk x without the axis, whose n elements are `along`
    apart, beside the index.
    """
    if index.size >= LIMIT or x.stored is not x.dtype:
        return None
    word = CARRIERS[x.stored.itemsize]
    table = (*(d[0] for d in dims), *(d[1] for d in dims))
    args = (reinterpreted(x, word), index, reinterpreted(y, word), repeated(nothing, word.itemsize))
    grid = -(-y.size // (THREADS * EACH))
    kernel = elements_kernel(len(dims))
    return Grid(kernel, *args, y.size, n, along, table, grid=grid, block=THREADS)


@cache
def elements_kernel(rank: int) -> Callable:
    """A thread has `EACH` elements, a block apart: their indices are read together, then they."""

    def gather_elements(x, index, y, nothing, size, n, along, table):
        first = np.int64(cuda.blockIdx.x) * (THREADS * EACH) + cuda.threadIdx.x
        places = cuda.local.array(EACH, np.int64)
        found = cuda.local.array(EACH, np.int64)
        for j in range(EACH):
            i = first + j * THREADS
            k = np.int64(index[i]) if i < size else np.int64(-1) - n
            places[j] = k + n if k < 0 else k
        for j in range(EACH):
            rest = first + j * THREADS
            k = places[j]
            p = k * along
            for back in range(rank):
                axis = rank - 1 - back
                above = div32(rest, table[axis]) if axis > 0 else np.int64(0)
                p += (rest - above * table[axis]) * table[rank + axis]
                rest = above
            found[j] = x[p] if k >= 0 and k < n else nothing
        for j in range(EACH):
            i = first + j * THREADS
            if i < size:
                y[i] = found[j]

    return gather_elements


def mark_indices(index: Arg, y: Arg, n: int, after: int, on, off) -> Grid | None:
    """y [before, n, behind]: `on` where index [before, behind] names the place, else `off`."""
    if y.size >= LIMIT:
        return None
    grid = -(-y.size // THREADS)
    return Grid(marks_kernel, index, y, y.size, n, after, on, off, grid=grid, block=THREADS)


def marks_kernel(index, y, size, n, after, on, off):
    i = cuda.grid(1)
    if i < size:
        row = div32(i, after)
        before = div32(row, n)
        k = row - before * n
        at = np.int64(index[before * after + mod32(i, after)])
        y[i] = on if at == k or at + n == k else off


# --- places that several indices name -------------------------------------------------------------


class Index(NamedTuple):
    """Indices of an axis: `extent` elements of it, which count for `along` in a key. Entry i has
    the index at ``start + `` its place by `strides`; `skipped` is nowhere as well.
    """

    of: Arg | Scratch
    extent: int
    along: int
    strides: tuple[int, ...]
    start: int = 0
    skipped: int = -1


def located(
    indices: Sequence[Index],
    sizes: tuple[int, ...],
    nowhere: int,
    count: int,
    start: int = 0,
    base: tuple[int, ...] = (),
    apart: bool = False,
) -> tuple[list[Grid], Scratch]:
    """(launches, keys) of `count` entries, from `start` on of those in a box of `sizes`: the place
    of an entry by the strides `base`, and what each of its indices adds; `nowhere`, which is larger
    than any other, where one is out of range, with `apart` counted from that place.
    """
    most = sum(n * s for n, s in zip(sizes, base, strict=False)) if apart else 0
    keys = Scratch(i32 if most + nowhere < LIMIT // 2 - 1 else i64, count)
    base = base or (0,) * len(sizes)
    launches = []
    for k, i in enumerate(indices):
        about = (count, nowhere, len(sizes), sizes, base, start, int(k == 0), int(apart))
        in_order = i.start == 0 and i.strides == strides_of(sizes)
        own = (i.extent, i.along, int(in_order), i.strides, i.start, i.skipped)
        grid = -(-count // (THREADS * EACH))
        launches.append(Grid(locate, i.of, keys, *about, *own, grid=grid, block=THREADS))
    return launches, keys


def locate(
    index, keys, n, nowhere, rank, sizes, base, start, first, apart, extent, along, in_order,
    strides, origin, skipped,
):  # fmt: skip
    i = np.int64(cuda.blockIdx.x) * (THREADS * EACH) + cuda.threadIdx.x
    found = cuda.local.array(EACH, np.int64)
    for j in range(EACH):  # indices are read together
        entry = start + i + j * THREADS
        place = entry if in_order else origin + spot(entry, sizes, strides, rank)
        found[j] = np.int64(index[place]) if i + j * THREADS < n else np.int64(0)
    for j in range(EACH):
        at = i + j * THREADS
        if at < n:
            k = found[j]
            k = k + extent if k < 0 else k
            before = spot(start + at, sizes, base, rank) if first else np.int64(keys[at])
            there = k >= 0 and k < extent and k != skipped and (first or before != nowhere)
            keys[at] = before + k * along if there else nowhere + (before if apart else 0)


def pick(x: Arg, keys: Scratch, y: Arg, dims, nothing: int) -> Grid | None:
    """y, element by element, of x at positions `keys`, those from x.size on being nowhere. `dims`:
    (extent, stride in x, stride among the positions) of y's axes.
    """
    if y.size >= LIMIT:
        return None
    word = CARRIERS[x.stored.itemsize]
    args = (reinterpreted(x, word), keys, reinterpreted(y, word), repeated(nothing, word.itemsize))
    sizes, steps, places = (tuple(d[k] for d in dims) for k in range(3))
    args = (*args, y.size, x.size, len(dims), sizes, steps, places)
    return Grid(pick_kernel, *args, grid=-(-y.size // THREADS), block=THREADS)


def pick_kernel(x, keys, y, nothing, size, nowhere, rank, sizes, steps, places):
    i = cuda.grid(1)
    if i < size:
        key = np.int64(keys[spot(i, sizes, places, rank)])
        y[i] = x[spot(i, sizes, steps, rank) + key] if key != nowhere else nothing
