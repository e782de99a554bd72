"""Convolutions as matrix products on CUDA: filters by what they see, which is never written out.

A term of a sum is a place under a filter: a channel, a plane, a row, a column. `table` has a number
for each: in its lower half where the element stands, seen from a pixel's own place, plus `HALF`; in
its upper half a bit for each of the filter's plane, row and column. A pixel's `missing` bits are
those of planes, rows and columns that lie outside of the image for it, so one test says whether an
element is there. Terms that only fill a tile up have the bit `NEVER`, which all pixels miss.

Rows of pixels are counted over all planes of an image: `row_starts` has where each begins in it,
`missing_rows` its bits, `targets` where its results go. So images and volumes have one kernel.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from opstep.kernels.conv.correlation import Geometry
from opstep.kernels.matmul.cuda_gemm import added
from opstep.kernels.matmul.cuda_gemm_simt import tile_of
from opstep.kernels.matmul.cuda_tile import Tile, fetcher, putter, thread_origin
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real, spread
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

NEVER = 1 << 30
ALL = (1 << 31) - 1  # the missing bits of a pixel that is none
HALF = 1 << 31
LOWER = (1 << 32) - 1


def targets_of(g: Geometry) -> tuple[int, ...]:
    """Where the results of each row go."""
    deep, rows, columns = g.axes
    return tuple(
        ((z * deep.step + deep.first) * rows.whole + i * rows.step + rows.first) * columns.whole
        + columns.first
        for z in range(deep.out)
        for i in range(rows.out)
    )


def shares_added(shares: Scratch | Arg, bias: Arg | None, y: Arg, parts: int) -> list[Grid]:
    """Parts of sums added up in order, and a bias for each channel of y; nothing of one part, which
    stands in y.
    """
    if parts == 1:
        return []
    if bias is None:
        return [added(shares, None, y, y.size, 1, parts)]
    return [added(shares, bias, y, y.size, y.shape[1], parts, prod(y.shape[2:]))]


def seen_from(
    q, end, area, out_w, image_step, column_step, row_starts, missing_rows, missing_columns
):  # fmt: skip
    """(where the image of pixel q begins, the pixel's own place in it, the bits that it misses)."""
    image, base, missing = 0, np.int32(0), np.int32(ALL)
    if q < end:
        image = div32(q, area)
        at = q - image * area
        row = div32(at, out_w)
        column = at - row * out_w
        base = np.int32(row_starts[row] + column * column_step)
        missing = np.int32(missing_rows[row] | missing_columns[column])
    return image * image_step, base, missing


def target_of(q, area, out_w, image_step, step_w, targets):
    """Where the result of pixel q goes, of a channel's planes."""
    image = div32(q, area)
    at = q - image * area
    row = div32(at, out_w)
    return image * image_step + targets[row] + (at - row * out_w) * step_w


@cache
def gatherer(columns: int, steps: int, threads: int, pitch: int, wide: int):
    """(look, put) for `steps` terms of `columns` pixels, of which a thread has `wide` neighbours:
    those from ``thread % (columns // wide) * wide`` on, whose elements stand side by side.

    look(held, x, table, base, missing, step, thread) reads elements that may be wrong, and gives
    the bits of those that are right, so that nobody waits for them; put(shared, held, right,
    thread) has zeros for the others.
    """
    in_line = columns // wide
    apart = threads // in_line
    units = steps // apart
    assert apart * units == steps, "threads share a tile evenly"
    load, store = Intrinsic("load", wide), Intrinsic("store", wide)
    gather = Intrinsic("gather", wide)

    def lookup(held, x, table, base, missing, step, thread):
        first = step + thread // in_line
        right = 0
        for u in range(units):
            term = table[first + u * apart]
            inside = missing & np.int32(term >> 32) == 0
            at = pick(inside, np.int32(base + (term & LOWER) - HALF), np.int32(0))
            if wide > 1:
                spread(offset(held, u * wide), load(x, at))
            else:
                held[u] = x[at]
            right |= pick(inside, 1 << u, 0)
        return right

    def put(shared, held, right, thread):
        to = offset(shared, thread // in_line * pitch + thread % in_line * wide)
        for u in range(units):
            mine = offset(held, u * wide)
            for e in range(wide):
                mine[e] = pick(right >> u & 1 != 0, mine[e], 0.0)
            if wide > 1:
                store(to, u * apart * pitch, gather(mine))
            else:
                to[u * apart * pitch] = mine[0]

    return lookup, put


@cache
def convolve_tiles(tile: Tile, w_wide: int, x_wide: int, y_wide: int):
    """The kernel for tiles of filters by pixels; so many weights and elements of images are read,
    outputs written at once.

    What a filter of one weight a channel sees in neighbours stands side by side (`x_wide`).
    Outputs are written one at a time where `y_wide` is 1, else as runs of a plane.
    """
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    tile_rows, tile_columns = tile.rows, tile.columns
    right_at, run, row_gap, column_gap = tile.right_at, tile.run, tile.row_gap, tile.column_gap
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    count, size = thread_rows * thread_columns, 2 * stage
    left_held, right_held = tile_rows * steps // threads, tile_columns * steps // threads
    fetch_left = fetcher(tile_rows, steps, threads, True, w_wide)
    put_left = putter(tile_rows, steps, threads, True, w_wide, tile.left_pitch)
    lookup, put_right = gatherer(tile_columns, steps, threads, tile.right_pitch, x_wide)
    in_line = tile_columns // x_wide
    multiply, origin_of = tile.product(), thread_origin(tile)
    zeros = Intrinsic("fill", count)
    gather, store = Intrinsic("gather", y_wide), Intrinsic("store", y_wide)

    def convolve(
        x, w, bias, y, w_start, table, row_starts, missing_rows, missing_columns, targets, groups,
        filters, terms, pixels, area, out_w, image_step, group_step, column_step, plane, step_w,
        down, across, parts, part_steps, part_size, biased,
    ):  # fmt: skip
        """y[part, n, group*filters + f, pixel] = the sum over a part of the terms."""
        memory = cuda.shared.array(size, real)
        left_local = pointer_to(cuda.local.array(left_held, real))
        right_local = pointer_to(cuda.local.array(right_held, real))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        group = div32(batch, parts)
        part = batch - group * parts
        begin = part * part_steps
        end = min(begin + part_steps, terms)
        q = column0 + thread % in_line * x_wide
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
        source = offset(x, first_of + group * group_step)
        left = offset(w, w_start + group * filters * terms)
        row, column = origin_of(thread)
        shared = pointer_to(memory)
        sums = zeros(0.0)
        now = stage
        for step in range(begin - steps, end, steps):  # the first only reads ahead
            ahead = step + steps
            seen = 0
            if ahead < end:
                fetch_left(left_local, left, row0, filters, ahead, end, terms, thread)
                seen = lookup(right_local, source, table, base, missing, ahead, thread)
            if step >= begin:
                here = offset(shared, now)
                sums = multiply(sums, offset(here, row), offset(here, right_at + column))
            now = stage - now
            if ahead < end:
                put_left(offset(shared, now), left_local, thread)
                put_right(offset(shared, now + right_at), right_local, seen, thread)
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(count, real))
        spread(held, sums)
        channels = groups * filters
        target = offset(y, part * part_size + (group * filters + row0 + row) * plane)
        for jj in range(0, thread_columns, y_wide):
            q = column0 + column + jj // run * column_gap + jj % run
            if q < pixels:
                spot = target_of(q, area, out_w, channels * plane, step_w, targets)
                for ii in range(thread_rows):
                    r = ii // run * row_gap + ii % run
                    if row0 + row + r < filters:
                        mine = offset(held, ii * thread_columns + jj)
                        if biased:
                            more = bias[group * filters + row0 + row + r]
                            for e in range(y_wide):
                                mine[e] += more
                        if y_wide > 1:
                            store(target, spot + r * plane, gather(mine))
                        else:
                            target[spot + r * plane] = mine[0]

    return convolve


@cache
def filter_tiles(tile: Tile, gy_wide: int):
    """The kernel for tiles of filters by places under a filter: sums over all pixels."""
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    tile_rows, tile_columns = tile.rows, tile.columns
    right_at, run, row_gap, column_gap = tile.right_at, tile.run, tile.row_gap, tile.column_gap
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    count, size = thread_rows * thread_columns, 2 * stage
    left_held, right_held = tile_rows * steps // threads, tile_columns * steps // threads
    put_left = putter(tile_rows, steps, threads, True, gy_wide, tile.left_pitch)
    multiply, origin_of = tile.product(), thread_origin(tile)
    zeros, no_run = Intrinsic("fill", count), Intrinsic("fill", gy_wide)
    load = Intrinsic("load", gy_wide)
    in_line = steps // gy_wide  # threads that read a filter's pixels
    left_apart, left_units = threads // in_line, left_held // gy_wide
    right_apart, right_pitch = threads // steps, tile.right_pitch

    def fetch_left(held, gy, row, filters, pixel, end, area, image_step, thread):
        q = pixel + thread % in_line * gy_wide
        image = div32(q, area)
        at = image * image_step + q - image * area
        for u in range(left_units):
            line = min(row + thread // in_line + u * left_apart, filters - 1)
            to = offset(held, u * gy_wide)
            if q < end:
                if gy_wide > 1:
                    spread(to, load(gy, line * area + at))
                else:
                    to[0] = gy[line * area + at]
            else:
                spread(to, no_run(0.0))

    def fetch_right(held, x, table, base, missing, column, thread):
        first = column + thread // steps
        right = 0
        for u in range(right_held):
            term = table[first + u * right_apart]
            inside = missing & np.int32(term >> 32) == 0
            held[u] = x[pick(inside, np.int32(base + (term & LOWER) - HALF), np.int32(0))]
            right |= pick(inside, 1 << u, 0)
        return right

    def put_right(shared, held, right, thread):
        to = offset(shared, thread % steps * right_pitch + thread // steps)
        for u in range(right_held):
            to[u * right_apart] = pick(right >> u & 1 != 0, held[u], 0.0)

    def spread_over_filters(
        gy, x, gw, table, row_starts, missing_rows, missing_columns, groups, filters, terms, pixels,
        area, out_w, image_step, group_step, column_step, gy_step, down, across, parts, part_steps,
    ):  # fmt: skip
        """gw[part, group*filters + f, term] = the sum over a part of the pixels."""
        memory = cuda.shared.array(size, real)
        left_local = pointer_to(cuda.local.array(left_held, real))
        right_local = pointer_to(cuda.local.array(right_held, real))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        tile_row, tile_column = tile_of(cuda.blockIdx.x - batch * (down * across), down, across)
        row0, column0 = tile_row * tile_rows, tile_column * tile_columns
        group = div32(batch, parts)
        part = batch - group * parts
        begin = part * part_steps
        end = min(begin + part_steps, pixels)
        left = offset(gy, group * filters * area)
        right = offset(x, group * group_step)
        row, column = origin_of(thread)
        shared = pointer_to(memory)
        sums = zeros(0.0)
        now = stage
        for step in range(begin - steps, end, steps):  # the first only reads ahead
            ahead = step + steps
            seen = 0
            if ahead < end:
                fetch_left(left_local, left, row0, filters, ahead, end, area, gy_step, thread)
                first_of, base, missing = seen_from(
                    ahead + thread % steps, end, area, out_w, image_step, column_step, row_starts,
                    missing_rows, missing_columns,
                )  # fmt: skip
                source = offset(right, first_of)
                seen = fetch_right(right_local, source, table, base, missing, column0, thread)
            if step >= begin:
                here = offset(shared, now)
                sums = multiply(sums, offset(here, row), offset(here, right_at + column))
            now = stage - now
            if ahead < end:
                put_left(offset(shared, now), left_local, thread)
                put_right(offset(shared, now + right_at), right_local, seen, thread)
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(count, real))
        spread(held, sums)
        target = offset(gw, (part * groups + group) * filters * terms)
        for i in range(thread_rows):
            r = row0 + row + i // run * row_gap + i % run
            if r < filters:
                for j in range(thread_columns):
                    t = column0 + column + j // run * column_gap + j % run
                    if t < terms:
                        target[r * terms + t] = held[i * thread_columns + j]

    return spread_over_filters
