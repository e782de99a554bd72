"""Moments and counts of threads, then of blocks, put together into one record, in a fixed order.

Means and squared distances are merged by the formula of Chan, Golub and LeVeque (1979).
"""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.builtin import float_to_bits
from opstep.runtime.device.cpu.blocks import order
from opstep.runtime.device.cpu.statistics import exponent_of, power
from opstep.runtime.device.cuda.compiling.names import cuda, shuffle_down
from opstep.runtime.device.cuda.recording.counters import HIGHEST, LANES
from opstep.runtime.device.source import pinned
from opstep.runtime.statistics import (
    BINS,
    COUNT,
    EXPONENT,
    FIRST_BIN,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    SUMSQ,
    UNWRITTEN,
)

THREADS = 256
WARPS = THREADS // LANES
ROWS = BINS + UNWRITTEN - NAN + 1  # what a block leaves: the bins, the words from NAN to UNWRITTEN
_NUMBERS, _MOMENTS = 3 * WARPS, 2 * WARPS  # that warps leave


@pinned("f64")
def centred(n, pivot, total, squares):
    """(mean, sum of squared distances from it) of n elements from their distances from a pivot."""
    if n == 0:
        return 0.0, 0.0
    away = total / np.float64(n)
    return pivot + away, max(squares - total * away, 0.0)


@pinned("f64")
def merge_threads(n, mean, m2, low, high):
    """(elements, mean, m2, least key, greatest key) of a whole block, in its first thread: those of
    each warp, then of all, which no other thread may still read.
    """
    numbers = cuda.shared.array(_NUMBERS, np.int64)
    moments = cuda.shared.array(_MOMENTS, np.float64)
    thread = cuda.threadIdx.x
    lane, warp = thread % LANES, thread // LANES
    n, mean, m2, low, high = merge_lanes(n, mean, m2, low, high, LANES)
    cuda.syncthreads()
    if lane == 0:
        numbers[warp], numbers[WARPS + warp], numbers[2 * WARPS + warp] = n, low, high
        moments[warp], moments[WARPS + warp] = mean, m2
    cuda.syncthreads()
    k = thread % WARPS
    n, low, high = numbers[k], numbers[WARPS + k], numbers[2 * WARPS + k]
    return merge_lanes(n, moments[k], moments[WARPS + k], low, high, WARPS)


@pinned("f64")
def merge_lanes(n, mean, m2, low, high, count):
    """Likewise of the first so many threads of a warp."""
    step = count // 2
    while step > 0:
        lower, higher = shuffle_down(low, step), shuffle_down(high, step)
        more, other = shuffle_down(n, step), shuffle_down(mean, step)
        n, mean, m2 = chan(n, mean, m2, more, other, shuffle_down(m2, step))
        low, high = min(low, lower), max(high, higher)
        step //= 2
    return n, mean, m2, low, high


@pinned("f64")
def chan(n, mean, m2, more, other_mean, other_m2):
    """(elements, mean, sum of squared distances from it) of two sets of elements."""
    if more == 0:
        return n, mean, m2
    if n == 0:
        return more, other_mean, other_m2
    apart = other_mean - mean
    share = 0.5 if n == more else np.float64(more) / np.float64(n + more)  # the rule goes fast
    return n + more, mean + apart * share, m2 + other_m2 + apart * apart * np.float64(n) * share


# --- the record -----------------------------------------------------------------------------------


@pinned("f64")
def merge(enabled, counts, moments, limits, out, blocks, size, filled, floating):
    """Makes one record: each row of counts is a warp's work, and the rest is the last block's."""
    if enabled[0] == 0:
        return
    if cuda.blockIdx.x < cuda.gridDim.x - 1:
        lane = cuda.threadIdx.x % LANES
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES
        found = np.int64(0)
        if row < ROWS:
            for k in range(lane, blocks, LANES):
                found += counts[row * blocks + k]
        step = LANES // 2
        while step > 0:
            found += shuffle_down(found, step)
            step //= 2
        if row < ROWS and lane == 0:
            write_count(out, row, found, filled)
    else:
        n, mean, m2, low, high = merge_blocks(moments, limits, blocks)
        if cuda.threadIdx.x == 0:
            write_rest(out, size, n, mean, m2, low, high, floating)


@pinned("f64")
def write_count(out, row, found, filled):
    if row == ROWS - 1 and filled == 0:
        found = np.int64(-1)
    out[FIRST_BIN + row if row < BINS else NAN + row - BINS] = found


@pinned("f64")
def write_rest(out, size, n, mean, m2, low, high, floating):
    """All but the counts."""
    if floating:
        low, high = order(low), order(high)
    if n == 0:
        low, high = np.int64(0), np.int64(0)
    out[COUNT], out[MIN], out[MAX] = size, low, high
    write_moments(out, n, mean, m2)
    for k in range(EXPONENT, FIRST_BIN):
        out[k] = 0


@pinned("f64")
def merge_blocks(moments, limits, blocks):
    """As `merge_threads`, of the blocks."""
    n, mean, m2 = np.int64(0), 0.0, 0.0
    low, high = np.int64(HIGHEST), np.int64(-HIGHEST - 1)
    for k in range(cuda.threadIdx.x, blocks, THREADS):
        n, mean, m2 = chan(n, mean, m2, limits[k], moments[k], moments[blocks + k])
        low, high = min(low, limits[blocks + k]), max(high, limits[2 * blocks + k])
    return merge_threads(n, mean, m2, low, high)


@pinned("f64")
def write_moments(out, n, mean, m2):
    out[MEAN], out[M2] = float_to_bits(mean), float_to_bits(m2)
    out[SUMSQ] = float_to_bits(m2 + mean * mean * np.float64(n))


# --- numbers whose squares f64 does not hold ------------------------------------------------------


@pinned("f64")
def accumulate_scaled(x, enabled, out, moments, limits, size, span):
    """The moments of x / 2**exponent, where those of x are out of range."""
    if enabled[0] == 0:
        return
    exponent = exponent_of(out)
    if exponent == 0:
        return
    first, second = power(-exponent // 2), power(-exponent - -exponent // 2)
    thread, block, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
    n, pivot, total, squares = 0, 0.0, 0.0, 0.0
    start = block * span
    for i in range(start + thread, min(start + span, size), THREADS):
        if abs(x[i]) < np.inf:
            v = x[i] * first * second
            pivot = v if n == 0 else pivot
            n += 1
            total += v - pivot
            squares += (v - pivot) * (v - pivot)
    mean, m2 = centred(n, pivot, total, squares)
    nothing = np.int64(0)
    n, mean, m2, _, _ = merge_threads(np.int64(n), mean, m2, nothing, nothing)
    if thread == 0:
        moments[block], moments[blocks + block], limits[block] = mean, m2, n


@pinned("f64")
def merge_scaled(enabled, out, moments, limits, blocks):
    if enabled[0] == 0:
        return
    exponent = exponent_of(out)
    if exponent == 0:
        return
    n, mean, m2, _, _ = merge_blocks(moments, limits, blocks)
    if cuda.threadIdx.x == 0:
        write_moments(out, n, mean, m2)
        out[EXPONENT] = exponent
        first, second = power(-exponent // 2), power(-exponent - -exponent // 2)
        out[MEAN] = float_to_bits(mean / first / second)
