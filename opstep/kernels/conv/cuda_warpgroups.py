"""Convolutions of halves, summed up by tensor cores out of shared memory that copies fill while
others are multiplied (`wgmma`, architecture 9.0).

Images are laid out with channels last first, filters in blocks of 64 channels: of each block come
those of one place under the filter after the other's. A step of a tile is a block seen at one
place, so what a pixel sees in it are neighbours in memory, and there or not there as a whole.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.conv.cuda_tensor_cores import pixel_finisher
from opstep.kernels.matmul.cuda_gemm_simt import tile_of
from opstep.kernels.matmul.cuda_gemm_tensor_cores import copier, finisher
from opstep.kernels.matmul.cuda_tile import (
    LINE,
    WarpTile,
    chunk_offset,
    operand_offsets,
    sums_origin,
)
from opstep.kernels.pointwise.cuda_epilogue import Ending
from opstep.runtime.device.builtin import offset, pick
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
    finish = _finisher(tile, y_wide, ending, last)
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
        stride_w, out_h, out_w, plane, plane_w, step_h, step_w, first, down, across, parts,
        part_steps, part_size, biased, rest,
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
        area = out_h * out_w
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
        finish(
            y, part * part_size + first, whole, bias, pixel0, pixels, area, out_w,
            groups * filters, plane, plane_w, step_h, step_w, rows, biased, channel, rest,
        )  # fmt: skip

    return convolve


@cache
def _finisher(tile: WarpTile, y_wide: int, ending: Ending | None, last: bool):
    """Puts a tile's sums where they go, from element `begin` of y on: `rows` filters from `channel`
    on, of `filters` in all.
    """
    tile_rows = tile.rows
    by_pixels = finisher(tile.columns, tile.threads, tile.sums_pitch, y_wide, ending)
    by_filters = pixel_finisher(tile, y_wide, ending)

    def finish_last(
        y, begin, sums, bias, pixel0, pixels, area, out_w, filters, plane, plane_w, step_h, step_w,
        rows, biased, channel, rest,
    ):  # fmt: skip
        by_pixels(
            y, begin + pixel0 * filters + channel, sums, offset(bias, channel),
            min(tile_rows, pixels - pixel0), rows, filters, biased, pixel0, channel, rest,
        )  # fmt: skip

    def finish(
        y, begin, sums, bias, pixel0, pixels, area, out_w, filters, plane, plane_w, step_h, step_w,
        rows, biased, channel, rest,
    ):  # fmt: skip
        by_filters(
            offset(y, begin), sums, bias, pixel0, pixels, area, out_w, filters * plane, plane,
            plane_w, step_h, step_w, min(tile_rows, rows), biased, channel, rest,
        )  # fmt: skip

    return finish_last if last else finish


@cache
def plane_copier(extent: int, threads: int, wide: int):
    """(shared, source, limit, here, index, area, thread): starts this thread's part of copying
    `extent` planes, a line each, `LINE` pixels of each, `wide` of one image at a time; the thread's
    own are `index` further, or zeros unless they are `here`. Planes from `limit` on are others'.
    """
    pieces = LINE // wide
    lines = threads // pieces  # at once
    copy = Intrinsic("copy_async", 2 * wide)
    assert lines % 8 == 0, "a thread keeps to its place in a swizzled line"

    def copy_planes(shared, source, limit, here, index, area, thread):
        line, at = thread // pieces, thread % pieces * wide
        to = offset(shared, chunk_offset(line, at // 8) + at % 8)
        for u in range(extent // lines):
            inside = here & (np.int32(line + u * lines) < limit)
            copy(offset(to, u * lines * LINE), source, index, inside)
            index = np.int32(index + lines * area)

    return copy_planes


@cache
def spread_over_blocks(tile: WarpTile, gy_wide: int, x_wide: int, bf16: bool):
    """The kernel for gradients of filters, by tiles of filters by blocks of 64 channels, each seen
    at one place under the filter: sums over all pixels. So many pixels of a plane of gy are copied
    at once, and of x, if filters see one pixel; where it is one, they have channels last.
    """
    threads, stages, stage, right_at = tile.threads, tile.stages, tile.stage, tile.right_at
    tile_rows, columns = tile.rows, tile.columns // LINE
    lines = threads // 8  # pixels that are looked at together, by eight threads each
    held = LINE // lines
    numbers = 3 * held
    pieces = LINE // max(gy_wide, 4)  # none are copied where it is 1
    copy_left = plane_copier(tile_rows, threads, max(gy_wide, 4))
    copy_right = plane_copier(tile.columns, threads, max(x_wide, 4))
    multiply, settled = tile.product(gy_wide > 1, x_wide > 1, bf16), tile.settled()
    starts, origin_of = operand_offsets(tile, gy_wide > 1, x_wide > 1), sums_origin(tile)
    zeros, arrived = Intrinsic("fill", tile.sums), tile.arrived()
    put_sums, sums_pitch = tile.put_sums(), tile.sums_pitch
    assert x_wide in (1, gy_wide)

    def copy_step(
        shared, gy, x, cursor, first, end, rows, inner, places, downs, acrosses, further, height,
        width, area, out_h, out_w, images_on, rows_on, columns_on, gy_step, x_step, gy_line, line,
        stride_h, stride_w, thread,
    ):  # fmt: skip
        """Copies the step from pixel `first` on, and moves what the thread keeps to the next one,
        so many images, rows and columns on: `cursor`, a pixel and where its image begins in gy and
        x, for planes; `places` for lines.
        """
        if gy_wide > 1:
            q = np.int32(first + thread % pieces * gy_wide)
            row = np.int32(thread // pieces * area)
            at = np.int32(cursor[0] + cursor[1] + row)
            copy_left(shared, gy, rows, q < end, at, area, thread)
            if x_wide > 1:
                at = np.int32(cursor[0] + cursor[2] + row)
                copy_right(offset(shared, right_at), x, inner, q < end, at, area, thread)
            pixel = np.int32(cursor[0] + rows_on * out_w + columns_on)
            over = np.int32(pixel >= area)
            cursor[0] = np.int32(pixel - over * area)
            cursor[1] = np.int32(cursor[1] + (images_on + over) * gy_step)
            cursor[2] = np.int32(cursor[2] + (images_on + over) * x_step)
        at = np.int32(thread % 8 * 8)
        to = offset(shared, chunk_offset(thread // 8, thread % 8))
        for u in range(held):
            q = np.int32(first + thread // 8 + u * lines)
            if gy_wide == 1:
                for b in range(tile_rows // LINE):
                    there = (q < end) & (np.int32(b * LINE + at) < rows)
                    index = np.int32(q * gy_line + b * LINE + at)
                    copy_async16(offset(to, (b * LINE + u * lines) * LINE), gy, index, there)
            if x_wide == 1:
                image, i, j = places[3 * u], places[3 * u + 1], places[3 * u + 2]
                top, side = np.int32(i * stride_h), np.int32(j * stride_w)
                base = np.int32(((image * height + top) * width + side) * line)
                top = pick(q < end, top, np.int32(NOWHERE))
                for b in range(columns):
                    row = np.uint32(np.int32(top + downs[b]))
                    column = np.uint32(np.int32(side + acrosses[b]))
                    inside = (row < np.uint32(height)) & (column < np.uint32(width))
                    index = np.int32(base + further[b])
                    copy_async16(
                        offset(to, right_at + (b * LINE + u * lines) * LINE), x, index, inside
                    )
                j = np.int32(j + columns_on)
                over = np.int32(j >= out_w)
                i = np.int32(i + rows_on + over)
                places[3 * u + 2] = np.int32(j - over * out_w)
                over = np.int32(i >= out_h)
                places[3 * u + 1] = np.int32(i - over * out_h)
                places[3 * u] = np.int32(image + images_on + over)

    def spread_blocks(
        gy, x, gw, row_first, row_gap, column_first, column_gap, rows_seen, columns_seen, groups,
        filters, channels, pixels, height, width, out_h, out_w, stride_h, stride_w, down, across,
        parts, part_steps,
    ):  # fmt: skip
        """gw[part, group*filters + f, c, place] = the sum over a part of the pixels."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        downs = pointer_to(cuda.local.array(columns, _WHOLE))
        acrosses = pointer_to(cuda.local.array(columns, _WHOLE))
        further = pointer_to(cuda.local.array(columns, _WHOLE))
        places = pointer_to(cuda.local.array(numbers, _WHOLE))  # an image, a row, a column each
        cursor = pointer_to(cuda.local.array(3, _WHOLE))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, block0 = tile_row * tile_rows, tile_column * columns
        group = div32(batch, parts)
        part = batch - group * parts
        begin = part * part_steps
        end = np.int32(min(begin + part_steps, pixels))
        taps, line = rows_seen * columns_seen, np.int32(groups * channels)
        mine = thread % 8 * 8  # of the channels of a block
        for b in range(columns):
            block = div32(block0 + b, taps)
            tap = block0 + b - block * taps
            r = div32(tap, columns_seen)
            row = row_first + r * row_gap
            column = column_first + (tap - r * columns_seen) * column_gap
            acrosses[b] = np.int32(column)
            further[b] = np.int32((row * width + column) * line + block * LINE + mine)
            downs[b] = np.int32(pick(block * LINE + mine < channels, row, NOWHERE))
        area = np.int32(out_h * out_w)
        images_on = np.int32(div32(LINE, area))
        rows_on = np.int32(div32(LINE - images_on * area, out_w))
        columns_on = np.int32(LINE - images_on * area - rows_on * out_w)
        for u in range(held):
            q = begin + thread // 8 + u * lines
            image = div32(q, area)
            i = div32(q - image * area, out_w)
            places[3 * u], places[3 * u + 1] = np.int32(image), np.int32(i)
            places[3 * u + 2] = np.int32(q - image * area - i * out_w)
        gy_line = np.int32(groups * filters)
        gy_step, x_step = np.int32(gy_line * area), np.int32(line * area)
        q = begin + thread % pieces * gy_wide
        image = div32(q, area)
        cursor[0] = np.int32(q - image * area)
        cursor[1], cursor[2] = np.int32(image * gy_step), np.int32(image * x_step)
        height, width, out_h, out_w = (
            np.int32(height), np.int32(width), np.int32(out_h), np.int32(out_w)
        )  # fmt: skip
        stride_h, stride_w = np.int32(stride_h), np.int32(stride_w)
        filter0 = group * filters + row0
        rows, inner = np.int32(filters - row0), np.int32(channels - block0 * LINE)
        left = stored_bits(offset(gy, filter0 * pick(gy_wide > 1, area, 1)))
        channel0 = group * channels + pick(x_wide > 1, block0 * LINE, 0)
        right = stored_bits(offset(x, channel0 * pick(x_wide > 1, area, 1)))
        left_start, right_start = starts(thread)
        right_start += right_at
        sums = zeros(0.0)
        to, ahead = 0, np.int32(begin)
        for _ in range(stages - 1):
            if ahead < end:
                copy_step(
                    offset(shared, to), left, right, cursor, ahead, end, rows, inner, places, downs,
                    acrosses, further, height, width, area, out_h, out_w, images_on, rows_on,
                    columns_on, gy_step, x_step, gy_line, line, stride_h, stride_w, thread,
                )  # fmt: skip
            commit_copies()
            ahead = np.int32(ahead + LINE)
            to += stage
        at = 0
        for _ in range(begin, end, LINE):
            arrived()
            cuda.syncthreads()
            here = offset(shared, at)
            sums = multiply(sums, offset(here, left_start), offset(here, right_start))
            if ahead < end:
                copy_step(
                    offset(shared, to), left, right, cursor, ahead, end, rows, inner, places, downs,
                    acrosses, further, height, width, area, out_h, out_w, images_on, rows_on,
                    columns_on, gy_step, x_step, gy_line, line, stride_h, stride_w, thread,
                )  # fmt: skip
            commit_copies()
            ahead = np.int32(ahead + LINE)
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
        for b in range(columns):
            block = div32(block0 + b, taps)
            tap = block0 + b - block * taps
            c = block * LINE + thread % LINE
            if c < channels:
                first, apart = thread // LINE, threads // LINE
                row = part * groups * filters + filter0 + first
                to, at = offset(gw, (row * channels + c) * taps + tap), first * sums_pitch
                for _ in range(first, min(tile_rows, rows), apart):
                    to[0] = whole[at + b * LINE + thread % LINE]
                    to = offset(to, apart * channels * taps)
                    at += apart * sums_pitch

    return spread_blocks
