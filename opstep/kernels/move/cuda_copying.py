"""Strided block copies on CUDA: what transpose, slice, concat, pad and their like come down to.

See `kernels.move.copying` for what a block is. Runs along the last axis are copied in words as wide
as sizes, strides and starts allow, 16 bytes at best, whatever the elements are; a block that is
contiguous along another axis in the source than in the target goes through tiles in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.kernels.pointwise.conversions import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import gathered, itself
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load2, store2
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType

THREADS = 256  # of a block
TURN = 4  # words of a row that a thread copies
SIDE = 64  # elements of a tile along its edges

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
    if xs == ys == 1:
        numbers = [count, x_start, y_start, *sizes, *(s for d in outer for s in d[1:])]
        while group * itemsize < 16 and not any(n % (2 * group) for n in numbers):
            group *= 2
    pair = group * itemsize == 16
    dtype = CARRIERS[8 if pair else group * itemsize]
    rest = tuple((n, a // group, b // group) for n, a, b in outer)
    return Run(dtype, pair, count // group, xs, ys, rest, x_start // group, y_start // group)


def reinterpreted(a: Arg, dtype: DType) -> Arg:
    """The same memory as words of another type."""
    return Arg(TensorType(dtype, a.shape), a.slot)


def copy_block(x: Arg, y: Arg, dims: Dims, x_start: int = 0, y_start: int = 0) -> Grid | None:
    """Copies a box, whose axes are merged (`copying.merged`)."""
    if prod(n for n, _, _ in dims[:-1]) >= LIMIT or not (type(x) is type(y) is Arg):
        return None
    total = prod(n for n, _, _ in dims)
    if x.stored is not x.dtype or x.stored.itemsize != y.stored.itemsize:
        return _converted(x, y, dims, x_start, y_start)
    plane = plane_of(dims)
    if plane is not None and min(dims[plane][0], dims[-1][0]) >= SIDE // 4:
        dtype = CARRIERS[x.stored.itemsize]
        source, target = reinterpreted(x, dtype), reinterpreted(y, dtype)
        return _tiled(source, target, dtype, dims, plane, x_start, y_start)
    sizes = (x.size, y.size)
    run = runs(dims, x.stored.itemsize, x_start, y_start, sizes)
    itemsize = x.stored.itemsize
    if run.dtype.itemsize == itemsize < 8 and total == y.size < LIMIT and _in_order(dims):
        source, target = reinterpreted(x, run.dtype), reinterpreted(y, run.dtype)
        extents, strides = tuple(n for n, _, _ in dims), tuple(s for _, s, _ in dims)
        return gathered(itself, "gather", source, target, extents, strides, x_start)
    return _rows((reinterpreted(x, run.dtype), reinterpreted(y, run.dtype)), run)


def _in_order(dims: Dims) -> bool:
    """Whether the target is filled from its first element to its last."""
    step = 1
    for n, _, ys in reversed(dims):
        if ys != step:
            return False
        step *= n
    return True


def repeated(value: int, itemsize: int) -> int:
    """An element's bits over and over, in 64 bits; words take their lowest bytes."""
    bits = value & (1 << 8 * itemsize) - 1
    bits = sum(bits << 8 * k for k in range(0, 8, itemsize))
    return bits - (1 << 64) if bits >> 63 else bits


def _converted(x: Arg, y: Arg, dims: Dims, x_start: int, y_start: int) -> Grid:
    """Element by element, from one type to another."""
    *outer, (count, xs, ys) = dims
    run = Run(y.dtype, False, count, xs, ys, tuple(outer), x_start, y_start)
    return _rows((as_numbers(x), as_numbers(y)), run)


# --- rows -----------------------------------------------------------------------------------------


