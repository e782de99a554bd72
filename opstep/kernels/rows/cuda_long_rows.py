"""Rows that are too long for registers, and sequences that do not lie in a row.

A long row is read twice: blocks sum parts of it (`moments`; for softmax here), then every element
is computed from what became of the sums. Where the axis is not the last, a thread takes a sequence,
so that neighbours are read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.rows.cuda_moments import FIRST, THREADS, ZERO, Sums, finisher, moments_of
from opstep.kernels.schedules.cuda.columns import start_of
from opstep.kernels.schedules.cuda.teams import plus, quick_exp, reducers
from opstep.runtime.device.cuda.compiling.names import cuda, div32, fmax, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

PART = 16384  # elements of a row that a block takes
MOST_PARTS = 1024
AT_ONCE = 4  # vectors that a thread reads before it computes
CLASSES = 8  # elements of a sequence that it reads at once, where they do not lie side by side


# --- sums, then every element ---------------------------------------------------------------------


def from_sums(
    finish: Callable, combine: Callable, x: Arg, d: Arg | None, scale: Arg | None,
    bias: Arg | None, y: Arg, n: int, epsilon: float, statistics: tuple[Arg, ...] = (),
) -> list[Grid]:  # fmt: skip
    """y = combine(x, d, c0, c1, c2, c3), where ``finish(row, s1, s2, s3, s4, x, coefficients, rows,
    n, epsilon, *statistics)`` makes a row's coefficients of its sums. `scale` multiplies d, or else
    the result; `bias` is added to it.
    """
    rows = x.size // n
    sums = Sums(
        *(x, (1, rows, n), FIRST if finish in CENTRED else ZERO),
        d=d,
        scale=scale if d is not None else None,
    )
    coefficients = Scratch(x.dtype, 4 * rows)
    into = (x, coefficients, rows, n, epsilon, *statistics)
    operands = [a for a in (x, d, scale, bias, y) if a is not None]
    width = gcd(n, 16 // max(a.stored.itemsize for a in operands))
    kernel = every_element(combine, width, d is not None, scale is not None, bias is not None)
    args = (x, d or x, scale or x, bias or x, coefficients, y, n, rows, x.size)
    grid = -(-x.size // (width * THREADS))
    return [
        sums.launch,
        sums.finish(finisher(finish, len(into)), *into),
        Grid(kernel, *args, grid=grid, block=THREADS),
    ]


@cache
def every_element(combine: Callable, width: int, dual: bool, scaled: bool, moved: bool):
    load, store, gathered = Intrinsic("load", width), Intrinsic("store", width), GATHERED[width]

    def apply_to_rows(x, d, scale, bias, coefficients, y, n, rows, size):
        i = cuda.grid(1) * width
        if i < size:
            row = div32(i, n)
            values = load(x, i)
            others = load(d, i) if dual else values
            scales = load(scale, i - row * n) if scaled else values
            moves = load(bias, i - row * n) if moved else values
            c0, c1 = coefficients[row], coefficients[rows + row]
            c2, c3 = coefficients[2 * rows + row], coefficients[3 * rows + row]
            result = cuda.local.array(width, real)
            for j in range(width):
                other = others[j] * scales[j] if dual and scaled else others[j]
                v = combine(values[j], other, c0, c1, c2, c3)
                if scaled and not dual:
                    v *= scales[j]
                result[j] = v + moves[j] if moved else v
            store(y, i, gathered(result, 0))

    return apply_to_rows


def layer_norm_coefficients(row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon):
    """The mean, 1 / deviation, the mean of d, and by how much d leans on the distance."""
    pivot = np.float64(x[row * n])
    mean, variance = moments_of(s1, s2, n, pivot)
    coefficients[row] = mean
    coefficients[rows + row] = 1.0 / math.sqrt(variance + epsilon)
    coefficients[2 * rows + row] = s3 / n
    coefficients[3 * rows + row] = (s4 - s3 * (mean - pivot)) / n / (variance + epsilon)


def rms_norm_coefficients(row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon):
    square = s2 / n + epsilon
    coefficients[rows + row] = 1.0 / math.sqrt(square)
    coefficients[3 * rows + row] = s4 / n / square


def sum_coefficients(row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon):
    coefficients[2 * rows + row] = s3


def dot_coefficients(row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon):
    coefficients[2 * rows + row] = s4


def layer_norm_statistics(
    row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon, means, factors
):  # fmt: skip
    layer_norm_coefficients(row, s1, s2, s3, s4, x, coefficients, rows, n, epsilon)
    means[row], factors[row] = coefficients[row], coefficients[rows + row]


CENTRED = (layer_norm_coefficients, layer_norm_statistics)


def layer_norm(v, d, c0, c1, c2, c3):
    return (v - c0) * c1


def layer_norm_grad(v, d, c0, c1, c2, c3):
    return (d - c2 - (v - c0) * c3) * c1


def rms_norm(v, d, c0, c1, c2, c3):
    return v * c1


def rms_norm_grad(v, d, c0, c1, c2, c3):
    return (d - v * c3) * c1


def softmax_grad(v, d, c0, c1, c2, c3):
    return v * (d - c2)


def log_softmax_grad(v, d, c0, c1, c2, c3):
    return d - exp(v) * c2


# --- softmax of long rows -------------------------------------------------------------------------


class Parts:
    """Long rows in parts: the launch that leaves (largest, sum of exp(x - largest)) of each part in
    `sums`, for `whole_row`. `args` say how rows are cut, `grid` is a block for each part.
    """

    def __init__(self, x: Arg, n: int):
        rows = x.size // n
        self.width = gcd(n, 16 // x.stored.itemsize)
        span = max(PART, -(-n // (MOST_PARTS * PART)) * PART)
        count = -(-n // span)
        kind: Any = x.dtype.numpy.type
        self.lowest = np.finfo(kind).min
        self.exp = quick_exp if x.stored.is_half else exp
        self.sums = Scratch(x.dtype, 2 * rows * count)
        self.args, self.grid = (n, count, span), rows * count
        kernel = part_sums(self.width, self.lowest, self.exp)
        self.launch = Grid(kernel, x, self.sums, *self.args, grid=self.grid, block=THREADS)


def long_softmax(x: Arg, y: Arg, n: int, logarithm: bool) -> list[Grid]:
    parts = Parts(x, n)
    kernel = from_parts(parts.width, parts.lowest, parts.exp, logarithm)
    last = Grid(kernel, x, y, parts.sums, *parts.args, grid=parts.grid, block=THREADS)
    return [parts.launch, last]


_LARGEST, _TOTAL = reducers(fmax, THREADS)[0], reducers(plus, THREADS)[0]


@cache
def part_sums(width: int, lowest, exp: Callable):
    """(largest, sum of exp(x - largest)) of a part of a row. `lowest`: stands in for a largest that
    is -inf, from which nothing can be subtracted.
    """
    load, held = Intrinsic("load", width), width * AT_ONCE

    def softmax_parts(x, partials, n, parts, span):
        row = np.int64(cuda.blockIdx.x) // parts
        start = (cuda.blockIdx.x - row * parts) * span
        end = min(start + span, n)
        values = cuda.local.array(held, real)
        top = -1e999
        sum = 0.0
        i = start + cuda.threadIdx.x * width
        while i < end:
            for k in range(AT_ONCE):
                at = i + k * THREADS * width
                if at < end:
                    vector = load(x, row * n + at)
                    for j in range(width):
                        values[k * width + j] = vector[j]
                else:
                    for j in range(width):
                        values[k * width + j] = -1e999
            before = fmax(top, lowest)
            for k in range(held):
                top = fmax(top, values[k])
            here = fmax(top, lowest)
            sum *= exp(before - here)
            for k in range(held):
                sum += exp(values[k] - here)
            i += AT_ONCE * THREADS * width
        all = _LARGEST(top, 0)
        sum = _TOTAL(sum * exp(fmax(top, lowest) - fmax(all, lowest)), 1)
        if cuda.threadIdx.x == 0:
            partials[2 * cuda.blockIdx.x], partials[2 * cuda.blockIdx.x + 1] = all, sum

    return softmax_parts


def whole_row(partials, row, parts, lowest):
    """(largest, sum of exp(x - largest)) of a row, in all threads of a block."""
    top = -1e999
    for p in range(cuda.threadIdx.x, parts, THREADS):
        top = fmax(top, partials[2 * (row * parts + p)])
    top = _LARGEST(top, 0)
    sum = 0.0
    for p in range(cuda.threadIdx.x, parts, THREADS):
        own = fmax(partials[2 * (row * parts + p)], lowest)
        sum += partials[2 * (row * parts + p) + 1] * exp(own - fmax(top, lowest))
    return top, _TOTAL(sum, 1)


@cache
def from_parts(width: int, lowest, exp: Callable, logarithm: bool):
    load, store, gathered = Intrinsic("load", width), Intrinsic("store", width), GATHERED[width]

    def softmax_of_parts(x, y, partials, n, parts, span):
        row = np.int64(cuda.blockIdx.x) // parts
        top, sum = whole_row(partials, row, parts, lowest)
        share = math.log(sum) if logarithm else 1.0 / sum
        start = (cuda.blockIdx.x - row * parts) * span
        result = cuda.local.array(width, real)
        for i in range(
            start + cuda.threadIdx.x * width, min(start + span, n), THREADS * width
        ):  # fmt: skip
            values = load(x, row * n + i)
            for j in range(width):
                v = values[j] - top
                result[j] = v - share if logarithm else exp(v) * share
            store(y, row * n + i, gathered(result, 0))

    return softmax_of_parts


# --- a thread a sequence --------------------------------------------------------------------------


def along_columns(kernel: Callable, args: tuple[Arg, ...], n: int, inner: int) -> Grid:
    columns = args[0].size // n
    return Grid(kernel, *args, n, inner, columns, grid=-(-columns // THREADS), block=THREADS)


def online_softmax(x, start, n, inner):
    """(largest, sum of exp(x - largest)) of n elements `inner` apart, read once, a few at a time.
    The sum is NaN where the largest is no number.
    """
    values = cuda.local.array(CLASSES, real)
    top = -1e999
    base = -1e999
    sum = 0.0
    for first in range(0, n, CLASSES):
        for k in range(CLASSES):
            values[k] = x[start + (first + k) * inner] if first + k < n else -1e999
        for k in range(CLASSES):
            top = fmax(top, values[k])
        before = base
        base = top if top > -1e999 else 0.0  # nothing can be subtracted from -inf
        sum *= exp(before - base)
        for k in range(CLASSES):
            sum += exp(values[k] - base)
    return top, sum + (top - top)


def softmax_columns(x, y, n, inner, columns):
    column = cuda.grid(1)
    if column < columns:
        start = start_of(column, n, inner)
        top, sum = online_softmax(x, start, n, inner)
        share = 1.0 / sum
        for k in range(n):
            y[start + k * inner] = exp(x[start + k * inner] - top) * share


def log_softmax_columns(x, y, n, inner, columns):
    column = cuda.grid(1)
    if column < columns:
        start = start_of(column, n, inner)
        top, sum = online_softmax(x, start, n, inner)
        log_sum = math.log(sum)
        for k in range(n):
            y[start + k * inner] = x[start + k * inner] - top - log_sum


def softmax_grad_columns(y, gy, gx, n, inner, columns):
    column = cuda.grid(1)
    if column < columns:
        start = start_of(column, n, inner)
        sum = np.float64(0.0)
        for k in range(n):
            sum += np.float64(y[start + k * inner] * gy[start + k * inner])
        mean = real(sum)
        for k in range(n):
            i = start + k * inner
            gx[i] = y[i] * (gy[i] - mean)


def log_softmax_grad_columns(y, gy, gx, n, inner, columns):
    column = cuda.grid(1)
    if column < columns:
        start = start_of(column, n, inner)
        sum = np.float64(0.0)
        for k in range(n):
            sum += np.float64(gy[start + k * inner])
        total = real(sum)
        for k in range(n):
            i = start + k * inner
            gx[i] = gy[i] - exp(y[i]) * total
