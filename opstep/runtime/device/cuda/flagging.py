"""Raises flags of NaNs and infinities on a GPU (see `device.flagging`): one read of the tensor."""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.flagging import INFINITY
from opstep.runtime.device.launch import CARRIERS, Arg, Grid
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DType, TensorType

THREADS = 256  # of a block
VECTORS = 4  # of 16 bytes, that a thread reads before it looks at any


def launch(x: Arg, flags: Arg) -> Grid:
    """The launch that looks at `x`, seen as integers."""
    itemsize = x.stored.itemsize
    source = Arg(TensorType(CARRIERS[itemsize], x.shape), x.slot)
    grid = -(-x.size // (THREADS * VECTORS * 16 // itemsize))
    return Grid(raiser(x.stored), source, flags, x.size, grid=grid, block=THREADS)


@cache
def raiser(dtype: DType):
    """The kernel for elements of that type. Whoever writes a flag writes the same."""
    width, infinity = 16 // dtype.itemsize, INFINITY[dtype.name]
    magnitude = (1 << dtype.bits - 1) - 1
    load = Intrinsic("load", width)

    word = np.int64 if dtype.itemsize == 8 else np.int32

    def look(bits, flags):
        size = word(bits & magnitude)
        if size >= infinity:
            flags[0 if size > infinity else 1] = 1

    def raise_flags(x, flags, n):
        first = (cuda.blockIdx.x * (THREADS * VECTORS) + cuda.threadIdx.x) * width
        stride = THREADS * width
        whole = first + (VECTORS - 1) * stride + width <= n
        most = word(0)
        if whole:
            for k in range(VECTORS):
                vector = load(x, first + k * stride)
                for j in range(width):
                    most = max(most, word(vector[j] & magnitude))
        if not whole or most >= infinity:
            for k in range(VECTORS):
                at = first + k * stride
                for i in range(at, min(at + width, n)):
                    look(x[i], flags)

    raise_flags.__name__ = f"flags of {dtype.name}"
    return raise_flags
