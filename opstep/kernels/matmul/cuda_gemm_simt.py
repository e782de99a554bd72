"""Matrix products of f32 and f64 in fused multiply-adds, and of integers."""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.matmul.cuda_tile import Tile, fetcher, putter, thread_origin
from opstep.kernels.matmul.products import batch_offset
from opstep.kernels.pointwise.cuda_epilogue import Ending, finishing
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32, pointer_to, real, spread
from opstep.runtime.device.source import Intrinsic

_AHEAD = 16  # loads that a thread has under way
GROUP = 8  # rows of tiles whose blocks run together, so that they share columns in the L2 cache


def tile_of(unit, down, across):
    """(row, column) of the unit-th tile of `down` by `across`: by groups of rows of tiles."""
    group = div32(unit, GROUP * across)
    first = group * GROUP
    height = min(GROUP, down - first)
    within = unit - group * (GROUP * across)
    column = div32(within, height)
    return first + within - column * height, column


def matrix_offset(matrix, rank, shape, strides):
    """Where the matrix-th of matrices begins: its index in `shape` times the strides."""
    at = 0
    for d in range(rank - 1, -1, -1):
        rest = div32(matrix, shape[d])
        at += (matrix - rest * shape[d]) * strides[d]
        matrix = rest
    return at


@cache
def tiled(tile: Tile, a_along: bool, b_along: bool, a_wide: int, b_wide: int, c_wide: int):
    """The kernel for tiles of that shape; `along`: the operand is contiguous along the sum;
    `wide`: how many elements of it are read, or written, at once.
    """
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    tile_rows, tile_columns = tile.rows, tile.columns
    right_at, run, row_gap, column_gap = tile.right_at, tile.run, tile.row_gap, tile.column_gap
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    count, size = thread_rows * thread_columns, 2 * stage
    left_held, right_held = tile_rows * steps // threads, tile_columns * steps // threads
    fetch_left = fetcher(tile_rows, steps, threads, a_along, a_wide)
    fetch_right = fetcher(tile_columns, steps, threads, b_along, b_wide)
    put_left = putter(tile_rows, steps, threads, a_along, a_wide, tile.left_pitch)
    put_right = putter(tile_columns, steps, threads, b_along, b_wide, tile.right_pitch)
    multiply, origin_of = tile.product(), thread_origin(tile)
    zeros = Intrinsic("fill", count)
    gather, store = Intrinsic("gather", c_wide), Intrinsic("store", c_wide)

    def multiply_tiles(
        a, b, bias, c, batch_shape, a_strides, b_strides, c_strides, rank, m, n, k, a_pitch,
        b_pitch, c_pitch, down, across, parts, part_steps, biased,
    ):  # fmt: skip
        """c[batch, part] = a·b over a part of the terms (+ a bias for each column)."""
        memory = cuda.shared.array(size, real)
        a_held = pointer_to(cuda.local.array(left_held, real))
        b_held = pointer_to(cuda.local.array(right_held, real))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        matrix = div32(batch, parts)
        part = batch - matrix * parts
        begin = part * part_steps
        end = min(begin + part_steps, k)
        left = offset(a, matrix_offset(matrix, rank, batch_shape, a_strides))
        right = offset(b, matrix_offset(matrix, rank, batch_shape, b_strides))
        row, column = origin_of(thread)
        shared = pointer_to(memory)
        sums = zeros(0.0)
        fetch_left(a_held, left, row0, m, begin, end, a_pitch, thread)
        fetch_right(b_held, right, column0, n, begin, end, b_pitch, thread)
        put_left(shared, a_held, thread)
        put_right(offset(shared, right_at), b_held, thread)
        cuda.syncthreads()
        at = 0
        for step in range(begin, end, steps):
            ahead = step + steps
            if ahead < end:
                fetch_left(a_held, left, row0, m, ahead, end, a_pitch, thread)
                fetch_right(b_held, right, column0, n, ahead, end, b_pitch, thread)
            here = offset(shared, at)
            sums = multiply(sums, offset(here, row), offset(here, right_at + column))
            at = stage - at
            if ahead < end:
                put_left(offset(shared, at), a_held, thread)
                put_right(offset(shared, at + right_at), b_held, thread)
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(count, real))
        spread(held, sums)
        out = offset(c, matrix_offset(matrix, rank, batch_shape, c_strides) + part * m * n)
        for i in range(thread_rows):
            r = row0 + row + i // run * row_gap + i % run
            if r < m:
                for j in range(0, thread_columns, c_wide):
                    q = column0 + column + j // run * column_gap + j % run
                    if q < n:
                        mine = offset(held, i * thread_columns + j)
                        if biased:
                            for e in range(c_wide):
                                mine[e] += bias[q + e]
                        if c_wide > 1:
                            store(out, r * c_pitch + q, gather(mine))
                        else:
                            out[r * c_pitch + q] = mine[0]

    return multiply_tiles


@cache
def adding(ending: Ending | None, by_channel: bool = False):
    """The kernel that adds parts of sums up, and finishes them if they have an `ending`. There are
    so many channels, of `inner` neighbours each; a bias is one for each, or for each column.
    """
    put = finishing(ending, 1, by_row=by_channel)

    def add_parts(parts, bias, c, size, count, n, part_count, biased, inner, channels, rest):
        """c[matrix, i] = the sum of parts[matrix, p, i] (+ a bias): a thread an element, of `size`
        (below 2**32) in all and `count` in a matrix.
        """
        i = cuda.grid(1)
        if i < size:
            matrix = div32(i, count)
            source = offset(parts, i + matrix * (part_count - 1) * count)
            held = pointer_to(cuda.local.array(_AHEAD, real))
            total = source[0]
            last = (part_count - 1) % _AHEAD + 1
            for p in range(1, last):
                total += source[p * count]
            for p in range(last, part_count, _AHEAD):
                for u in range(_AHEAD):  # all under way before the first is waited for
                    held[u] = source[(p + u) * count]
                for u in range(_AHEAD):
                    total += held[u]
            held[0] = total
            channel, column = mod32(div32(i, inner), channels), mod32(i, n)
            put(offset(c, i), held, 0, 0, i, 0, channel, 0, 1, bias, column, biased, rest)

    return add_parts


def multiply_integers(
    a, b, bias, c, a_zero, b_zero, batch_shape, a_strides, b_strides, c_strides, rank, m, n, k,
    a_row, a_step, b_step, b_column, c_pitch, size, biased, shifted, each_zero,
):  # fmt: skip
    """c = a·b (+ a bias for each column), modulo the result's range: a thread an element. Bytes are
    taken less their zero points, if they are `shifted`; b may have one for `each` column.
    """
    i = cuda.grid(1)
    if i < size:
        matrix, at = i // (m * n), i % (m * n)
        row, column = at // n, at % n
        left = offset(a, batch_offset(matrix, rank, batch_shape, a_strides) + row * a_row)
        right = offset(b, batch_offset(matrix, rank, batch_shape, b_strides) + column * b_column)
        a_off = np.int64(a_zero[0]) if shifted & 1 else np.int64(0)
        b_off = np.int64(b_zero[column * each_zero]) if shifted & 2 else np.int64(0)
        total = np.int64(0)
        for step in range(k):
            total += (left[step * a_step] - a_off) * (right[step * b_step] - b_off)
        if biased:
            total += bias[column]
        out = offset(c, batch_offset(matrix, rank, batch_shape, c_strides))
        out[row * c_pitch + column] = total
