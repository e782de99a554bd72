"""Sums, dot products and maxima of rows, as kernels of several families need them.

Sums are made of blocks in the data's type, which LLVM vectorises, and of blocks in f64: 2**24
elements of f32 lose no more than a few bits.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.fastmath import exp
from opstep.runtime.device.source import by_dtype, reassociate

BLOCK = 512  # elements that are summed in the data's type


def _as_f32(number):
    return np.float32(number)


@by_dtype(f32=_as_f32)
def rounded(number):
    """An f64 in the kernel's type."""
    return np.float64(number)


def _without_nan(kernel):
    """A maximum vectorises only where LLVM need not keep track of NaN."""
    kernel.fastmath = frozenset({"nnan", "nsz", "reassoc"})
    return kernel


@_without_nan
def largest(x, n):
    """Of n > 0 elements; where one is NaN, any of them."""
    top = x[0]
    for i in range(1, n):
        top = x[i] if x[i] > top else top
    return top


@reassociate
def row_sum(x, n):
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, n)):
            part += x[i]
        total += part
    return total


@reassociate
def squared_distance(x, centre, n):
    """The sum of (x - centre)**2."""
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, n)):
            part += (x[i] - centre) * (x[i] - centre)
        total += part
    return total


@reassociate
def dot(a, b, n):
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, n)):
            part += a[i] * b[i]
        total += part
    return total


@reassociate
def centred_dot(a, x, centre, n):
    """The sum of a * (x - centre)."""
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, n)):
            part += a[i] * (x[i] - centre)
        total += part
    return total


@reassociate
def exponentials(x, top, y, n):
    """y = exp(x - top); gives the sum.

    The sum has a loop of its own: one that also stores is compiled twice, for y apart from x and
    for y in the place of x, and the two would sum in different orders.
    """
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        for i in range(start, end):
            y[i] = exp(x[i] - top)
        part = 0.0
        for i in range(start, end):
            part += y[i]
        total += part
    return total


@reassociate
def exponential_sum(x, top, n):
    """The sum of exp(x - top)."""
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, n)):
            part += exp(x[i] - top)
        total += part
    return total
