"""Sums and dot products of rows, as kernels of several families need them.

Sums are made of blocks in the data's type, and of blocks in f64: 2**24 elements of f32 lose no more
than a few bits.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce.runs import RUN, dot_of, squares_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.source import by_dtype

BLOCK = RUN  # elements that are summed in the data's type


def _as_f32(number):
    return np.float32(number)


@by_dtype(f32=_as_f32)
def rounded(number):
    """An f64 in the kernel's type."""
    return np.float64(number)


def squared_distance(x, centre, n):
    """The sum of (x - centre)**2."""
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        total += squares_of(offset(x, start), centre, min(BLOCK, n - start))
    return total


def centred_dot(a, x, centre, n):
    """The sum of a * (x - centre)."""
    total = np.float64(0.0)
    for start in range(0, n, BLOCK):
        total += dot_of(offset(a, start), offset(x, start), centre, min(BLOCK, n - start))
    return total


def dot(a, b, n):
    return centred_dot(a, b, 0.0, n)
