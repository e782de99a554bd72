"""Mends the edges of transposed convolutions on CUDA: see `kernels.conv.edges`."""

from __future__ import annotations

import math
from math import prod

from opstep.kernels.conv.edges import mend, sizes
from opstep.kernels.conv.windows import Window
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Arg, Grid

_THREADS = 256


def mended(gy: Arg, w: Arg, bias: Arg | None, gx: Arg, views: tuple[Window, ...]) -> list[Grid]:
    """What comes behind the kernels that make gx: a block for each of its channels."""
    if not (gx.dtype.is_float and gx.size and gy.size):
        return []
    return [
        Grid(
            *(mend_edges, gy, w, bias or gy, gx, *sizes(gy, w, bias, gx, views)),
            *(gx.size // gx.shape[1], prod(w.shape[2:])),
            grid=gx.shape[1],
            block=_THREADS,
        )
    ]


def mend_edges(
    gy, w, bias, gx, planes, rows, columns, filters, channels, own, biased, pixels, taps
):
    channel = cuda.blockIdx.x
    every = filters * own // channels * taps  # weights that the channel receives through
    weights = offset(w, (channel // own * (filters * own // channels) * own + channel % own) * taps)
    odd = 0
    for k in range(cuda.threadIdx.x, every, cuda.blockDim.x):
        if not math.isfinite(weights[k // taps * own * taps + k % taps]):
            odd = 1
    if cuda.syncthreads_or(odd):
        for q in range(cuda.threadIdx.x, pixels, cuda.blockDim.x):
            mend(gy, w, bias, gx, planes, rows, columns, filters, channels, own, biased, channel, q)
