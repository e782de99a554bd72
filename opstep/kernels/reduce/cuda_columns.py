"""Reductions that keep the last axes: threads fold a vector of neighbouring results each."""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.kernels.reduce.cuda_folding import (
    FIRST,
    POSITION,
    THREADS,
    GpuFold,
    power_of_two,
    steps_of,
)
from opstep.kernels.reduce.cuda_joining import join, parts_of
from opstep.kernels.reduce.reduction import Groups
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

LEAST = 1 << 14  # elements worth a block of their own
COLUMN_BLOCKS = 264  # about so many blocks share results that are few
ACROSS = 32  # threads of a block that stand side by side
COLUMN_WIDTH = 8  # results at most that a thread folds


@cache
def columns_kernel(fold: GpuFold, width: int, raw: bool):
    """Blocks fold `per` rows of `wide` vectors of columns; a thread takes every `tall`th row."""
    steps = steps_of(fold, width, raw)
    spread, spread_four, starts, finish = (
        steps.spread,
        steps.spread_four,
        steps.starts,
        steps.finish,
    )
    put, get = steps.put, steps.get
    vector = Intrinsic("load", width)
    combine, parts = fold.combine, fold.parts
    needs_first, needs_position = fold.context == FIRST, fold.context == POSITION
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
        accs = starts()
        if column < n:
            base = spot(i, kept_sizes, kept_strides, kept) + column
            first = vector(x, base)
            r = begin + down
            while r + 3 * tall < end:
                v0 = vector(x, base + spot(r, row_sizes, row_strides, axes))
                v1 = vector(x, base + spot(r + tall, row_sizes, row_strides, axes))
                v2 = vector(x, base + spot(r + 2 * tall, row_sizes, row_strides, axes))
                v3 = vector(x, base + spot(r + 3 * tall, row_sizes, row_strides, axes))
                c0 = context(first, r)
                c1 = context(first, r + tall)
                c2 = context(first, r + 2 * tall)
                c3 = context(first, r + 3 * tall)
                accs = spread_four(accs, v0, v1, v2, v3, c0, c1, c2, c3)
                r += 4 * tall
            while r < end:
                v0 = vector(x, base + spot(r, row_sizes, row_strides, axes))
                accs = spread(accs, v0, context(first, r))
                r += tall
        store(shared, accs, thread)
        step = tall >> 1
        while step > 0:
            cuda.syncthreads()
            if down < step:
                for k in range(width):
                    own = get(shared, k * THREADS + thread)
                    other = get(shared, k * THREADS + thread + step * wide)
                    put(shared, k * THREADS + thread, combine(own, other))
            step >>= 1
        if down == 0 and column < n:
            for k in range(width):
                acc = get(shared, k * THREADS + thread)
                finish(y, block * n + column + k, acc, count, divisor)

    context = _first_of_result if needs_first else _positions(width)
    if not (needs_first or needs_position):
        context = _nothing(width)
    store = _store(put, width)

    kernel.__name__ = fold.name
    return kernel


def _first_of_result(first, r):
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


def _store(put, width: int):
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


def by_columns(fold: GpuFold, s: Groups, x: Arg, y: Arg, ends: tuple[int, int]) -> list[Grid]:
    width = min(COLUMN_WIDTH, 16 // x.stored.itemsize)
    strides = (s.n, *s.kept_strides, *s.row_strides)
    if any(step % width for step in strides):
        width = 1
    wide = min(ACROSS, power_of_two(-(-s.n // width)))
    across = -(-s.n // (width * wide))
    tiles = s.kept * across
    blocks = 1
    if tiles < COLUMN_BLOCKS // 2 and s.rows > 4 * THREADS // wide:
        blocks = min(COLUMN_BLOCKS // tiles, -(-s.rows * min(s.n, wide * width) // LEAST))
    per = -(-s.rows // max(1, blocks))
    blocks = -(-s.rows // per)
    results = s.kept * s.n
    y_or_parts = parts_of(fold, results * blocks) if blocks > 1 else y
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
    return [first, join(fold, y_or_parts, y, results, blocks, s.n, ends)]
