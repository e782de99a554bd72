"""Reductions on CUDA, over any axes.

As on the CPU, axes are merged into groups that are kept and groups that are reduced. If the last
group is reduced, a power of 2 of neighbouring threads (`lanes`, up to a block) folds each result
from *rows* of neighbouring elements. If it is kept, threads fold *columns*, a vector of
neighbouring results each, and the threads of a block that share columns join what they have. Where
results are few and long, each is folded by several blocks into accumulators, which a second launch
joins: the order depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.kernels.gpu.folding import FIRST, POSITION, THREADS, GpuFold, steps_of
from opstep.kernels.gpu.places import LIMIT, spot
from opstep.kernels.reduction import merged_axes
from opstep.runtime.device.cuda.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

PIECE = 65536  # elements; a longer run is folded in pieces
BUSY = 1 << 18  # threads that fill a large GPU
LEAST = 1 << 14  # elements worth a block of their own
SHARE = 16  # vectors that a thread folds, where there are enough threads
RESIDENT = 4  # blocks of rows that a multiprocessor holds at least
ROW_BLOCKS = 1056  # about so many blocks share results that are few
COLUMN_BLOCKS = 528
ACROSS = 32  # threads of a block that stand side by side over columns
COLUMN_WIDTH = 8  # results at most that a thread folds


class Shape(NamedTuple):
    """Results: kept x n in column form (`columns`), else kept; strides in elements.

    Each folds `rows` runs: in row form of n elements, in column form of one.
    """

    columns: bool
    kept_sizes: tuple[int, ...]
    kept_strides: tuple[int, ...]
    row_sizes: tuple[int, ...]
    row_strides: tuple[int, ...]
    n: int

    @property
    def kept(self) -> int:
        return prod(self.kept_sizes)

    @property
    def rows(self) -> int:
        return prod(self.row_sizes)


def shape_of(sizes: Sequence[int], axes: Sequence[int]) -> Shape:
    (n, _, reduced), *others = merged_axes(sizes, axes) or [(1, 1, True)]
    kept = [(size, step) for size, step, gone in reversed(others) if not gone]
    rows = [(size, step) for size, step, gone in reversed(others) if gone]
    return Shape(
        not reduced,
        tuple(size for size, _ in kept),
        tuple(step for _, step in kept),
        tuple(size for size, _ in rows),
        tuple(step for _, step in rows),
        n,
    )


def reduce(
    fold: GpuFold, x: Arg, y: Arg, axes: Sequence[int], count: int = 0, divisor: int = 0
) -> list[Grid] | None:
    """Launches that reduce x over the axes into y; None where x is empty, or too large for the
    kernels. `count` and `divisor` are handed to `finish`.
    """
    s = shape_of(x.shape, axes)
    if x.size == 0 or max(s.kept, s.rows * -(-s.n // PIECE), s.kept * s.n) >= LIMIT:
        return None
    form = _columns if s.columns else _rows
    return form(fold, s, x, y, (count, divisor))


def _width(x: Arg, most: int = 16) -> int:
    return min(most, 16 // x.stored.itemsize)


# --- rows -----------------------------------------------------------------------------------------


@cache
def rows_kernel(fold: GpuFold, width: int, raw: bool):
    """Units are parts of results: `lanes` threads each, `wide` of them side by side over a run."""
    start, load, widen, combine = fold.start, fold.load, fold.widen, fold.combine
    term, together, finish = (getattr(steps_of(fold, width, raw), k) for k in _USED_BY_ROWS)
    vector = Intrinsic("load", width)
    first_is_given, position_is_given = fold.given == FIRST, fold.given == POSITION

    def run(x, p, length, lane, wide, c, acc):
        """Folds length elements from p on: single ones up to a vector's place, vectors, more."""
        ahead = min(-p & (width - 1), length)
        j = lane
        while j < ahead:
            acc = combine(acc, widen(load(x[p + j], c + j if position_is_given else c)))
            j += wide
        j = ahead + lane * width
        jump = wide * width
        while j + 3 * jump + width <= length:
            v0 = vector(x, p + j)
            v1 = vector(x, p + j + jump)
            v2 = vector(x, p + j + 2 * jump)
            v3 = vector(x, p + j + 3 * jump)
            acc = combine(acc, term(v0, c + j if position_is_given else c))
            acc = combine(acc, term(v1, c + j + jump if position_is_given else c))
            acc = combine(acc, term(v2, c + j + 2 * jump if position_is_given else c))
            acc = combine(acc, term(v3, c + j + 3 * jump if position_is_given else c))
            j += 4 * jump
        while j + width <= length:
            acc = combine(acc, term(vector(x, p + j), c + j if position_is_given else c))
            j += jump
        j = ahead + ((length - ahead) & -width) + lane
        while j < length:
            acc = combine(acc, widen(load(x[p + j], c + j if position_is_given else c)))
            j += wide
        return acc

    def kernel(
        x, y, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        units, rows, per, blocks, pieces, piece, n, lanes_bits, wide_bits, count, divisor,
    ):  # fmt: skip
        lanes = 1 << lanes_bits
        wide = 1 << wide_bits
        lane = cuda.threadIdx.x & (lanes - 1)
        unit = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> lanes_bits
        acc = start()
        if unit < units:
            i = unit if blocks == 1 else div32(unit, blocks)
            begin = (unit - i * blocks) * per
            base = spot(i, kept_sizes, kept_strides, kept)
            c = x[base] if first_is_given else 0
            tall = lanes >> wide_bits
            r = begin + (lane >> wide_bits)
            end = min(begin + per, rows)
            while r < end:
                p = base
                length = n
                if rows == 1:
                    pass
                elif pieces == 1:
                    p += spot(r, row_sizes, row_strides, axes)
                else:
                    row = div32(r, pieces)
                    done = (r - row * pieces) * piece
                    p += spot(row, row_sizes, row_strides, axes) + done
                    length = min(piece, n - done)
                    c = done if position_is_given else c
                acc = run(x, p, length, lane & (wide - 1), wide, c, acc)
                r += tall
        acc = together(acc, lanes)
        if unit < units and lane == 0:
            finish(y, unit, acc, count, divisor)

    kernel.__name__ = fold.name
    return kernel


