"""Convolutions of few filters on CUDA: a thread has some pixels, and all filters of its block.

Weights come from shared memory, images through the first-level cache. What `table` and `missing`
are, `conv_tiles` says.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.conv.cuda_tiles import ALL, HALF, LOWER
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    pointer_to,
    real,
    shuffle_xor,
    stored_bits,
)
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

THREADS = 128
_WARPS = THREADS // 32
CHUNK = 32  # terms whose weights are in shared memory at a time
_TURN = 4  # terms whose elements are all asked for before the first is used


@cache
def convolve_few(some: int, own: int):
    """The kernel for `some` filters a block and `own` pixels a thread."""
    weights, sums_held, asked = CHUNK * some, some * own, _TURN * own
    turn, chunk, threads = _TURN, CHUNK, THREADS

    def convolve(
        x, w, bias, y, w_start, table, missing_rows, missing_columns, groups, filters, terms,
        pixels, image_step, group_step, row_step, column_step, out_h, out_w, plane, plane_w,
        step_h, step_w, first, filter_blocks, biased,
    ):  # fmt: skip
        """y[n, group*filters + f, pixel] = a filter's sum over all terms."""
        shared = pointer_to(cuda.shared.array(weights, real))
        sums = pointer_to(cuda.local.array(sums_held, real))
        found = pointer_to(cuda.local.array(asked, real))
        bases = cuda.local.array(own, np.int64)
        missing = cuda.local.array(own, np.int32)
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, filter_blocks)
        f0 = (cuda.blockIdx.x - batch * filter_blocks) * some
        cut = div32(batch, groups)
        group = batch - cut * groups
        q0 = cut * (threads * own) + thread
        area = out_h * out_w
        for p in range(own):
            q = q0 + p * threads
            bases[p] = group * group_step
            missing[p] = ALL
            if q < pixels:
                image = div32(q, area)
                at = q - image * area
                i = div32(at, out_w)
                j = at - i * out_w
                bases[p] += image * image_step + i * row_step + j * column_step
                missing[p] = np.int32(missing_rows[i] | missing_columns[j])
        for k in range(sums_held):
            sums[k] = 0.0
        source = offset(w, w_start + (group * filters + f0) * terms)
        here = min(some, filters - f0)
        for k0 in range(0, terms, chunk):
            cuda.syncthreads()
            for k in range(thread, weights, threads):
                f = k % some
                term = k0 + k // some
                shared[k] = source[f * terms + term] if (f < here) & (term < terms) else 0.0
            cuda.syncthreads()
            for k in range(0, min(chunk, terms - k0), turn):
                for u in range(turn):
                    term = table[k0 + k + u]
                    bits, place = term >> 32, (term & LOWER) - HALF
                    for p in range(own):
                        inside = missing[p] & bits == 0
                        value = x[pick(inside, bases[p] + place, 0)]
                        found[u * own + p] = pick(inside, value, 0.0)
                for u in range(turn):
                    for f in range(some):
                        weight = shared[(k + u) * some + f]
                        for p in range(own):
                            sums[f * own + p] += weight * found[u * own + p]
        target = offset(y, (group * filters + f0) * plane + first)
        for p in range(own):
            q = q0 + p * threads
            if q < pixels:
                image = div32(q, area)
                at = q - image * area
                i = div32(at, out_w)
                spot = image * groups * filters * plane
                spot += i * step_h * plane_w + (at - i * out_w) * step_w
                for f in range(some):
                    if f < here:
                        total = sums[f * own + p]
                        if biased:
                            total += bias[group * filters + f0 + f]
                        target[spot + f * plane] = total

    return convolve


def convolve_each(
    x, w, bias, y, w_start, rows, columns, row_count, column_count, groups, filters, channels,
    height, width, stride_h, stride_w, out_h, out_w, plane_h, plane_w, step_h, step_w, first_h,
    first_w, biased, size,
):  # fmt: skip
    """y, an output a thread: filters of any size, and any element type."""
    unit = cuda.grid(1)
    if unit < size:
        j = unit % out_w
        i = unit // out_w % out_h
        filter_at = unit // (out_w * out_h) % (groups * filters)
        image = unit // (out_w * out_h) // (groups * filters)
        group = filter_at // filters
        source = offset(x, (image * groups + group) * channels * height * width)
        weights = offset(w, w_start + filter_at * channels * row_count * column_count)
        total = 0.0
        for c in range(channels):
            for r in range(row_count):
                h = i * stride_h + rows[r]
                if 0 <= h < height:
                    for s in range(column_count):
                        k = j * stride_w + columns[s]
                        if 0 <= k < width:
                            weight = weights[(c * row_count + r) * column_count + s]
                            total += source[(c * height + h) * width + k] * weight
        if biased:
            total += bias[filter_at]
        line = (image * groups * filters + filter_at) * plane_h + i * step_h + first_h
        y[line * plane_w + j * step_w + first_w] = total


