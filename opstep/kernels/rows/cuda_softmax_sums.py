"""The largest element of a row and the sum of exp(x - largest), which is read once: of rows that
are too long for registers, in parts; of sequences that do not lie in a row, by a thread each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.rows.cuda_moments import THREADS
from opstep.kernels.schedules.cuda.teams import plus, quick_exp, reducers
from opstep.runtime.device.cuda.compiling.names import cuda, fmax, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

PART = 16384  # elements of a row that a block takes
MOST_PARTS = 1024
AT_ONCE = 4  # vectors that a thread reads before it computes
CLASSES = 8  # elements of a sequence that it reads at once, where they do not lie side by side


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