def _rows(memory: tuple[Arg, Arg], run: Run) -> Grid:
    bits = max(0, -(-run.count // TURN) - 1).bit_length()  # of the threads side by side in a row
    fewest = min(1 if run.pair else 2, (run.count - 1).bit_length())  # 32 bytes or so
    bits = min(THREADS.bit_length() - 1, max(bits, fewest))
    rows = prod(n for n, _, _ in run.outer)
    across = -(-run.count // (TURN << bits))
    grid = across * -(-rows // (THREADS >> bits))
    table = tuple(d[k] for k in range(3) for d in run.outer)
    steps = (run.x_start, run.y_start, run.x_step, run.y_step)
    about = (run.count, rows, across, bits, *steps, len(run.outer), table)
    return Grid(rows_kernel(run.pair), *memory, *about, grid=grid, block=THREADS)


@cache
def rows_kernel(pair: bool):
    """2**bits threads of a block side by side copy TURN words each of a row; all are read first."""

    def read_one(x, p):
        return x[p]

    def write_one(y, q, word):
        y[q] = word

    def read_two(x, p):
        return load2(x, 2 * p)

    def write_two(y, q, word):
        store2(y, 2 * q, word)

    read, write = (read_two, write_two) if pair else (read_one, write_one)

    def copy_rows(
        x, y, count, rows, across, bits, x_start, y_start, x_step, y_step, rank, table
    ):  # fmt: skip
        block = div32(cuda.blockIdx.x, across)
        row = (block * THREADS + cuda.threadIdx.x) >> bits
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
        wide = 1 << bits
        j = ((cuda.blockIdx.x - block * across) * TURN << bits) + (cuda.threadIdx.x & (wide - 1))
        if j + 3 * wide < count:
            a = read(x, p + j * x_step)
            b = read(x, p + (j + wide) * x_step)
            c = read(x, p + (j + 2 * wide) * x_step)
            d = read(x, p + (j + 3 * wide) * x_step)
            write(y, q + j * y_step, a)
            write(y, q + (j + wide) * y_step, b)
            write(y, q + (j + 2 * wide) * y_step, c)
            write(y, q + (j + 3 * wide) * y_step, d)
        else:
            for _ in range(TURN):
                if j < count:
                    write(y, q + j * y_step, read(x, p + j * x_step))
                j += wide

    return copy_rows


# --- tiles ----------------------------------------------------------------------------------------


def plane_of(dims: Dims) -> int | None:
    """The axis along which the source is contiguous, where it is another than the target's."""
    _, xs, ys = dims[-1]
    if ys != 1 or xs in (0, 1, -1):
        return None
    # a source contiguous over a few elements only is read faster along the target's rows
    return next((k for k, (n, s, _) in enumerate(dims[:-1]) if s == 1 and n >= 8), None)


def _tiled(
    x: Arg | Scratch, y: Arg | Scratch, dtype: DType, dims: Dims, k: int, x_start=0, y_start=0
) -> Grid:
    """Moves planes of axes `k` and the last one, of memory that holds this type."""
    p, _, yp = dims[k]
    q, xq, _ = dims[-1]
    outer = [*dims[:k], *dims[k + 1 : -1]]
    side = SIDE if dtype.itemsize < 8 else SIDE // 2
    width = min(8, 16 // dtype.itemsize)
    steps = [p, q, xq, yp, x_start, y_start, *(s for d in outer for s in d[1:])]
    if any(step % width for step in steps):
        width = 1
    across, down = -(-q // side), -(-p // side)
    table = tuple(d[column] for column in range(3) for d in outer)
    return Grid(
        tiles_kernel(side, width, dtype.numpy.name),
        *(x, y, p, q, xq, yp, across, down, x_start, y_start, len(outer), table),
        grid=across * down * prod(n for n, _, _ in outer),
        block=THREADS,
    )


def transposed(x: Arg | Scratch, y: Scratch, before: int, rows: int, columns: int) -> Grid:
    """y [before, columns, rows] = x [before, rows, columns], in the type that x is computed in."""
    apart = rows * columns
    dims = ((before, apart, apart), (columns, 1, rows), (rows, columns, 1))
    return _tiled(x, y, x.dtype, dims, 1)


@cache
def tiles_kernel(side: int, width: int, carrier: str):
    """A block moves side x side elements: contiguous along p in the source, q in the target.

    A thread moves vectors of `width`, up to four at a time, each of a line of its own.
    """
    kind = getattr(np, carrier)
    pitch = side + 2 if carrier in ("int8", "int16") else side + 1
    lanes = side // width
    tall = THREADS // lanes  # lines that the block moves at a time
    load, store = Intrinsic("load", width), Intrinsic("store", width)
    put, take = _put_down(width), _gather(width)

    def transpose(x, y, p, q, xq, yp, across, down, x_start, y_start, rank, table):
        tile = cuda.shared.array((side, pitch), kind)
        at = (cuda.threadIdx.x % lanes) * width
        line = cuda.threadIdx.x // lanes
        rest = div32(cuda.blockIdx.x, across)
        column = (cuda.blockIdx.x - rest * across) * side  # along q
        plane = div32(rest, down)
        row = (rest - plane * down) * side  # along p
        source = x_start + row + column * xq
        target = y_start + row * yp + column
        for back in range(rank):
            axis = rank - 1 - back
            above = div32(plane, table[axis])
            source += (plane - above * table[axis]) * table[rank + axis]
            target += (plane - above * table[axis]) * table[2 * rank + axis]
            plane = above
        whole = row + side <= p and column + side <= q
        if whole and side == 2 * tall:
            v0 = load(x, source + at + line * xq)
            v1 = load(x, source + at + (line + tall) * xq)
            put(tile, line, at, v0)
            put(tile, line + tall, at, v1)
        elif whole:
            for k in range(line, side, 4 * tall):
                v0 = load(x, source + at + k * xq)
                v1 = load(x, source + at + (k + tall) * xq)
                v2 = load(x, source + at + (k + 2 * tall) * xq)
                v3 = load(x, source + at + (k + 3 * tall) * xq)
                put(tile, k, at, v0)
                put(tile, k + tall, at, v1)
                put(tile, k + 2 * tall, at, v2)
                put(tile, k + 3 * tall, at, v3)
        else:
            for k in range(line, side, tall):
                if row + at < p and column + k < q:
                    put(tile, k, at, load(x, source + at + k * xq))
        cuda.syncthreads()
        for k in range(line, side, tall):
            if column + at < q and row + k < p:
                store(y, target + at + k * yp, take(tile, at, k))

    return transpose


def _put_down(width: int) -> Callable:
    """(tile, line, at, values): side by side in a line."""
    lines = [f"    tile[line, at + {k}] = v[{k}]" for k in range(width)]
    text = "\n".join(["def put(tile, line, at, v):", *lines])
    return from_text(text, f"put {width}", "put", {})


def _gather(width: int) -> Callable:
    """(tile, line, at) -> values below one another."""
    values = ", ".join(f"tile[line + {k}, at]" for k in range(width))
    text = f"def take(tile, line, at):\n    return ({values},)"
    return from_text(text, f"take {width}", "take", {})
