"""Elements picked by index, on CUDA; see `kernels.pick.index`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.move.cuda_copying import reinterpreted, repeated
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load2, mod32, store2
from opstep.runtime.device.launch import CARRIERS, Arg, Grid

THREADS = 256  # of a block
TURN = 4  # words that a thread of a long row copies
EACH = 4  # elements that a thread of `gather_elements` picks
COLUMNS = 4  # that a thread of `add_rows` sums up


def gather_rows(
    x: Arg, index: Arg, y: Arg, outer: int, n: int, inner: int, nothing: int
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


def add_rows(
    gy: Arg, index: Arg, gx: Arg, outer: int, n: int, inner: int, skipped: int
) -> Grid | None:
    """gx [outer, n, inner]: the rows of gy [outer, places, inner] that index sends there, added in
    their order.
    """
    across = -(-inner // (THREADS * COLUMNS))
    if outer * n * across >= LIMIT // 2:
        return None
    args = (gy, index, gx, index.size, n, inner, across, skipped)
    return Grid(adding_kernel, *args, grid=outer * n * across, block=THREADS)


def adding_kernel(gy, index, gx, places, n, inner, across, skipped):
    """A block for up to THREADS * COLUMNS columns of a row of gx: it looks through the index, which
    the cache holds, a stretch at a time.
    """
    hits = cuda.shared.array(THREADS, np.int32)
    thread = cuda.threadIdx.x
    row = div32(cuda.blockIdx.x, across)
    outer = div32(row, n)
    wanted = row - outer * n
    column = (cuda.blockIdx.x - row * across) * (THREADS * COLUMNS) + thread
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    for first in range(0, places, THREADS):
        hit = 0
        if first + thread < places:
            k = np.int64(index[first + thread])
            k = k + n if k < 0 else k
            hit = 1 if k == wanted and k != skipped else 0
        hits[thread] = hit
        if cuda.syncthreads_or(hit):
            for s in range(THREADS):
                if hits[s] != 0:
                    p = (outer * places + first + s) * inner + column
                    if column < inner:
                        a += gy[p]
                    if column + THREADS < inner:
                        b += gy[p + THREADS]
                    if column + 2 * THREADS < inner:
                        c += gy[p + 2 * THREADS]
                    if column + 3 * THREADS < inner:
                        d += gy[p + 3 * THREADS]
        cuda.syncthreads()
    p = row * inner + column
    if column < inner:
        gx[p] = a
    if column + THREADS < inner:
        gx[p + THREADS] = b
    if column + 2 * THREADS < inner:
        gx[p + 2 * THREADS] = c
    if column + 3 * THREADS < inner:
        gx[p + 3 * THREADS] = d
