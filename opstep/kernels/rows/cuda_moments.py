"""Sums over channels, or over rows that are too long for registers: of distances from a pivot,
their squares, a second tensor, and its products with the distances.

A tensor is looked at as [outer, channels, plane]; for rows, [1, rows, n]. A first launch leaves
`parts` of the sums of each channel in f64, for another one that makes of them what is wanted, a
warp a channel. The pivot is near the data (the channel's first element, or its mean), so squares
are of numbers about as large as the deviation; some ten of them are summed in the data's type, and
these sums in f64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd

import numpy as np

from opstep.runtime.device.cuda.compiling.names import cuda, div32, real, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import f64

THREADS = 256
LANES = 32
WARPS = THREADS // LANES
AT_ONCE = 4  # vectors that a thread reads before it adds them
BLOCKS = 2048  # about as many are wanted
MOST_PARTS = 1024
LIMIT = 1 << 32
_OF_WARPS = (4, WARPS)

FIRST, GIVEN = "first", "given"  # pivots


class Sums:
    """Where the sums of channels are left, and the launch that leaves them.

    `x`: [outer, channels, plane]; `d`, of the same shape, if products are wanted; `pivot`: what is
    subtracted from x, GIVEN by `pivots`, one a channel.
    """

    def __init__(
        self, x: Arg, shape: tuple[int, int, int], pivot: str = FIRST, pivots: Arg | None = None,
        d: Arg | None = None,
    ):  # fmt: skip
        outer, channels, plane = shape
        self.count, self.channels = outer * plane, channels
        self.stride = plane  # between the first elements of channels
        operands = [a for a in (x, d) if a is not None]
        width = gcd(plane, 16 // max(2, *(a.stored.itemsize for a in operands)))
        across = plane == 1 and outer > 1
        work = outer if across else self.count // width
        least = WARPS * AT_ONCE if across else THREADS * AT_ONCE
        columns = gcd(channels, 4)
        groups = -(-channels // (LANES * columns)) if across else channels
        parts = max(1, min(-(-BLOCKS // groups), -(-work // least), MOST_PARTS))
        self.parts = parts
        self.sums = Scratch(f64, 4 * parts * channels)
        span = -(-work // parts)
        args = (x, d or x, pivots or x, self.sums, outer, channels)
        if across:
            kernel = column_sums(columns, d is not None, pivot)
            self.launch = Grid(kernel, *args, parts, span, grid=groups * parts, block=THREADS)
        else:
            kernel = plane_sums(width, d is not None, pivot, outer == 1)
            args = (*args, plane, parts, span)
            self.launch = Grid(kernel, *args, grid=channels * parts, block=THREADS)

    def finish(self, kernel: Callable, *args) -> Grid:
        """A launch of a kernel made by `finisher`; it takes args behind the sums."""
        args = (self.sums, self.parts, self.channels, *args)
        return Grid(kernel, *args, grid=-(-self.channels // WARPS), block=THREADS)


def fits_32_bits(x: Arg) -> bool:
    """Whether positions in x fit 32 bits."""
    return x.size < LIMIT


@pinned("f64")
def moments_of(s1, s2, count, pivot):
    """(mean, variance) from sums of distances from a pivot, and of their squares."""
    away = s1 / count
    variance = s2 / count - away * away
    return pivot + away, 0.0 if variance < 0.0 else variance


@cache
def finisher(make: Callable, parameters: int) -> Callable:
    """A kernel that calls ``make(channel, s1, s2, s3, s4, *parameters)`` for each channel: the sums
    of distances, of their squares, of the second tensor and of the products.
    """
    names = ", ".join(f"p{k}" for k in range(parameters))
    text = f"""
def finish(sums, parts, channels, {names}):
    lane = cuda.threadIdx.x % LANES
    channel = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES
    at = min(channel, channels - 1)
    s1, s2, s3, s4 = merged(sums, parts, channels, at, lane)
    if lane == 0 and channel < channels:
        make(channel, s1, s2, s3, s4, {names})
