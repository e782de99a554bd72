"""A constant border, on CUDA, in one launch; see `kernels.padding`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opstep.kernels.axes import strides_of
from opstep.kernels.gpu.copying import CARRIERS, as_words
from opstep.kernels.gpu.places import LIMIT
from opstep.runtime.device.cuda.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid

THREADS = 256  # of a block
TURN = 8  # elements of a row that a thread writes


def pad(x: Arg, y: Arg, before: Sequence[int], value: int) -> Grid | None:
    """y = x with `before` elements of the bits `value` before each axis, and what y has room for
    behind.
    """
    if y.size >= LIMIT or x.rank == 0 or x.stored is not x.dtype:
        return None
    carrier = CARRIERS[x.stored.itemsize]
    *outer, n = y.shape
    bits = min(8, max(0, -(-n // TURN) - 1).bit_length())
    across = -(-n // (TURN << bits))
    rows = y.size // n if n else 0
    table = (*outer, *x.shape[:-1], *before[:-1], *strides_of(x.shape)[:-1])
    return Grid(
        pad_rows,
        *(as_words(x, carrier), as_words(y, carrier), value),
        *(n, x.shape[-1], before[-1], rows, across, bits, len(outer), table),
        grid=across * -(-rows // (THREADS >> bits)),
        block=THREADS,
    )


def pad_rows(x, y, value, n, inner, first, rows, across, bits, rank, table):
    """2**bits threads of a block side by side write a row."""
    block = div32(cuda.blockIdx.x, across)
    row = (block * THREADS + cuda.threadIdx.x) >> bits
    if row >= rows:
        return
    p = np.int64(0)
    inside = True
    rest = row
    for back in range(rank):
        axis = rank - 1 - back
        above = div32(rest, table[axis])
        at = rest - above * table[axis] - table[2 * rank + axis]
        inside = inside and at >= 0 and at < table[rank + axis]
        p += at * table[3 * rank + axis]
        rest = above
    wide = 1 << bits
    j = ((cuda.blockIdx.x - block * across) * TURN << bits) + (cuda.threadIdx.x & (wide - 1))
    for _ in range(TURN):
        if j < n:
            at = j - first
            y[row * n + j] = x[p + at] if inside and at >= 0 and at < inner else value
        j += wide
