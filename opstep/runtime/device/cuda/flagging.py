"""Raises flags of NaNs and infinities on a GPU (see `device.flagging`): one read of the tensor."""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.flagging import INFINITY
from opstep.runtime.device.launch import CARRIERS, Arg, Grid
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.internal import TOGETHER

THREADS = 256  # of a block
VECTORS = 4  # of 16 bytes, that a thread reads before it looks at any


def launch(x: Arg, flags: Arg) -> Grid:
    """The launch that looks at `x`."""
    grid = blocks_for(x)
    return Grid(raiser(x.stored), as_bits(x), flags, x.size, grid=grid, block=THREADS)


def launch_several(*args: Arg, rows: tuple[int, ...]) -> Grid:
    """One that looks at as many tensors as there are rows, each with its own blocks."""
    *xs, flags = args
    table, blocks = [], 0
    for x, row in zip(xs, rows, strict=False):
        table += [blocks, x.size, row]
        blocks += blocks_for(x)
    kernel = raiser_of_several(xs[0].stored)
    return Grid(
        kernel, *map(as_bits, xs), flags, tuple(table), len(rows), grid=blocks, block=THREADS
    )  # fmt: skip


def blocks_for(x: Arg) -> int:
    return -(-x.size // (THREADS * VECTORS * 16 // x.stored.itemsize))


def as_bits(x: Arg) -> Arg:
    """Seen as integers."""
    return Arg(TensorType(CARRIERS[x.stored.itemsize], x.shape), x.slot)


@cache
def raiser(dtype: DType):
    """The kernel for elements of that type."""
    look_at = looker(dtype)

    def raise_flags(x, flags, n):
        look_at(x, flags, n, cuda.blockIdx.x)

    raise_flags.__name__ = f"flags of {dtype.name}"
    return raise_flags


@cache
def raiser_of_several(dtype: DType):
    """`table`: of each tensor the first block, the elements, and the place of its flags."""
    tensors = range(TOGETHER)
    lines = [f"def raise_flags({', '.join(f'x{k}' for k in tensors)}, flags, table, count):"]
    lines += ["    block, k = cuda.blockIdx.x, 0"]
    lines += [
        "    while k + 1 < count and block >= table[3 * k + 3]:",
        "        k += 1",
        "    x = x0",
    ]
    lines += [f"    if k == {k}:\n        x = x{k}" for k in tensors[1:]]
    lines += ["    first, n, row = table[3 * k], table[3 * k + 1], table[3 * k + 2]"]
    lines += ["    look_at(x, offset(flags, 2 * row), n, block - first)"]
    scope = {"cuda": cuda, "offset": offset, "look_at": looker(dtype)}
    raise_flags = from_text("\n".join(lines), "flags of several", "raise_flags", scope)
    raise_flags.__name__ = f"flags of {dtype.name} tensors"
    return raise_flags


@cache
def looker(dtype: DType):
    """What a block of a kernel does. Whoever writes a flag writes the same."""
    width, infinity = 16 // dtype.itemsize, INFINITY[dtype.name]
    magnitude = (1 << dtype.bits - 1) - 1
    load = Intrinsic("load", width)

    word = np.int64 if dtype.itemsize == 8 else np.int32

    def look(bits, flags):
        size = word(bits & magnitude)
        if size >= infinity:
            flags[0 if size > infinity else 1] = 1

    def look_at(x, flags, n, block):
        first = (block * (THREADS * VECTORS) + cuda.threadIdx.x) * width
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

    return look_at