"""
    scope = {"cuda": cuda, "LANES": LANES, "WARPS": WARPS, "merged": merged, "make": make}
    kernel = pinned("f64")(from_text(text, f"finish {make.__name__}", "finish", scope))
    kernel.__name__ = make.__name__
    return kernel


@pinned("f64")
def merged(sums, parts, channels, channel, lane):
    """The four sums of a channel, in each lane."""
    s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0
    for p in range(lane, parts, LANES):
        at = 4 * p * channels + channel
        s1 += sums[at]
        s2 += sums[at + channels]
        s3 += sums[at + 2 * channels]
        s4 += sums[at + 3 * channels]
    return warp_sum(s1), warp_sum(s2), warp_sum(s3), warp_sum(s4)


@pinned("f64")
def warp_sum(value):
    step = LANES // 2
    while step > 0:
        value += shuffle_xor(value, step)
        step //= 2
    return value


@cache
def pivot_of(kind: str) -> Callable:
    def first(x, pivots, at, channel):
        return x[at]

    def of_channel(x, pivots, at, channel):
        return real(pivots[channel])

    return {FIRST: first, GIVEN: of_channel}[kind]


@cache
def plane_sums(width: int, dual: bool, pivot: str, flat: bool):
    """Each block takes a part of one channel. `flat`: a channel is one run of elements."""
    load, held = Intrinsic("load", width), width * AT_ONCE
    pivot_in = pivot_of(pivot)

    def locate(v, channel, channels, plane):
        if flat:
            return channel * plane + v * width
        row = div32(v * width, plane)
        return (row * channels + channel) * plane + v * width - row * plane

    def fetch(x, d, centre, v, end, channel, channels, plane, values, others):
        for k in range(AT_ONCE):
            if v + k * THREADS < end:
                i = locate(v + k * THREADS, channel, channels, plane)
                vector = load(x, i)
                for j in range(width):
                    values[k * width + j] = vector[j] - centre
                if dual:
                    other = load(d, i)
                    for j in range(width):
                        others[k * width + j] = other[j]
            else:
                for j in range(width):
                    values[k * width + j] = 0.0
                    others[k * width + j] = 0.0

    def channel_sums(x, d, pivots, sums, outer, channels, plane, parts, span):
        channel = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - channel * parts
        centre = pivot_in(x, pivots, channel * plane, channel)
        values = cuda.local.array(held, real)
        others = cuda.local.array(held, real)
        s1, s2, s3, s4 = nothing()
        end = min((part + 1) * span, outer * plane // width)
        v = part * span + cuda.threadIdx.x
        while v < end:
            fetch(x, d, centre, v, end, channel, channels, plane, values, others)
            t1 = 0.0
            t2 = 0.0
            t3 = 0.0
            t4 = 0.0
            for k in range(held):
                t1 += values[k]
                t2 += values[k] * values[k]
                if dual:
                    t3 += others[k]
                    t4 += others[k] * values[k]
            s1 += np.float64(t1)
            s2 += np.float64(t2)
            s3 += np.float64(t3)
            s4 += np.float64(t4)
            v += AT_ONCE * THREADS
        block_sum(s1, s2, s3, s4, sums, 4 * part * channels + channel, channels)

    return channel_sums


@pinned("f64")
def nothing():
    return 0.0, 0.0, 0.0, 0.0


@pinned("f64")
def block_sum(s1, s2, s3, s4, sums, at, stride):
    """Writes the sums of a block's threads."""
    parts = cuda.shared.array(_OF_WARPS, np.float64)
    thread = cuda.threadIdx.x
    s1, s2, s3, s4 = warp_sum(s1), warp_sum(s2), warp_sum(s3), warp_sum(s4)
    if thread % LANES == 0:
        warp = thread // LANES
        parts[0, warp], parts[1, warp], parts[2, warp], parts[3, warp] = s1, s2, s3, s4
    cuda.syncthreads()
    if thread < 4:
        found = 0.0
        for k in range(WARPS):
            found += parts[thread, k]
        sums[at + thread * stride] = found


@cache
def column_sums(width: int, dual: bool, pivot: str):
    """Planes of one element: a lane takes `width` neighbouring channels, a warp every eighth row of
    its part.
    """
    load, pivot_in = Intrinsic("load", width), pivot_of(pivot)
    across, of_sums = LANES * width, (4, width)

    def column_sums(x, d, pivots, sums, outer, channels, parts, span):
        thread = np.int64(cuda.threadIdx.x)
        lane, warp = thread % LANES, thread // LANES
        group = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - group * parts
        channel = group * across + lane * width
        at = min(channel, channels - width)
        totals = cuda.local.array(of_sums, np.float64)
        centres = cuda.local.array(width, real)
        for j in range(width):
            centres[j] = pivot_in(x, pivots, at + j, at + j)
            for s in range(4):
                totals[s, j] = 0.0
        end = min((part + 1) * span, outer)
        row = part * span + warp
        while row < end:
            sums_here = cuda.local.array(of_sums, real)
            for j in range(width):
                for s in range(4):
                    sums_here[s, j] = 0.0
            for k in range(AT_ONCE):
                if row + k * WARPS < end:
                    i = (row + k * WARPS) * channels + at
                    vector = load(x, i)
                    for j in range(width):
                        a = vector[j] - centres[j]
                        sums_here[0, j] += a
                        sums_here[1, j] += a * a
                    if dual:
                        other = load(d, i)
                        for j in range(width):
                            sums_here[2, j] += other[j]
                            sums_here[3, j] += other[j] * (vector[j] - centres[j])
            for j in range(width):
                for s in range(4 if dual else 2):
                    totals[s, j] += np.float64(sums_here[s, j])
            row += AT_ONCE * WARPS
        found = cuda.shared.array(THREADS, np.float64)
        for j in range(width):
            for s in range(4):
                cuda.syncthreads()
                found[thread] = totals[s, j]
                cuda.syncthreads()
                if warp == 0 and channel < channels:
                    total = np.float64(0.0)
                    for k in range(WARPS):
                        total += found[k * LANES + lane]
                    sums[(4 * part + s) * channels + channel + j] = total

    return column_sums
