"""Strided block copies on CUDA: what transpose, slice, concat, pad and their like come down to.

See `kernels.copying` for what a block is. Runs along the last axis are copied in words as wide as
sizes, strides and starts allow, 16 bytes at best, whatever the elements are; a block that is
contiguous along another axis in the source than in the target goes through tiles in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.kernels.gpu.places import LIMIT
from opstep.runtime.device.cuda.names import cuda, div32, load2, store2
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.ir.types import DType, TensorType, f32, i8, i16, i32, i64

THREADS = 256  # of a block
TURN = 4  # words that a thread of a long row copies
CARRIERS = {1: i8, 2: i16, 4: i32, 8: i64}  # integers that carry elements of so many bytes

Dims = Sequence[tuple[int, int, int]]  # (extent, source stride, target stride)


class Run(NamedTuple):
    """Runs of `count` words, and the axes around them, in words."""

    dtype: DType  # that carries a word, or half a word of 16 bytes
    pair: bool  # words of 16 bytes
    count: int
    x_step: int
    y_step: int
    outer: tuple[tuple[int, int, int], ...]
    x_start: int
    y_start: int


def runs(dims: Dims, itemsize: int, x_start: int, y_start: int, sizes: Sequence[int]) -> Run:
    """Elements gathered into words; `sizes` are those of the tensors, which hold whole words."""
    *outer, (count, xs, ys) = dims
    group = 1
    if xs in (0, 1) and ys == 1 and (xs == 1 or not sizes[1:]):
        numbers = [count, x_start, y_start, *sizes, *(s for d in outer for s in d[1:])]
        while group * itemsize < 16 and not any(n % (2 * group) for n in numbers):
            group *= 2
    pair = group * itemsize == 16
    dtype = CARRIERS[8 if pair else group * itemsize]
    rest = tuple((n, a // group, b // group) for n, a, b in outer)
    return Run(dtype, pair, count // group, xs, ys, rest, x_start // group, y_start // group)


def as_words(a: Arg, dtype: DType) -> Arg:
    """The same memory as words of another type."""
    return Arg(TensorType(dtype, a.shape), a.slot)


def copy_block(x: Arg, y: Arg, dims: Dims, x_start: int = 0, y_start: int = 0) -> Grid | None:
    """Copies a box, whose axes are merged (`kernels.copying.merged`)."""
    if prod(n for n, _, _ in dims) >= LIMIT or not (type(x) is type(y) is Arg):
        return None
    if x.stored is not x.dtype or x.stored.itemsize != y.stored.itemsize:
        return _converted(x, y, dims, x_start, y_start)
    plane = plane_of(dims)
    if plane is not None:
        return _tiled(x, y, dims, plane, x_start, y_start)
    sizes = (x.size, y.size)
    run = runs(dims, x.stored.itemsize, x_start, y_start, sizes)
    return _rows((as_words(x, run.dtype), as_words(y, run.dtype)), run, run.pair)


def fill_block(y: Arg, value: int, dims: Dims, y_start: int = 0) -> Grid | None:
    """Writes `value`, the bits of an element, into a box."""
    if prod(n for n, _, _ in dims) >= LIMIT:
        return None
    itemsize = y.stored.itemsize
    dims = [(n, 0, step) for n, _, step in dims]
    run = runs(dims, itemsize, 0, y_start, (y.size,))
    return _rows((repeated(value, itemsize), as_words(y, run.dtype)), run, run.pair)


def repeated(value: int, itemsize: int) -> int:
    """An element's bits over and over, in 64 bits; words take their lowest bytes."""
    bits = value & (1 << 8 * itemsize) - 1
    bits = sum(bits << 8 * k for k in range(0, 8, itemsize))
    return bits - (1 << 64) if bits >> 63 else bits


def _converted(x: Arg, y: Arg, dims: Dims, x_start: int, y_start: int) -> Grid:
    """Element by element, from one type to another."""
    source, target = (
        Arg(TensorType(f32 if a.dtype.is_half else a.dtype, a.shape), a.slot, a.stored)
        for a in (x, y)
    )
    *outer, (count, xs, ys) = dims
    run = Run(y.dtype, False, count, xs, ys, tuple(outer), x_start, y_start)
    return _rows((source, target), run, False)


# --- rows -----------------------------------------------------------------------------------------


