"""Batch normalisation and group normalisation on CUDA: one pass for the sums of channels or groups,
one that moves and scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from math import gcd

import numpy as np

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.rows.cuda_moments import GIVEN, Sums, finisher, moments_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

THREADS = 256
ROWS = 8  # samples that a thread takes, where a plane is one element

Shape = tuple[int, int, int]  # elements before the channels, channels, elements behind


def train(x: Arg, scale, bias, y, mean: Arg, var: Arg, shape: Shape, epsilon: float) -> list[Grid]:
    sums = Sums(x, shape)
    factor, shift = Scratch(x.dtype, shape[1]), Scratch(x.dtype, shape[1])
    args = (x, scale, bias, mean, var, factor, shift, sums.count, sums.stride, epsilon)
    finish = sums.finish(finisher(batch_statistics, len(args)), *args)
    return [sums.launch, finish, normalise(x, mean, factor, shift, y, shape)]


def gradients(
    x: Arg, scale: Arg, gy: Arg, mean: Arg, var: Arg, moment_grads: tuple[Arg, Arg, bool],
    gx: Arg, g_scale: Arg, g_bias: Arg, shape: Shape, epsilon: float,
) -> list[Grid]:  # fmt: skip
    """`moment_grads`: by mean and var, and whether there are any."""
    sums = Sums(x, shape, pivot=GIVEN, pivots=mean, d=gy)
    channels = shape[1]
    abc = Scratch(x.dtype, 3 * channels)
    into = (scale, var, *moment_grads, g_scale, g_bias, abc, channels, sums.count, epsilon)
    finish = sums.finish(finisher(channel_gradients, len(into)), *into)
    width, args = _width(x, shape), (x, gy, mean, abc, gx, channels)
    if shape[2] == 1:
        kernel, grid = combine_columns(width), _column_grid(shape, width)
        return [sums.launch, finish, Grid(kernel, *args, shape[0], grid=grid, block=THREADS)]
    last = Grid(combine(width), *args, shape[2], x.size, grid=_grid(x, width), block=THREADS)
    return [sums.launch, finish, last]


def normalise(x: Arg, mean, factor, shift, y: Arg, shape: Shape) -> Grid:
    """y = (x - mean) * factor + shift, each with one number a channel."""
    width, args = _width(x, shape), (x, mean, factor, shift, y, shape[1])
    if shape[2] == 1:
        grid = _column_grid(shape, width)
        return Grid(moved_columns(width), *args, shape[0], grid=grid, block=THREADS)
    kernel = moved_channels(width)
    return Grid(kernel, *args, shape[2], x.size, grid=_grid(x, width), block=THREADS)


def inference(
    x: Arg, scale: Arg, bias: Arg, mean: Arg, var: Arg, y: Arg, shape: Shape, epsilon: float
) -> list[Grid]:
    factor = Scratch(x.dtype, shape[1])
    grid = -(-shape[1] // THREADS)
    first = Grid(channel_factors, scale, var, factor, epsilon, shape[1], grid=grid, block=THREADS)
    return [first, normalise(x, mean, factor, bias, y, shape)]


def group_norm(
    x: Arg, scale: Arg | None, bias: Arg | None, y: Arg, groups: int, plane: int, epsilon: float,
    statistics: tuple[Arg, ...] = (),
) -> list[Grid]:  # fmt: skip
    """`statistics`: where the mean and inverse deviation of each group are to be left, if any."""
    channels = x.shape[1]
    each, rows = channels // groups, x.shape[0] * groups
    n = each * plane
    args = (scale or x, bias or x, scale is not None, bias is not None)
    sums = Sums(x, (1, rows, n))
    centre, factor = statistics or (Scratch(x.dtype, rows), Scratch(x.dtype, rows))
    into = (x, centre, factor, n, epsilon)
    width = gcd(plane, 16 // x.stored.itemsize)
    args = (x, centre, factor, *args, y, groups, each, plane, x.size)
    return [
        sums.launch,
        sums.finish(finisher(row_statistics, len(into)), *into),
        Grid(moved_groups(width), *args, grid=_grid(x, width), block=THREADS),
    ]


def _width(x: Arg, shape: Shape) -> int:
    """Elements of a vector: neighbours of one channel, or of neighbouring channels."""
    return gcd(shape[2] if shape[2] > 1 else shape[1], 16 // x.stored.itemsize)


def _grid(x: Arg, width: int) -> int:
    return -(-x.size // (width * THREADS))


def _column_grid(shape: Shape, width: int) -> int:
    return -(-(-(-shape[0] // ROWS) * (shape[1] // width)) // THREADS)


# --- one number a channel -------------------------------------------------------------------------


def channel_factors(scale, var, factor, epsilon, channels):
    c = cuda.grid(1)
    if c < channels:
        factor[c] = scale[c] / math.sqrt(var[c] + epsilon)


def put_channel(c, centre, variance, scale, bias, mean, var, factor, shift, epsilon):
    """A channel's statistics, in f64 until here: its results, and y = (x - mean)*factor + shift.

    The shift makes good what the mean loses when it is stored.
    """
    mean[c] = centre
    var[c] = variance
    slope = np.float64(scale[c]) / math.sqrt(variance + epsilon)
    lost = centre - np.float64(mean[c])
    factor[c] = slope
    shift[c] = bias[c] if lost == 0.0 else bias[c] - lost * slope


def batch_statistics(
    c, s1, s2, s3, s4, x, scale, bias, mean, var, factor, shift, count, stride, epsilon
):
    centre, variance = moments_of(s1, s2, count, np.float64(x[c * stride]))
    put_channel(c, centre, variance, scale, bias, mean, var, factor, shift, epsilon)


def row_statistics(row, s1, s2, s3, s4, x, centre, factor, n, epsilon):
    mean, variance = moments_of(s1, s2, n, np.float64(x[row * n]))
    centre[row] = mean
    factor[row] = 1.0 / math.sqrt(variance + epsilon)


def channel_gradients(
    c, s1, s2, total, dot, scale, var, g_mean, g_var, has_g, g_scale, g_bias, abc, channels, n,
    epsilon,
):  # fmt: skip
    """From a channel's sums of gy * (x - mean) and of gy: its results, and what makes gx.

    gx = a*gy + b*(x - mean) + c; `abc` holds a, then b, then c of all channels.
    """
    inverse = 1.0 / math.sqrt(np.float64(var[c]) + epsilon)
    slope = scale[c] * inverse
    g_scale[c] = dot * inverse
    g_bias[c] = total
    b = -slope * inverse * inverse * dot / n
    constant = -slope * total / n
    if has_g:
        b += 2.0 * g_var[c] / n
        constant += np.float64(g_mean[c]) / n
    abc[c] = slope
    abc[channels + c] = b
    abc[2 * channels + c] = constant


# --- every element --------------------------------------------------------------------------------


@cache
def moved_channels(width: int):
    """A vector a thread, all of one channel."""
    load, store, as_tuple = Intrinsic("load", width), Intrinsic("store", width), tuple_of(width)

    def normalise_channels(x, centre, factor, shift, y, channels, plane, size):
        i = cuda.grid(1) * width
        if i < size:
            values = load(x, i)
            result = cuda.local.array(width, real)
            c = mod32(div32(i, plane), channels)
            for j in range(width):
                result[j] = (values[j] - real(centre[c])) * factor[c] + shift[c]
            store(y, i, as_tuple(result))

    return normalise_channels


@cache
def moved_columns(width: int):
    """Planes of one element: a thread takes the same channels of `ROWS` samples."""
    load, store, as_tuple = Intrinsic("load", width), Intrinsic("store", width), tuple_of(width)

    def normalise_columns(x, centre, factor, shift, y, channels, outer):
        across = channels // width
        thread = cuda.grid(1)
        group = div32(thread, across)
        c = (thread - group * across) * width
        if group * ROWS < outer:
            means, slopes, shifts = load(centre, c), load(factor, c), load(shift, c)
            result = cuda.local.array(width, real)
            for k in range(ROWS):
                row = group * ROWS + k
                if row < outer:
                    values = load(x, row * channels + c)
                    for j in range(width):
                        result[j] = (values[j] - real(means[j])) * slopes[j] + shifts[j]
                    store(y, row * channels + c, as_tuple(result))

    return normalise_columns


@cache
def combine(width: int):
    """gx = a*gy + b*(x - mean) + c; `abc` holds a, then b, then c of all channels."""
    load, store, as_tuple = Intrinsic("load", width), Intrinsic("store", width), tuple_of(width)

    def combine_gradients(x, gy, mean, abc, gx, channels, plane, size):
        i = cuda.grid(1) * width
        if i < size:
            values, slopes = load(x, i), load(gy, i)
            result = cuda.local.array(width, real)
            c = mod32(div32(i, plane), channels)
            for j in range(width):
                rest = abc[channels + c] * (values[j] - real(mean[c])) + abc[2 * channels + c]
                result[j] = abc[c] * slopes[j] + rest
            store(gx, i, as_tuple(result))

    return combine_gradients


@cache
def combine_columns(width: int):
    load, store, as_tuple = Intrinsic("load", width), Intrinsic("store", width), tuple_of(width)

    def combine_gradients(x, gy, mean, abc, gx, channels, outer):
        across = channels // width
        thread = cuda.grid(1)
        group = div32(thread, across)
        c = (thread - group * across) * width
        if group * ROWS < outer:
            means, a = load(mean, c), load(abc, c)
            b, e = load(abc, channels + c), load(abc, 2 * channels + c)
            result = cuda.local.array(width, real)
            for k in range(ROWS):
                row = group * ROWS + k
                if row < outer:
                    i = row * channels + c
                    values, slopes = load(x, i), load(gy, i)
                    for j in range(width):
                        rest = b[j] * (values[j] - real(means[j])) + e[j]
                        result[j] = a[j] * slopes[j] + rest
                    store(gx, i, as_tuple(result))

    return combine_gradients


@cache
def moved_groups(width: int):
    load, store = Intrinsic("load", width), Intrinsic("store", width)

    def normalise_groups(
        x, centre, factor, scale, bias, scaled, moved, y, groups, each, plane, size
    ):
        i = cuda.grid(1) * width
        if i < size:
            values = load(x, i)
            result = cuda.local.array(width, real)
            channel = div32(i, plane)
            row = div32(channel, each)
            channel = mod32(channel, groups * each)
            slope = factor[row] * scale[channel] if scaled else factor[row]
            shift = bias[channel] if moved else 0.0
            for j in range(width):
                result[j] = (values[j] - centre[row]) * slope + shift
            store(y, i, as_tuple(result))

    as_tuple = tuple_of(width)
    return normalise_groups


@cache
def tuple_of(width: int) -> Callable:
    """The first elements of an array as a tuple."""
    gathered = GATHERED[width]

    def as_tuple(values):
        return gathered(values, 0)

    return as_tuple
