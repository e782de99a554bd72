"""Convolutions of halves on tensor cores, summed up in f32.

Filters are copied to shared memory while the tile before is multiplied; what they see goes there
through registers: a thread looks at one pixel, eight terms at a time, which are neighbours in
shared memory. What `table` and `missing` are, `cuda_tiles` says.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.conv.cuda_tiles import HALF, LOWER, seen_from, target_of
from opstep.kernels.matmul.cuda_gemm_simt import tile_of
from opstep.kernels.matmul.cuda_gemm_tensor_cores import copier
from opstep.kernels.matmul.cuda_tile import (
    LINE,
    WarpTile,
    chunk_offset,
    operand_offsets,
    sums_origin,
)
from opstep.kernels.pointwise.cuda_epilogue import AHEAD, Ending, finishing
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import (
    as_f32,
    commit_copies,
    cuda,
    div32,
    pointer_to,
    store8,
    stored_bits,
)
from opstep.runtime.device.source import Intrinsic

_BITS = np.dtype(np.uint16)


@cache
def pixel_finisher(tile: WarpTile, wide: int, ending: Ending | None = None):
    """(y, sums, bias, column0, pixels, area, out_w, image_step, plane, step_w, targets, rows,
    biased, channel0, rest): sums of filters by pixels, from shared memory to planes of y from
    `channel0` on, `wide` neighbours at once; those of one image are `area`, in rows of `out_w`.
    They are finished first, if they have an `ending`.
    """
    threads, sums_pitch, in_line = tile.threads, tile.sums_pitch, tile.columns // wide
    assert not threads % in_line, "a thread keeps to its columns"
    apart, groups = threads // in_line, AHEAD if ending else 1
    put = finishing(ending, wide, by_row=True)

    def finish(
        y, sums, bias, column0, pixels, area, out_w, image_step, plane, step_w, targets, rows,
        biased, channel0, rest,
    ):  # fmt: skip
        thread = cuda.threadIdx.x
        column = thread % in_line * wide
        q = column0 + column
        if q < pixels:
            spot = target_of(q, area, out_w, image_step, step_w, targets)
            first = thread // in_line
            source, index = first * sums_pitch + column, spot + (channel0 + first) * plane
            to = offset(y, index)
            for row in range(first, rows, groups * apart):
                put(
                    to, sums, source, apart * sums_pitch, index, apart * plane, channel0 + row,
                    apart, (rows - row - 1) // apart + 1, bias, 0, biased, rest,
                )  # fmt: skip
                to = offset(to, groups * apart * plane)
                index += groups * apart * plane
                source += groups * apart * sums_pitch

    return finish


@cache
def convolve_halves(
    tile: WarpTile, w_wide: bool, y_wide: int, bf16: bool, ending: Ending | None = None
):
    """The kernel for tiles of filters by pixels, of two stages; so many outputs are written at
    once. `w_wide`: filters have a multiple of 8 terms.
    """
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    tile_rows, tile_columns, right_at = tile.rows, tile.columns, tile.right_at
    held, apart = tile_columns * LINE // threads, threads // tile_columns
    chunks = held // 8
    copy_left = copier(tile_rows, threads, True, w_wide)
    multiply = tile.product(True, True, bf16)
    starts, origin_of = operand_offsets(tile, True, True), sums_origin(tile)
    zeros, arrived = Intrinsic("fill", tile.sums), tile.arrived()
    put_sums, sums_pitch = tile.put_sums(), tile.sums_pitch
    eight = Intrinsic("gather", 8)
    finish = pixel_finisher(tile, y_wide, ending)
    assert tile.stages == 2

    def lookup(gathered, x, table, base, missing, step, thread):
        first = step + thread // tile_columns * 8
        right = 0
        for v in range(chunks):
            for e in range(8):
                term = table[first + v * apart * 8 + e]
                inside = missing & np.int32(term >> 32) == 0
                at = pick(inside, np.int32(base + (term & LOWER) - HALF), np.int32(0))
                gathered[v * 8 + e] = x[at]
                right |= pick(inside, 1 << v * 8 + e, 0)
        return right

    def put(shared, gathered, right, thread):
        line = thread % tile_columns
        for v in range(chunks):
            for e in range(v * 8, v * 8 + 8):
                gathered[e] = pick(right >> e & 1 != 0, gathered[e], np.uint16(0))
            chunk = thread // tile_columns + v * apart
            store8(shared, chunk_offset(line, chunk), eight(offset(gathered, v * 8)))

    def convolve(
        x, w, bias, y, w_start, table, row_starts, missing_rows, missing_columns, targets, groups,
        filters, terms, pixels, area, out_w, image_step, group_step, column_step, plane, step_w,
        down, across, parts, part_steps, part_size, biased, rest,
    ):  # fmt: skip
        """y[part, n, group*filters + f, pixel] = the sum over a part of the terms."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        gathered = pointer_to(cuda.local.array(held, _BITS))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        group = div32(batch, parts)
        part = batch - group * parts
        begin = part * part_steps
        end = min(begin + part_steps, terms)
        q = column0 + thread % tile_columns
        first_of, base, missing = seen_from(
            q,
            pixels,
            area,
            out_w,
            image_step,
            column_step,
            row_starts,
            missing_rows,
            missing_columns,
        )
        seen = stored_bits(offset(x, first_of + group * group_step))
        left = stored_bits(offset(w, w_start + (group * filters + row0) * terms))
        rows = filters - row0
        left_start, right_start = starts(thread)
        right_start += right_at
        sums = zeros(0.0)
        now = stage
        for step in range(begin - steps, end, steps):  # the first only reads ahead
            ahead = step + steps
            next_stage = offset(shared, stage - now)
            right = 0
            if ahead < end:
                copy_left(next_stage, offset(left, ahead), rows, end - ahead, terms, thread)
                right = lookup(gathered, seen, table, base, missing, ahead, thread)
            commit_copies()
            if step >= begin:
                here = offset(shared, now)
                sums = multiply(sums, offset(here, left_start), offset(here, right_start))
            now = stage - now
            if ahead < end:
                put(offset(next_stage, right_at), gathered, right, thread)
            arrived()
            cuda.syncthreads()
        whole = as_f32(shared)
        row, column = origin_of(thread)
        put_sums(offset(whole, row * sums_pitch + column), sums)
        cuda.syncthreads()
        channel = group * filters + row0
        finish(
            offset(y, part * part_size), whole, bias, column0, pixels, area, out_w,
            groups * filters * plane, plane, step_w, targets, min(tile_rows, rows), biased, channel,
            rest,
        )  # fmt: skip

    return convolve