def _rows(memory: tuple, run: Run, pair: bool) -> Grid:
    wide = 1
    while wide < min(run.count, THREADS):
        wide *= 2
    tall = THREADS // wide
    rows = prod(n for n, _, _ in run.outer)
    each = run.count if run.count < THREADS * TURN else THREADS * TURN
    across = -(-run.count // each)
    grid = across * -(-rows // tall)
    table = tuple(d[k] for k in range(3) for d in run.outer)
    steps = (run.x_start, run.y_start, run.x_step, run.y_step)
    about = (run.count, rows, each, across, wide, *steps, len(run.outer), table)
    filled = not isinstance(memory[0], Arg)
    return Grid(rows_kernel(pair, filled), *memory, *about, grid=grid, block=THREADS)


@cache
def rows_kernel(pair: bool, filled: bool):
    """`each` words of a row for a block of `wide` threads side by side; one row below another."""

    def one(x, p, y, q):
        y[q] = x if filled else x[p]

    def two(x, p, y, q):
        store2(y, 2 * q, (x, x) if filled else load2(x, 2 * p))

    move = two if pair else one

    def copy_rows(
        x, y, count, rows, each, across, wide, x_start, y_start, x_step, y_step, rank, table
    ):  # fmt: skip
        block = div32(cuda.blockIdx.x, across)
        row = block * div32(THREADS, wide) + div32(cuda.threadIdx.x, wide)
        if row >= rows:
            return
        p = x_start
        q = y_start
        for back in range(rank):
            axis = rank - 1 - back
            above = div32(row, table[axis])
            at = row - above * table[axis]
            p += at * table[rank + axis]
            q += at * table[2 * rank + axis]
            row = above
        j = (cuda.blockIdx.x - block * across) * each + (cuda.threadIdx.x & (wide - 1))
        end = min(count, (cuda.blockIdx.x - block * across + 1) * each)
        while j < end:
            move(x, p + j * x_step, y, q + j * y_step)
            j += wide

    copy_rows.__name__ = "fill_rows" if filled else "copy_rows"
    return copy_rows


# --- tiles ----------------------------------------------------------------------------------------


def plane_of(dims: Dims) -> int | None:
    """The axis along which the source is contiguous, where it is another than the target's."""
    _, xs, ys = dims[-1]
    if ys != 1 or xs in (0, 1, -1):
        return None
    # a source contiguous over a few elements only is read faster along the target's rows
    return next((k for k, (n, s, _) in enumerate(dims[:-1]) if s == 1 and n >= 8), None)


def _tiled(x: Arg, y: Arg, dims: Dims, k: int, x_start: int, y_start: int) -> Grid:
    p, _, yp = dims[k]
    q, xq, _ = dims[-1]
    outer = [*dims[:k], *dims[k + 1 : -1]]
    itemsize = x.stored.itemsize
    side = 64 if itemsize < 8 else 32
    across, down = -(-q // side), -(-p // side)
    table = tuple(d[column] for column in range(3) for d in outer)
    dtype = CARRIERS[itemsize]
    return Grid(
        tiles_kernel(side, dtype.numpy.name),
        *(as_words(x, dtype), as_words(y, dtype), p, q, xq, yp),
        *(across, down, x_start, y_start, len(outer), table),
        grid=across * down * prod(n for n, _, _ in outer),
        block=THREADS,
    )


@cache
def tiles_kernel(side: int, carrier: str):
    """A block moves side x side elements: contiguous along p in the source, q in the target."""
    kind = getattr(np, carrier)
    pitch = side + 1
    tall = THREADS // side

    def transpose(x, y, p, q, xq, yp, across, down, x_start, y_start, rank, table):
        tile = cuda.shared.array((side, pitch), kind)
        lane = cuda.threadIdx.x % side
        first = cuda.threadIdx.x // side
        rest = div32(cuda.blockIdx.x, across)
        column = (cuda.blockIdx.x - rest * across) * side  # along q
        plane = div32(rest, down)
        row = (rest - plane * down) * side  # along p
        source = x_start
        target = y_start
        for back in range(rank):
            axis = rank - 1 - back
            above = div32(plane, table[axis])
            at = plane - above * table[axis]
            source += at * table[rank + axis]
            target += at * table[2 * rank + axis]
            plane = above
        if row + lane < p:
            for k in range(0, side, tall):
                if column + first + k < q:
                    place = source + row + lane + (column + first + k) * xq
                    tile[first + k, lane] = x[place]
        cuda.syncthreads()
        if column + lane < q:
            for k in range(0, side, tall):
                if row + first + k < p:
                    place = target + (row + first + k) * yp + column + lane
                    y[place] = tile[lane, first + k]

    return transpose
