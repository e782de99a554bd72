"""Convolutions on CUDA that tiles cannot take, an element a thread, or a block; and filters turned
around for the way back.
"""

from __future__ import annotations

from functools import cache

from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.schedules.cuda.teams import plus, reducers
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, real
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

THREADS = 128
TOGETHER = 512  # threads that sum up one number
_combined, _ = reducers(plus, TOGETHER)


def convolve_each(
    x, w, bias, y, w_start, deep, rows, columns, taps, size, stride, out, whole, step, first,
    groups, filters, channels, biased, count,
):  # fmt: skip
    """y, an output a thread: filters of any size, and any element type. What is said of each axis
    is that of depth, rows, columns: see `Depth`; `size` is that of x.
    """
    unit = cuda.grid(1)
    if unit < count:
        j = unit % out[2]
        i = unit // out[2] % out[1]
        z = unit // (out[2] * out[1]) % out[0]
        image = unit // (out[2] * out[1] * out[0])
        filter_at = image % (groups * filters)
        image //= groups * filters
        planes = (image * groups + filter_at // filters) * channels
        total = 0.0
        for c in range(channels):
            for t in range(taps[0]):
                d = z * stride[0] + deep[t]
                for r in range(taps[1]):
                    h = i * stride[1] + rows[r]
                    if 0 <= d < size[0] and 0 <= h < size[1]:
                        seen = offset(x, (((planes + c) * size[0] + d) * size[1] + h) * size[2])
                        at = ((filter_at * channels + c) * taps[0] + t) * taps[1] + r
                        for s in range(taps[2]):
                            k = j * stride[2] + columns[s]
                            if 0 <= k < size[2]:
                                total += seen[k] * w[w_start + at * taps[2] + s]
        if biased:
            total += bias[filter_at]
        line = (image * groups * filters + filter_at) * whole[0] + z * step[0] + first[0]
        line = line * whole[1] + i * step[1] + first[1]
        y[line * whole[2] + j * step[2] + first[2]] = total


def divided(a, b):
    return a // b


@cache
def summing(near: bool):
    """The kernel for gw, a number a block: filters of any size, and any element type. `near`: rows
    of outputs, over all images, can be counted in 32 bits.
    """
    divide = div32 if near else divided

    def sum_each(
        gy, x, gw, deep, rows, columns, taps, size, stride, out, groups, filters, channels, images,
        across,
    ):  # fmt: skip
        """`across` threads share a row of outputs; for the rest see `convolve_each`. Padding is 0,
        which an infinity makes NaN.
        """
        unit, thread = cuda.blockIdx.x, cuda.threadIdx.x
        s = columns[unit % taps[2]]
        r = rows[unit // taps[2] % taps[1]]
        t = deep[unit // (taps[2] * taps[1]) % taps[0]]
        c = unit // (taps[2] * taps[1] * taps[0])
        filter_at = c // channels
        c %= channels
        total, plane = real(0.0), out[0] * out[1]
        own = div32(thread, across)
        column = thread - own * across
        for line in range(own, images * plane, div32(TOGETHER, across)):
            n = divide(line, plane)
            row = line - n * plane
            z = divide(row, out[1])
            d = z * stride[0] + t
            h = (row - z * out[1]) * stride[1] + r
            inside = 0 <= d < size[0] and 0 <= h < size[1]
            given = offset(gy, ((n * groups * filters + filter_at) * plane + row) * out[2])
            source = (n * groups + filter_at // filters) * channels + c
            seen = offset(x, ((source * size[0] + d) * size[1] + h) * size[2])
            for j in range(column, out[2], across):
                k = j * stride[2] + s
                value = real(0.0)
                if inside and 0 <= k < size[2]:
                    value = seen[k]
                total += given[j] * value
        total = _combined(total, 0)
        if thread == 0:
            gw[unit] = total

    return sum_each


def sum_numbers(gy: Arg, x: Arg, gw: Arg, images: int, out: tuple[int, ...], *args) -> Grid:
    """A launch of `summing`; `args`: what its kernel takes from `deep` to `channels`."""
    across = min(TOGETHER, 1 << max(0, out[2] - 1).bit_length())
    kernel = summing(images * out[0] * out[1] < LIMIT)
    return Grid(kernel, gy, x, gw, *args, images, across, grid=gw.size, block=TOGETHER)


def turn_filters(w, turned, starts, counts, places, filters, channels, taps, size):
    """turned[start of t's phase + ((g*C + c)*K + k)*count of it + its place] = w[g*K + k, c, t]:
    an element a thread. Where the count is 0, no pixel receives through t.
    """
    i = cuda.grid(1)
    if i < size and counts[i % taps]:
        t = i % taps
        c = i // taps % channels
        row = i // taps // channels
        group = row // filters
        line = (group * channels + c) * filters + row - group * filters
        turned[starts[t] + line * counts[t] + places[t]] = w[i]


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
