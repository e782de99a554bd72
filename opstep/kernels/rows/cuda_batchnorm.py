"""Batch normalisation with fixed statistics on CUDA: what moves and scales channels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from math import gcd

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

THREADS = 256
ROWS = 8  # samples that a thread takes, where a plane is one element

Shape = tuple[int, int, int]  # elements before the channels, channels, elements behind


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
def tuple_of(width: int) -> Callable:
    """The first elements of an array as a tuple."""
    gathered = GATHERED[width]

    def as_tuple(values):
        return gathered(values, 0)

    return as_tuple