_USED_BY_ROWS = ("term", "together", "finish")


def _rows(fold: GpuFold, s: Shape, x: Arg, y: Arg, ends: tuple[int, int]) -> list[Grid]:
    width = _width(x)
    pieces = -(-s.n // PIECE)
    rows = s.rows * pieces
    vectors = -(-min(s.n, PIECE) // width)  # of a run
    each = s.rows * -(-s.n // width)  # of a result
    blocks = 1
    if s.kept * THREADS < BUSY and s.rows * s.n > 2 * LEAST and rows > 1:
        blocks = min(rows, ROW_BLOCKS // s.kept or 1, -(-s.rows * s.n // LEAST))
    per = -(-rows // blocks)
    blocks = -(-rows // per)
    lanes = _lanes(s.kept * blocks, -(-each // blocks))
    wide = min(lanes, _power(vectors))
    groups = THREADS // lanes
    y_or_parts = _parts(fold, s.kept * blocks) if blocks > 1 else y
    units = s.kept * blocks
    first = Grid(
        rows_kernel(fold, width, blocks > 1),
        *(x, y_or_parts, s.kept_sizes, s.kept_strides, len(s.kept_sizes)),
        *(s.row_sizes, s.row_strides, len(s.row_sizes)),
        *(units, rows, per, blocks, pieces, PIECE, s.n),
        *(lanes.bit_length() - 1, wide.bit_length() - 1, *ends),
        grid=-(-units // groups),
        block=THREADS,
        blocks=RESIDENT,
    )
    if blocks == 1:
        return [first]
    return [first, _join(fold, y_or_parts, y, s.kept, blocks, 1, ends)]


def _lanes(results: int, vectors: int) -> int:
    """Threads for a result: each with vectors enough to pay for the joining, unless that would
    leave the GPU idle.
    """
    lanes = max(min(4, _power(vectors // 4)), min(THREADS, _power(vectors // SHARE)))
    while lanes < min(THREADS, _power(vectors)) and results * lanes < BUSY:
        lanes *= 2
    return lanes


def _power(number: int) -> int:
    """The power of 2 that is not below it."""
    return 1 << max(0, number - 1).bit_length()


# --- columns --------------------------------------------------------------------------------------


@cache
def columns_kernel(fold: GpuFold, width: int, raw: bool):
    """Blocks fold `per` rows of `wide` vectors of columns; a thread takes every `tall`th row."""
    steps = steps_of(fold, width, raw)
    spread, spread_four, begun, finish = (
        steps.spread,
        steps.spread_four,
        steps.begun,
        steps.finish,
    )
    put, take = steps.put, steps.take
    vector = Intrinsic("load", width)
    combine, parts = fold.combine, fold.parts
    first_is_given, position_is_given = fold.given == FIRST, fold.given == POSITION
    kind = getattr(np, fold.accumulator.numpy.name)
    places = THREADS * width * parts

    def kernel(
        x, y, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        rows, per, blocks, across, n, wide, count, divisor,
    ):  # fmt: skip
        shared = cuda.shared.array(places, kind)
        thread = cuda.threadIdx.x
        tall = div32(THREADS, wide)
        down = div32(thread, wide)
        block = div32(cuda.blockIdx.x, across)
        column = ((cuda.blockIdx.x - block * across) * wide + (thread & (wide - 1))) * width
        i = div32(block, blocks)
        begin = (block - i * blocks) * per
        end = min(begin + per, rows)
        accs = begun()
        if column < n:
            base = spot(i, kept_sizes, kept_strides, kept) + column
            first = vector(x, base)
            step = row_strides[0] if axes < 2 else 0
            r = begin + down
            while r + 7 * tall < end:
                v0 = vector(x, base + row(r, step, row_sizes, row_strides, axes))
                v1 = vector(x, base + row(r + tall, step, row_sizes, row_strides, axes))
                v2 = vector(x, base + row(r + 2 * tall, step, row_sizes, row_strides, axes))
                v3 = vector(x, base + row(r + 3 * tall, step, row_sizes, row_strides, axes))
                v4 = vector(x, base + row(r + 4 * tall, step, row_sizes, row_strides, axes))
                v5 = vector(x, base + row(r + 5 * tall, step, row_sizes, row_strides, axes))
                v6 = vector(x, base + row(r + 6 * tall, step, row_sizes, row_strides, axes))
                v7 = vector(x, base + row(r + 7 * tall, step, row_sizes, row_strides, axes))
                c0, c1, c2, c3 = four_given(first, r, tall)
                accs = spread_four(accs, v0, v1, v2, v3, c0, c1, c2, c3)
                c0, c1, c2, c3 = four_given(first, r + 4 * tall, tall)
                accs = spread_four(accs, v4, v5, v6, v7, c0, c1, c2, c3)
                r += 8 * tall
            while r < end:
                v0 = vector(x, base + row(r, step, row_sizes, row_strides, axes))
                accs = spread(accs, v0, given(first, r))
                r += tall
        kept_by(shared, accs, thread)
        step = tall >> 1
        while step > 0:
            cuda.syncthreads()
            if down < step:
                for k in range(width):
                    own = take(shared, k * THREADS + thread)
                    other = take(shared, k * THREADS + thread + step * wide)
                    put(shared, k * THREADS + thread, combine(own, other))
            step >>= 1
        if down == 0 and column < n:
            for k in range(width):
                acc = take(shared, k * THREADS + thread)
                finish(y, block * n + column + k, acc, count, divisor)

    given = _given_first if first_is_given else _positions(width)
    if not (first_is_given or position_is_given):
        given = _nothing(width)
    kept_by = _kept_by(put, width)

    def four_given(first, r, tall):
        return (
            given(first, r),
            given(first, r + tall),
            given(first, r + 2 * tall),
            given(first, r + 3 * tall),
        )

    kernel.__name__ = fold.name
    return kernel


def row(r, step, sizes, strides, axes):
    """Where row r begins: `step` apart, where there are no more axes than one."""
    return r * step if axes < 2 else spot(r, sizes, strides, axes)


def _given_first(first, r):
    return first


def _positions(width: int):
    def one(first, r):
        return (r,)

    def two(first, r):
        return r, r

    def four(first, r):
        return r, r, r, r

    def eight(first, r):
        return r, r, r, r, r, r, r, r

    return {1: one, 2: two, 4: four, 8: eight}[width]


def _nothing(width: int):
    zeros = (0,) * width

    def nothing(first, r):
        return zeros

    return nothing


def _kept_by(put, width: int):
    """Puts the accumulators of a thread into shared memory, THREADS apart."""

    def one(shared, accs, thread):
        put(shared, thread, accs[0])

    def two(shared, accs, thread):
        put(shared, thread, accs[0])
        put(shared, THREADS + thread, accs[1])

    def four(shared, accs, thread):
        put(shared, thread, accs[0])
        put(shared, THREADS + thread, accs[1])
        put(shared, 2 * THREADS + thread, accs[2])
        put(shared, 3 * THREADS + thread, accs[3])

    def eight(shared, accs, thread):
        four(shared, accs[:4], thread)
        put(shared, 4 * THREADS + thread, accs[4])
        put(shared, 5 * THREADS + thread, accs[5])
        put(shared, 6 * THREADS + thread, accs[6])
        put(shared, 7 * THREADS + thread, accs[7])

    return {1: one, 2: two, 4: four, 8: eight}[width]


def _columns(fold: GpuFold, s: Shape, x: Arg, y: Arg, ends: tuple[int, int]) -> list[Grid]:
    width = _width(x, COLUMN_WIDTH)
    strides = (s.n, *s.kept_strides, *s.row_strides)
    if any(step % width for step in strides):
        width = 1
    wide = min(ACROSS, _power(-(-s.n // width)))
    across = -(-s.n // (width * wide))
    tiles = s.kept * across
    blocks = 1
    if tiles < COLUMN_BLOCKS // 2 and s.rows > 4 * THREADS // wide:
        blocks = min(COLUMN_BLOCKS // tiles, -(-s.rows * min(s.n, wide * width) // LEAST))
    per = -(-s.rows // max(1, blocks))
    blocks = -(-s.rows // per)
    results = s.kept * s.n
    y_or_parts = _parts(fold, results * blocks) if blocks > 1 else y
    first = Grid(
        columns_kernel(fold, width, blocks > 1),
        *(x, y_or_parts, s.kept_sizes, s.kept_strides, len(s.kept_sizes)),
        *(s.row_sizes, s.row_strides, len(s.row_sizes)),
        *(s.rows, per, blocks, across, s.n, wide, *ends),
        grid=tiles * blocks,
        block=THREADS,
    )
    if blocks == 1:
        return [first]
    return [first, _join(fold, y_or_parts, y, results, blocks, s.n, ends)]


# --- what several blocks folded -------------------------------------------------------------------


@cache
def join_kernel(fold: GpuFold):
    """2**bits results of a block side by side: the threads below one another share their
    accumulators, `blocks` of them for each result, n apart.
    """
    start, combine = fold.start, fold.combine
    steps = steps_of(fold, 1, False)
    put, take, finish = steps.put, steps.take, steps.finish
    kind = getattr(np, fold.accumulator.numpy.name)
    places = THREADS * fold.parts

    def kernel(parts, y, results, blocks, n, bits, count, divisor):
        shared = cuda.shared.array(places, kind)
        thread = cuda.threadIdx.x
        wide = 1 << bits
        down = thread >> bits
        i = (cuda.blockIdx.x << bits) + (thread & (wide - 1))
        acc = start()
        if i < results:
            above = div32(i, n)
            base = above * blocks * n + i - above * n
            block = np.int64(down)
            while block < blocks:
                acc = combine(acc, take(parts, base + block * n))
                block += THREADS >> bits
        put(shared, thread, acc)
        step = THREADS >> 1
        while step >= wide:
            cuda.syncthreads()
            if thread < step:
                put(shared, thread, combine(take(shared, thread), take(shared, thread + step)))
            step >>= 1
        if down == 0 and i < results:
            finish(y, i, take(shared, thread), count, divisor)

    kernel.__name__ = fold.name
    return kernel


def _parts(fold: GpuFold, accumulators: int) -> Scratch:
    return Scratch(fold.accumulator, accumulators * fold.parts)


def _join(fold: GpuFold, parts: Scratch, y: Arg, results: int, blocks: int, n: int, ends) -> Grid:
    bits = min(5, _power(n).bit_length() - 1)
    args = (parts, y, results, blocks, n, bits, *ends)
    return Grid(join_kernel(fold), *args, grid=-(-results >> bits), block=THREADS)
