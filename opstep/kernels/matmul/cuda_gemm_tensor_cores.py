"""Matrix products of halves on tensor cores, summed up in f32 (architectures from 8.0 on).

Copies from global to shared memory run some tiles ahead of what is multiplied.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset, tile_of
from opstep.kernels.matmul.cuda_tile import (
    LINE,
    WarpTile,
    chunk_offset,
    operand_offsets,
    sums_origin,
)
from opstep.kernels.pointwise.cuda_epilogue import AHEAD, Ending, finishing
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    as_f32,
    commit_copies,
    copy_async16,
    cuda,
    div32,
    pointer_to,
    stored_bits,
)
from opstep.runtime.device.source import Intrinsic

_BITS = np.dtype(np.uint16)


@cache
def copier(extent: int, threads: int, along: bool, wide: bool):
    """(shared, source, limit, terms, pitch, thread): starts this thread's part of copying an
    operand's tile to shared memory, `extent` rows (of the left operand; columns of the right one)
    by `LINE` terms, from `source` on.

    `along`: memory is contiguous along the sum, else along rows; `pitch` elements lie between its
    lines. `wide`: pitch and limit or terms are multiples of 8. From the term `terms` on there are
    zeros; rows from `limit` on are others', whose sums nobody may store.
    """
    units = extent * LINE // (8 * threads)
    lines = threads // 8  # at once
    last = 1 if along else 8
    assert LINE % lines == 0, "a thread keeps to its chunk of a line, and to a few terms"

    def copy_chunks(shared, source, limit, terms, pitch, thread):
        line, at = thread // 8, thread % 8 * 8
        to = offset(shared, chunk_offset(line, thread % 8))
        for u in range(units):
            if along:
                row, step = line + u * lines, at
                index = min(row, limit - last) * pitch + at
            else:
                row, step = u * lines // LINE * LINE + at, line + u * lines % LINE
                index = step * pitch + min(row, limit - last)
            inside = (step < terms) & (row < limit)  # all that copy one line would wait for it
            copy_async16(offset(to, u * lines * LINE), source, index, inside)

    def copy_elements(shared, source, limit, terms, pitch, thread):
        line, at = thread // 8, thread % 8 * 8
        to = offset(shared, chunk_offset(line, thread % 8))
        for u in range(units):
            for e in range(8):
                if along:
                    step = at + e
                    index = min(line + u * lines, limit - 1) * pitch + step
                else:
                    step = line + u * lines % LINE
                    index = step * pitch + min(u * lines // LINE * LINE + at + e, limit - 1)
                bits = np.uint16(0)
                if step < terms:
                    bits = source[index]
                to[u * lines * LINE + e] = bits

    return copy_chunks if wide else copy_elements


@cache
def finisher(
    columns: int, threads: int, sums_pitch: int, wide: int, ending: Ending | None = None,
    by_row: bool = False,
):  # fmt: skip
    """(c, at, sums, bias, rows, columns, pitch, biased, row0, column0, rest): a tile's sums from
    shared memory to the result from element `at` on, `wide` at once, as many rows and columns as
    there are, of which the first are `row0` and `column0`. They are finished first, if they have an
    `ending`; its channels are rows, or columns.
    """
    chunks = columns // wide
    keeps = threads % chunks == 0  # a thread to its columns
    apart = threads // chunks if keeps else 0  # rows that are written together
    groups = AHEAD if ending and keeps else 1
    put = finishing(ending, wide, not by_row)

    def finish(c, at, sums, bias, rows, columns, pitch, biased, row0, column0, rest):
        for unit in range(cuda.threadIdx.x, rows * chunks, threads):
            row, column = unit // chunks, unit % chunks * wide
            if column < columns:
                channel = row0 + row if by_row else column0 + column
                to = at + row * pitch + column
                put(
                    offset(c, to), sums, row * sums_pitch + column, 0, to, 0, channel, 0, 1, bias,
                    column, biased, rest,
                )  # fmt: skip

    def finish_columns(c, at, sums, bias, rows, columns, pitch, biased, row0, column0, rest):
        first, column = cuda.threadIdx.x // chunks, cuda.threadIdx.x % chunks * wide
        if column < columns:
            to, source = offset(c, at + first * pitch + column), first * sums_pitch + column
            index = at + first * pitch + column
            for row in range(first, rows, groups * apart):
                channel = row0 + row if by_row else column0 + column
                put(
                    to, sums, source, apart * sums_pitch, index, apart * pitch, channel,
                    apart if by_row else 0, (rows - row - 1) // apart + 1, bias, column, biased,
                    rest,
                )  # fmt: skip
                to = offset(to, groups * apart * pitch)
                index += groups * apart * pitch
                source += groups * apart * sums_pitch

    return finish_columns if keeps else finish


@cache
def tensor_tiled(
    tile: WarpTile, a_along: bool, b_along: bool, a_wide: bool, b_wide: bool, c_wide: int,
    bf16: bool, ending: Ending | None = None, by_row: bool = False,
):  # fmt: skip
    """The kernel for tiles of that shape; `along`, `wide`: see `copier`; `c_wide`: how many
    elements of the result are written at once; `ending`, `by_row`: see `finisher`.
    """
    threads, steps, stages, stage = tile.threads, tile.steps, tile.stages, tile.stage
    tile_rows, tile_columns, right_at = tile.rows, tile.columns, tile.right_at
    copy_left = copier(tile_rows, threads, a_along, a_wide)
    copy_right = copier(tile_columns, threads, b_along, b_wide)
    multiply, settled = tile.product(a_along, b_along, bf16), tile.settled()
    starts, origin_of = operand_offsets(tile, a_along, b_along), sums_origin(tile)
    zeros, arrived = Intrinsic("fill", tile.sums), tile.arrived()
    put_sums, sums_pitch, finish = (
        tile.put_sums(),
        tile.sums_pitch,
        finisher(tile.columns, threads, tile.sums_pitch, c_wide, ending, by_row),
    )

    def multiply_halves(
        a, b, bias, c, batch_shape, a_strides, b_strides, c_strides, rank, m, n, k, a_pitch,
        b_pitch, c_pitch, down, across, parts, part_steps, biased, rest,
    ):  # fmt: skip
        """c[batch, part] = a·b over a part of the terms (+ a bias for each column)."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        matrix = div32(batch, parts)
        part = batch - matrix * parts
        begin = part * part_steps
        end = min(begin + part_steps, k)
        left_step, left_row = (1, a_pitch) if a_along else (a_pitch, 1)
        right_step, right_column = (1, b_pitch) if b_along else (b_pitch, 1)
        left = offset(a, matrix_offset(matrix, rank, batch_shape, a_strides))
        right = offset(b, matrix_offset(matrix, rank, batch_shape, b_strides))
        left = stored_bits(offset(left, row0 * left_row + begin * left_step))
        right = stored_bits(offset(right, column0 * right_column + begin * right_step))
        rows, columns, terms = m - row0, n - column0, end - begin
        left_start, right_start = starts(thread)
        right_start += right_at
        sums = zeros(0.0)
        to = 0
        for _ in range(stages - 1):
            if terms > 0:
                here = offset(shared, to)
                copy_left(here, left, rows, terms, a_pitch, thread)
                copy_right(offset(here, right_at), right, columns, terms, b_pitch, thread)
                left = offset(left, steps * left_step)
                right = offset(right, steps * right_step)
                terms -= steps
            commit_copies()
            to += stage
        at = 0
        for _ in range(begin, end, steps):
            arrived()
            cuda.syncthreads()
            here = offset(shared, at)
            sums = multiply(sums, offset(here, left_start), offset(here, right_start))
            if terms > 0:
                here = offset(shared, to)
                copy_left(here, left, rows, terms, a_pitch, thread)
                copy_right(offset(here, right_at), right, columns, terms, b_pitch, thread)
                left = offset(left, steps * left_step)
                right = offset(right, steps * right_step)
                terms -= steps
            commit_copies()
            sums = settled(sums)
            to = at
            at += stage
            if at == stages * stage:
                at = 0
        cuda.syncthreads()
        whole = as_f32(shared)
        row, column = origin_of(thread)
        put_sums(offset(whole, row * sums_pitch + column), sums)
        cuda.syncthreads()
        at = matrix_offset(matrix, rank, batch_shape, c_strides) + part * m * n
        finish(
            c, at + row0 * c_pitch + column0, whole, offset(bias, column0),
            min(tile_rows, m - row0), n - column0, c_pitch, biased, row0, column0, rest,
        )  # fmt: skip

    return multiply_halves
