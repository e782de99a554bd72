"""Convolutions of halves, summed up by tensor cores out of shared memory that copies fill while
others are multiplied (`wgmma`, architecture 9.0).

Images are laid out with channels last first, filters in blocks of 64 channels: of each block come
those of one place under the filter after the other's. A step of a tile is a block seen at one
place, so what a pixel sees in it are neighbours in memory, and there or not there as a whole.

On an H200, bf16: the forward of 41 layers of known networks takes 2.40 ms, by cuDNN with channels
first 3.57 ms. With cuDNN on images with channels last in its place networks took 1.05 to 1.4 times
as long at inference, and training of ResNet-50 1.14 times, for a way whose bits do not depend on
the layout had copies around each convolution.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.conv.cuda_tiles import target_of
from opstep.kernels.matmul.cuda_gemm_simt import tile_of
from opstep.kernels.matmul.cuda_gemm_tensor_cores import copier, finisher
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
    stored_bits,
)
from opstep.runtime.device.source import Intrinsic

_BITS, _WHOLE = np.dtype(np.uint16), np.dtype(np.int32)
NOWHERE = -(1 << 28)  # the row of a pixel that is none


def next_of(block, r, s, rows_seen, columns_seen):
    """The step behind that of a block of channels seen at (r, s)."""
    s += 1
    if s == columns_seen:
        s = 0
        r += 1
        if r == rows_seen:
            r = 0
            block += 1
    return block, r, s


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
def convolve_blocks(
    tile: WarpTile, wide: int, y_wide: int, bf16: bool, ending: Ending | None = None,
    last: bool = False,
):  # fmt: skip
    """The kernel for tiles of filters by pixels; so many outputs are written at once. `wide`:
    channels that are copied together, 8 of a block of 64; or 4, all that there are, and a step is
    16 places under the filter. `ending`: see `pixel_finisher`. With `last` tiles are pixels by
    filters, and y has channels last, too.
    """
    threads, stages, stage, right_at = tile.threads, tile.stages, tile.stage, tile.right_at
    tile_rows, tile_columns = tile.rows, tile.columns
    pieces = LINE // wide  # of a pixel, a thread each
    lines = threads // pieces  # pixels that are looked at together
    held = (tile_rows if last else tile_columns) // lines
    few = wide == 4
    copy_filters = copier(tile_columns if last else tile_rows, threads, True, True)
    pixels_at, filters_at = (0, right_at) if last else (right_at, 0)
    copy = Intrinsic("copy_async", 2 * wide)
    multiply, settled = tile.product(True, True, bf16), tile.settled()
    starts, origin_of = operand_offsets(tile, True, True), sums_origin(tile)
    zeros, arrived = Intrinsic("fill", tile.sums), tile.arrived()
    put_sums, sums_pitch = tile.put_sums(), tile.sums_pitch
    by_pixels = finisher(tile.columns, tile.threads, tile.sums_pitch, y_wide, ending)
    by_filters = pixel_finisher(tile, y_wide, ending)
    assert lines % 8 == 0, "a thread keeps to its place in a swizzled line"

    def copy_pixels(
        shared, x, tops, sides, bases, block, r, s, row_gap, column_gap, columns_seen, taps,
        channels, height, width, line, thread,
    ):  # fmt: skip
        mine = thread % pieces * wide
        if few:
            tap = block * pieces + thread % pieces
            r = div32(tap, columns_seen)
            s = tap - r * columns_seen
            first, there = 0, tap < taps
        else:
            first, there = block * LINE, block * LINE + mine < channels
        down, across = np.int32(r * row_gap), np.int32(s * column_gap)
        to = offset(shared, chunk_offset(thread // pieces, mine // 8) + mine % 8)
        further = np.int32((down * width + across) * line + first)
        for u in range(held):
            row = np.uint32(np.int32(tops[u] + down))
            column = np.uint32(np.int32(sides[u] + across))
            inside = (row < np.uint32(height)) & (column < np.uint32(width)) & there
            copy(offset(to, u * lines * LINE), x, np.int32(bases[u] + further), inside)

    def convolve(
        x, w, bias, y, w_start, row_first, row_gap, column_first, column_gap, rows_seen,
        columns_seen, groups, filters, channels, line, steps, pixels, height, width, stride_h,
        stride_w, area, out_w, plane, step_w, targets, down, across, parts, part_steps, part_size,
        biased, rest,
    ):  # fmt: skip
        """y[part, n, group*filters + f, pixel] = the sum over a part of the steps."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        tops = pointer_to(cuda.local.array(held, _WHOLE))
        sides = pointer_to(cuda.local.array(held, _WHOLE))
        bases = pointer_to(cuda.local.array(held, _WHOLE))  # where each pixel's window begins
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        filter0, pixel0 = row0, column0
        if last:
            filter0, pixel0 = column0, row0
        group = div32(batch, parts)
        part = batch - group * parts
        taps, pixel_step = rows_seen * columns_seen, np.int32(groups * channels)
        begin = part * part_steps
        end = min(begin + part_steps, steps)
        mine = pick(few, 0, thread % pieces * wide)  # of the channels of a block
        for u in range(held):
            q = pixel0 + thread // pieces + u * lines
            tops[u], sides[u], bases[u] = np.int32(NOWHERE), np.int32(0), np.int32(0)
            if q < pixels:
                image = div32(q, area)
                at = q - image * area
                i = div32(at, out_w)
                top, side = i * stride_h + row_first, (at - i * out_w) * stride_w + column_first
                tops[u], sides[u] = np.int32(top), np.int32(side)
                pixel = (image * height + top) * width + side
                bases[u] = np.int32(pixel * pixel_step + group * channels + mine)
        height, width = np.int32(height), np.int32(width)
        seen = stored_bits(x)
        left = stored_bits(offset(w, w_start + (group * filters + filter0) * line + begin * LINE))
        rows, terms = filters - filter0, line - begin * LINE
        block, r, s = begin, 0, 0  # what is copied next
        if not few:
            block = div32(begin, taps)
            r = div32(begin - block * taps, columns_seen)
            s = begin - block * taps - r * columns_seen
        left_start, right_start = starts(thread)
        right_start += right_at
        sums = zeros(0.0)
        to, ahead = 0, begin
        for _ in range(stages - 1):
            if ahead < end:
                here = offset(shared, to)
                copy_filters(offset(here, filters_at), left, rows, terms, line, thread)
                copy_pixels(
                    offset(here, pixels_at), seen, tops, sides, bases, block, r, s, row_gap,
                    column_gap, columns_seen, taps, channels, height, width, pixel_step, thread,
                )  # fmt: skip
                left = offset(left, LINE)
                terms -= LINE
                if few:
                    block += 1
                else:
                    block, r, s = next_of(block, r, s, rows_seen, columns_seen)
            commit_copies()
            ahead += 1
            to += stage
        at = 0
        for _ in range(begin, end):
            arrived()
            cuda.syncthreads()
            here = offset(shared, at)
            sums = multiply(sums, offset(here, left_start), offset(here, right_start))
            if ahead < end:
                here = offset(shared, to)
                copy_filters(offset(here, filters_at), left, rows, terms, line, thread)
                copy_pixels(
                    offset(here, pixels_at), seen, tops, sides, bases, block, r, s, row_gap,
                    column_gap, columns_seen, taps, channels, height, width, pixel_step, thread,
                )  # fmt: skip
                left = offset(left, LINE)
                terms -= LINE
                if few:
                    block += 1
                else:
                    block, r, s = next_of(block, r, s, rows_seen, columns_seen)
            commit_copies()
            ahead += 1
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
        channel = group * filters + filter0
        if last:
            by_pixels(
                y, part * part_size + pixel0 * groups * filters + channel, whole,
                offset(bias, channel), min(tile_rows, pixels - pixel0), rows, groups * filters,
                biased, pixel0, channel, rest,
            )  # fmt: skip
        else:
            by_filters(
                offset(y, part * part_size), whole, bias, pixel0, pixels, area, out_w,
                groups * filters * plane, plane, step_w, targets, min(tile_rows, rows), biased,
                channel, rest,
            )  # fmt: skip

    return convolve