def sum_over_pixels(
    gy, x, gw, table, missing_rows, missing_columns, groups, filters, terms, pixels, area,
    out_w, gy_step, image_step, group_step, row_step, column_step, parts, part_steps,
):  # fmt: skip
    """gw[part, group*filters + f, term] = the sum over a part of the pixels."""
    shared = pointer_to(cuda.shared.array(_WARPS, real))
    thread = cuda.threadIdx.x
    unit = div32(cuda.blockIdx.x, terms)
    term = cuda.blockIdx.x - unit * terms
    part = div32(unit, groups * filters)
    filter_at = unit - part * groups * filters
    begin = part * part_steps
    end = min(begin + part_steps, pixels)
    bits, place = table[term] >> 32, (table[term] & LOWER) - HALF
    source = offset(gy, filter_at * area)
    place += div32(filter_at, filters) * group_step
    total = 0.0
    for q in range(begin + thread, end, THREADS):
        image = div32(q, area)
        at = q - image * area
        i = div32(at, out_w)
        j = at - i * out_w
        inside = (missing_rows[i] | missing_columns[j]) & bits == 0
        seen = place + image * image_step + i * row_step + j * column_step
        value = x[pick(inside, seen, 0)]
        total += pick(inside, value, 0.0) * source[image * gy_step + at]
    step = 16
    while step > 0:
        total += shuffle_xor(total, step)
        step //= 2
    if thread % 32 == 0:
        shared[thread // 32] = total
    cuda.syncthreads()
    if thread == 0:
        for k in range(1, _WARPS):
            total += shared[k]
        gw[cuda.blockIdx.x] = total


def turn_filters(w, turned, starts, counts, places, filters, channels, taps, size):
    """turned[start of t's phase + ((g*C + c)*K + k)*count of it + its place] = w[g*K + k, c, t]:
    an element a thread. Where the count is 0, no pixel receives through t.
    """
    i = cuda.grid(1)
    if i < size and counts[i % taps]:
        turned[turned_index(i, starts, counts, places, filters, channels, taps)] = w[i]


def turn_halves(w, turned, starts, counts, places, filters, channels, taps, size):
    """The same, bit for bit."""
    i = cuda.grid(1)
    if i < size and counts[i % taps]:
        place = turned_index(i, starts, counts, places, filters, channels, taps)
        turned[place] = stored_bits(w)[i]


def turned_index(i, starts, counts, places, filters, channels, taps):
    t = i % taps
    c = i // taps % channels
    row = i // taps // channels
    group = row // filters
    line = (group * channels + c) * filters + row - group * filters
    return starts[t] + line * counts[t] + places[t]


def sum_each(
    gy, x, gw, rows, columns, row_count, column_count, images, groups, filters, channels, height,
    width, stride_h, stride_w, out_h, out_w, size,
):  # fmt: skip
    """gw, a number a thread: filters of any size, and any element type."""
    unit = cuda.grid(1)
    if unit < size:
        s = unit % column_count
        r = unit // column_count % row_count
        c = unit // (column_count * row_count) % channels
        filter_at = unit // (column_count * row_count) // channels
        total = 0.0
        for n in range(images):
            gy_plane = offset(gy, (n * groups * filters + filter_at) * out_h * out_w)
            plane = (n * groups + filter_at // filters) * channels + c
            for i in range(out_h):
                h = i * stride_h + rows[r]
                if 0 <= h < height:
                    seen = offset(x, (plane * height + h) * width)
                    for j in range(out_w):
                        k = j * stride_w + columns[s]
                        if 0 <= k < width:
                            total += gy_plane[i * out_w + j] * seen[k]
        gw[unit] = total


@cache
def clearer(wide: int):
    """y = 0, so many neighbours a thread, of which there are `size` in all."""
    store, zeros = Intrinsic("store", wide), Intrinsic("fill", wide)

    def clear(y, size):
        i = cuda.grid(1)
        if i < size:
            store(y, i * wide, zeros(real(0)))

    return clear


def cleared(y: Arg) -> Grid:
    wide = 1 if y.size % 4 else 4
    size = y.size // wide
    return Grid(clearer(wide), y, size, grid=-(-size // THREADS), block=THREADS)
