"""Matrix products of halves on tensor cores, summed up in f32 (architectures from 8.0 on).

Copies from global to shared memory run some tiles ahead of what is multiplied.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.gpu.gemm_simt import matrix_offset, tile_of
from opstep.kernels.gpu.tile import LINE, WarpTile, chunk_place, places, sums_place
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.names import (
    commit_copies,
    copy_async16,
    cuda,
    div32,
    pointer_to,
    real,
    seen_as_single,
    spread,
    stored_bits,
)
from opstep.runtime.device.source import Intrinsic

_BITS = np.dtype(np.uint16)


@cache
def copier(extent: int, threads: int, along: bool, wide: bool):
    """(shared, source, first, limit, k, k_end, pitch, thread): starts this thread's part of copying
    an operand's tile to shared memory, `extent` rows (of the left operand; columns of the right
    one) from `first` on by `LINE` terms from k on.

    `along`: memory is contiguous along the sum, else along rows; `pitch` elements lie between its
    lines. `wide`: pitch and limit or k_end are multiples of 8. Terms from k_end on are zeros; rows
    from `limit` on are others', whose sums nobody may store.
    """
    units = extent * LINE // (8 * threads)
    last = 1 if along else 8

    def copy_chunks(shared, source, first, limit, k, k_end, pitch, thread):
        for u in range(units):
            unit = thread + u * threads
            line, chunk = unit // 8, unit % 8
            if along:
                step, across = k + chunk * 8, min(first + line, limit - last)
                at = across * pitch + step
            else:
                step = k + line % LINE
                across = min(first + line // LINE * LINE + chunk * 8, limit - last)
                at = step * pitch + across
            copy_async16(offset(shared, chunk_place(line, chunk)), source, at, step < k_end)

    def copy_elements(shared, source, first, limit, k, k_end, pitch, thread):
        for u in range(units):
            unit = thread + u * threads
            line, chunk = unit // 8, unit % 8
            to = offset(shared, chunk_place(line, chunk))
            for e in range(8):
                if along:
                    step, across = k + chunk * 8 + e, min(first + line, limit - 1)
                    at = across * pitch + step
                else:
                    step = k + line % LINE
                    across = min(first + line // LINE * LINE + chunk * 8 + e, limit - 1)
                    at = step * pitch + across
                bits = np.uint16(0)
                if step < k_end:
                    bits = source[at]
                to[e] = bits

    return copy_chunks if wide else copy_elements


@cache
def finisher(tile: WarpTile, wide: int):
    """(c, sums, bias, rows, columns, pitch, biased): a tile's sums from shared memory to the
    result, `wide` elements at once, as many rows and columns as there are.
    """
    chunks, threads, sums_pitch = tile.columns // wide, tile.threads, tile.sums_pitch
    load, store = Intrinsic("load", wide), Intrinsic("store", wide)
    gather = Intrinsic("gather", wide)

    def finish(c, sums, bias, rows, columns, pitch, biased):
        held = pointer_to(cuda.local.array(wide, real))
        for unit in range(cuda.threadIdx.x, rows * chunks, threads):
            row, column = unit // chunks, unit % chunks * wide
            if column < columns:
                at = row * sums_pitch + column
                if wide > 1:
                    spread(held, load(sums, at))
                else:
                    held[0] = sums[at]
                if biased:
                    for e in range(wide):
                        held[e] += bias[column + e]
                if wide > 1:
                    store(c, row * pitch + column, gather(held))
                else:
                    c[row * pitch + column] = held[0]

    return finish


@cache
def tensor_tiled(
    tile: WarpTile, a_along: bool, b_along: bool, a_wide: bool, b_wide: bool, c_wide: int,
    bf16: bool,
):  # fmt: skip
    """The kernel for tiles of that shape; `along`, `wide`: see `copier`; `c_wide`: how many
    elements of the result are written at once.
    """
    threads, steps, stages, stage = tile.threads, tile.steps, tile.stages, tile.stage
    tile_rows, tile_columns, right_at = tile.rows, tile.columns, tile.right_at
    copy_left = copier(tile_rows, threads, a_along, a_wide)
    copy_right = copier(tile_columns, threads, b_along, b_wide)
    multiply, settled = tile.product(a_along, b_along, bf16), tile.settled()
    starts, place = places(tile, a_along, b_along), sums_place(tile)
    zeros, arrived = Intrinsic("fill", tile.sums), tile.arrived()
    put_sums, sums_pitch, finish = tile.put_sums(), tile.sums_pitch, finisher(tile, c_wide)

    def multiply_halves(
        a, b, bias, c, batch_shape, a_strides, b_strides, rank, m, n, k, a_pitch, b_pitch, down,
        across, parts, part_steps, biased,
    ):  # fmt: skip
        """c[batch, part] = a·b over a part of the terms (+ a bias for each column)."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        matrix = div32(batch, parts)
        begin = (batch - matrix * parts) * part_steps
        end = min(begin + part_steps, k)
        left = stored_bits(offset(a, matrix_offset(matrix, rank, batch_shape, a_strides)))
        right = stored_bits(offset(b, matrix_offset(matrix, rank, batch_shape, b_strides)))
        left_start, right_start = starts(thread)
        right_start += right_at
        sums = zeros(0.0)
        ahead = begin
        to = 0
        for _ in range(stages - 1):
            if ahead < end:
                here = offset(shared, to)
                copy_left(here, left, row0, m, ahead, end, a_pitch, thread)
                here = offset(shared, to + right_at)
                copy_right(here, right, column0, n, ahead, end, b_pitch, thread)
            commit_copies()
            ahead += steps
            to += stage
        at = 0
        for _ in range(begin, end, steps):
            arrived()
            cuda.syncthreads()
            here = offset(shared, at)
            sums = multiply(sums, offset(here, left_start), offset(here, right_start))
            if ahead < end:
                here = offset(shared, to)
                copy_left(here, left, row0, m, ahead, end, a_pitch, thread)
                here = offset(shared, to + right_at)
                copy_right(here, right, column0, n, ahead, end, b_pitch, thread)
            commit_copies()
            sums = settled(sums)
            ahead += steps
            to = at
            at += stage
            if at == stages * stage:
                at = 0
        cuda.syncthreads()
        whole = seen_as_single(shared)
        row, column = place(thread)
        put_sums(offset(whole, row * sums_pitch + column), sums)
        cuda.syncthreads()
        out = offset(c, batch * m * n + row0 * n + column0)
        finish(out, whole, offset(bias, column0), min(tile_rows, m - row0), n - column0, n, biased)

    return multiply_halves
