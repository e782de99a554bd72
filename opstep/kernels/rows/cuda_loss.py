"""Sums of what the blocks of a launch left, for losses on CUDA: in f64, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opstep.kernels.rows.cuda_moments import THREADS, block_sum
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Grid, Scratch
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.types import f64

AT_ONCE = 4  # vectors of each operand that a thread reads before it adds
FEW = 4096  # sums that one block adds up


class Partials:
    """Two sums of each of `count` blocks: [4, count], of which two rows are used."""

    def __init__(self, count: int):
        self.count = count
        self.sums = Scratch(f64, 4 * count)

    def finish(self, kernel: Callable, *args) -> list[Grid]:
        """Launches that end in ``kernel(sums, count, *args)``, run by one block."""
        if self.count <= FEW:
            return [Grid(kernel, self.sums, self.count, *args, grid=1, block=THREADS)]
        fewer = Partials(-(-self.count // (THREADS * AT_ONCE)))
        sums = (self.sums, self.count, fewer.sums)
        first = Grid(fold_partials, *sums, grid=fewer.count, block=THREADS)
        return [first, *fewer.finish(kernel, *args)]


@pinned("f64")
def fold_partials(sums, count, into):
    a, b = 0.0, 0.0
    start = cuda.blockIdx.x * THREADS * AT_ONCE + cuda.threadIdx.x
    for k in range(AT_ONCE):
        i = start + k * THREADS
        if i < count:
            a += sums[i]
            b += sums[count + i]
    block_sum(a, b, 0.0, 0.0, into, cuda.blockIdx.x, cuda.gridDim.x)


@pinned("f64")
def both(sums, count):
    """The two sums of all blocks, in the first thread."""
    a, b = 0.0, 0.0
    for i in range(cuda.threadIdx.x, count, THREADS):
        a += sums[i]
        b += sums[count + i]
    found = cuda.shared.array(4, np.float64)
    block_sum(a, b, 0.0, 0.0, found, 0, 1)
    cuda.syncthreads()
    return found[0], found[1]


def write_share(sums, count, y, divisor):
    """y is the first sum over a number, or over the second sum where that is 0."""
    a, b = both(sums, count)
    if cuda.threadIdx.x == 0:
        y[0] = a / b if divisor == 0 else a / np.float64(divisor)


def write_inverse(sums, count, mass):
    _, b = both(sums, count)
    if cuda.threadIdx.x == 0:
        mass[0] = np.float64(1.0) / b
