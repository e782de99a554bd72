"""Sums and dot products of rows, as kernels of several families need them.

Sums are made of blocks in the data's type, and of blocks in f64: 2**24 elements of f32 lose no more
than a few bits.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce.runs import RUN, dot_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.source import by_dtype


def _as_f32(number):
    return np.float32(number)


@by_dtype(f32=_as_f32)
def rounded(number):
    """An f64 in the kernel's type."""
    return np.float64(number)


def dot(a, b, n):
    """The sum of a * b."""
    total = np.float64(0.0)
    for start in range(0, n, RUN):
        total += dot_of(offset(a, start), offset(b, start), 0.0, min(RUN, n - start))
    return total
