"""Sums over channels, or over rows that are too long for registers: of distances from a pivot,
their squares, a second tensor, and its products with the distances.

A tensor is looked at as [outer, channels, plane]; for rows, [1, rows, n]. A first launch leaves
`parts` of the sums of each channel in f64, for another one that makes of them what is wanted, a
warp a channel. The pivot is near the data (the channel's first element, or its mean): so squares
lose no more digits than f64 has to spare.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd

import numpy as np

from opstep.runtime.device.cuda.names import cuda, div32, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.ir.types import f64

THREADS = 256
LANES = 32
WARPS = THREADS // LANES
AT_ONCE = 4  # vectors that a thread reads before it adds them
BLOCKS = 2048  # about as many are wanted
MOST_PARTS = 1024
LIMIT = 1 << 32
_OF_WARPS, _OF_THREADS = (4, WARPS), (4, THREADS)

FIRST, ZERO, GIVEN = "first", "zero", "given"  # pivots


class Sums:
    """Where the sums of channels are left, and the launch that leaves them.

    `x`: [outer, channels, plane]; `d`, of the same shape, if products are wanted, times `scale`
    ([plane], where outer is 1), if given; `pivot`: what is subtracted from x, GIVEN by `pivots`,
    one a channel.
    """

    def __init__(
        self, x: Arg, shape: tuple[int, int, int], pivot: str = FIRST, pivots: Arg | None = None,
        d: Arg | None = None, scale: Arg | None = None,
    ):  # fmt: skip
        outer, channels, plane = shape
        self.count, self.channels = outer * plane, channels
        self.stride = plane  # between the first elements of channels
        operands = [a for a in (x, d, scale) if a is not None]
        width = gcd(plane, 16 // max(2, *(a.stored.itemsize for a in operands)))
        across = plane == 1 and outer > 1
        work = outer if across else self.count // width
        least = WARPS * AT_ONCE if across else THREADS * AT_ONCE
        groups = -(-channels // LANES) if across else channels
        parts = max(1, min(-(-BLOCKS // groups), -(-work // least), MOST_PARTS))
        self.parts = parts
        self.sums = Scratch(f64, 4 * parts * channels)
        span = -(-work // parts)
        given = (x, d or x, scale or x, pivots or x, self.sums, outer, channels)
        if across:
            kernel = column_sums(d is not None, pivot)
            self.launch = Grid(kernel, *given, parts, span, grid=groups * parts, block=THREADS)
        else:
            kernel = plane_sums(width, d is not None, scale is not None, pivot, outer == 1)
            given = (*given, plane, parts, span)
            self.launch = Grid(kernel, *given, grid=channels * parts, block=THREADS)

    def finish(self, kernel: Callable, *args) -> Grid:
        """A launch of a kernel made by `finisher`; it takes args behind the sums."""
        given = (self.sums, self.parts, self.channels, *args)
        return Grid(kernel, *given, grid=-(-self.channels // WARPS), block=THREADS)


def small_enough(x: Arg) -> bool:
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
    exec(compile(text, f"<finish {make.__name__}>", "exec"), scope)
    kernel = pinned("f64")(scope["finish"])
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
    def first(x, pivots, channel, plane):
        return np.float64(x[channel * plane])

    def zero(x, pivots, channel, plane):
        return np.float64(0.0)

    def given(x, pivots, channel, plane):
        return np.float64(pivots[channel])

    return {FIRST: first, ZERO: zero, GIVEN: given}[kind]


@cache
def adder(dual: bool) -> Callable:
    def add(a, g, s1, s2, s3, s4):
        s1 += a
        s2 += a * a
        if dual:
            s3 += g
            s4 += g * a
        return s1, s2, s3, s4

    return pinned("f64")(add)


@cache
def plane_sums(width: int, dual: bool, scaled: bool, pivot: str, flat: bool):
    """Each block takes a part of one channel. `flat`: a channel is one run of elements."""
    load, held = Intrinsic("load", width), width * AT_ONCE
    pivot_in, add = pivot_of(pivot), adder(dual)

    def place(v, channel, channels, plane):
        if flat:
            return channel * plane + v * width
        row = div32(v * width, plane)
        return (row * channels + channel) * plane + v * width - row * plane

    def take(x, d, scale, pivots, sums, outer, channels, plane, parts, span):
        channel = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - channel * parts
        centre = pivot_in(x, pivots, channel, plane)
        values = cuda.local.array(held, np.float64)
        others = cuda.local.array(held, np.float64)
        s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0
        end = min((part + 1) * span, outer * plane // width)
        v = part * span + cuda.threadIdx.x
        while v < end:
            for k in range(AT_ONCE):
                if v + k * THREADS < end:
                    i = place(v + k * THREADS, channel, channels, plane)
                    vector = load(x, i)
                    for j in range(width):
                        values[k * width + j] = np.float64(vector[j]) - centre
                    if dual:
                        other = load(d, i)
                        for j in range(width):
                            others[k * width + j] = np.float64(other[j])
                    if scaled:
                        factors = load(scale, (v + k * THREADS) * width)
                        for j in range(width):
                            others[k * width + j] *= np.float64(factors[j])
                else:
                    for j in range(width):
                        values[k * width + j] = 0.0
                        others[k * width + j] = 0.0
            for k in range(held):
                s1, s2, s3, s4 = add(values[k], others[k], s1, s2, s3, s4)
            v += AT_ONCE * THREADS
        block_sum(s1, s2, s3, s4, sums, 4 * part * channels + channel, channels)

    kernel = pinned("f64")(take)
    kernel.__name__ = "channel_sums"
    return kernel


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
def column_sums(dual: bool, pivot: str):
    """Planes of one element: a lane a channel, so that neighbours are read together."""
    pivot_in, add = pivot_of(pivot), adder(dual)

    def take(x, d, scale, pivots, sums, outer, channels, parts, span):
        lane, warp = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
        group = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - group * parts
        channel = group * LANES + lane
        at = min(channel, channels - 1)
        centre = pivot_in(x, pivots, at, 1)
        s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0
        end = min((part + 1) * span, outer)
        for row in range(part * span + warp, end, WARPS):
            i = row * channels + at
            a = np.float64(x[i]) - centre
            g = np.float64(d[i]) if dual else 0.0
            s1, s2, s3, s4 = add(a, g, s1, s2, s3, s4)
        found = cuda.shared.array(_OF_THREADS, np.float64)
        thread = cuda.threadIdx.x
        found[0, thread], found[1, thread], found[2, thread], found[3, thread] = s1, s2, s3, s4
        cuda.syncthreads()
        if warp < 4 and channel < channels:
            total = 0.0
            for k in range(WARPS):
                total += found[warp, k * LANES + lane]
            sums[(4 * part + warp) * channels + channel] = total

    kernel = pinned("f64")(take)
    kernel.__name__ = "column_sums"
    return kernel
