"""Reductions that keep the last axes: threads fold a vector of neighbouring results each."""

from __future__ import annotations

from functools import cache

from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.kernels.reduce.cuda_folding import (
    THREADS,
    finisher,
    folded_by,
    held_as,
    power_of_two,
)
from opstep.kernels.reduce.folds import Fold
from opstep.kernels.reduce.reduction import Groups
from opstep.kernels.reduce.states import GET, PUT
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

LEAST = 1 << 14  # elements worth a block of their own
COLUMN_BLOCKS = 264  # about so many blocks share results that are few
ACROSS = 32  # threads of a block that stand side by side
COLUMN_WIDTH = 8  # results at most that a thread folds


@cache
def columns_kernel(fold: Fold, width: int, raw: bool):
    """Blocks fold `per` rows of `wide` vectors of columns; a thread takes every `tall`th row."""
    start, load, widen, combine = fold.start, fold.load, fold.widen, fold.combine
    put, get, pair, finish = PUT[fold.pair], GET[fold.pair], fold.pair, finisher(fold, raw)
    kind, second = held_as(fold.state[0]), held_as(fold.state[-1])
    vector, places = Intrinsic("load", width), THREADS * width

    def kernel(
        x, y, more, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        rows, per, blocks, across, n, wide, count,
    ):  # fmt: skip
        shared = cuda.shared.array(places, kind)
        seconds = cuda.shared.array(places, second) if pair else shared
        own = cuda.local.array(width, kind)
        owns = cuda.local.array(width, second) if pair else own
        thread = cuda.threadIdx.x
        tall = div32(THREADS, wide)
        down = div32(thread, wide)
        block = div32(cuda.blockIdx.x, across)
        column = ((cuda.blockIdx.x - block * across) * wide + (thread & (wide - 1))) * width
        i = div32(block, blocks)
        begin = (block - i * blocks) * per
        end = min(begin + per, rows)
        for k in range(width):
            put(own, owns, k, start())
        if column < n:
            base = spot(i, kept_sizes, kept_strides, kept) + column
            r = begin + down
            while r + 3 * tall < end:
                v0 = vector(x, base + spot(r, row_sizes, row_strides, axes))
                v1 = vector(x, base + spot(r + tall, row_sizes, row_strides, axes))
                v2 = vector(x, base + spot(r + 2 * tall, row_sizes, row_strides, axes))
                v3 = vector(x, base + spot(r + 3 * tall, row_sizes, row_strides, axes))
                for k in range(width):
                    low = combine(load(v0[k], r), load(v1[k], r + tall))
                    high = load(v3[k], r + 3 * tall)
                    high = combine(load(v2[k], r + 2 * tall), high)
                    state = combine(get(own, owns, k), widen(combine(low, high)))
                    put(own, owns, k, state)
                r += 4 * tall
            while r < end:
                v0 = vector(x, base + spot(r, row_sizes, row_strides, axes))
                for k in range(width):
                    state = combine(get(own, owns, k), widen(load(v0[k], r)))
                    put(own, owns, k, state)
                r += tall
        for k in range(width):
            put(shared, seconds, k * THREADS + thread, get(own, owns, k))
        step = tall >> 1
        while step > 0:
            cuda.syncthreads()
            if down < step:
                for k in range(width):
                    at = k * THREADS + thread
                    below = get(shared, seconds, at + step * wide)
                    put(shared, seconds, at, combine(get(shared, seconds, at), below))
            step >>= 1
        if down == 0 and column < n:
            for k in range(width):
                state = get(shared, seconds, k * THREADS + thread)
                finish(y, more, block * n + column + k, state, count)

    kernel.__name__ = fold.name
    return kernel


def by_columns(fold: Fold, s: Groups, x: Arg, y: Arg, count: int) -> list[Grid]:
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

    def first(raw, *into):
        return Grid(
            columns_kernel(fold, width, raw),
            *(x, *into, *s.about()),
            *(s.rows, per, blocks, across, s.n, wide, count),
            grid=tiles * blocks,
            block=THREADS,
        )

    return folded_by(fold, y, blocks, s.n, count, first)
