"""What several blocks folded of one result, joined by a second launch."""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.reduce.cuda_folding import THREADS, GpuFold, power_of_two, steps_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Scratch


@cache
def join_kernel(fold: GpuFold):
    """2**bits results of a block side by side: the threads below one another share their
    accumulators, `blocks` of them for each result, n apart.
    """
    start, combine = fold.start, fold.combine
    steps = steps_of(fold, 1, False)
    put, get, finish = steps.put, steps.get, steps.finish
    kind = getattr(np, fold.accumulator.numpy.name)
    places = THREADS * fold.parts

    def kernel(parts, y, results, blocks, n, bits, count, divisor):
        shared = cuda.shared.array(places, kind)
        thread = cuda.threadIdx.x
        wide = 1 << bits
        down = thread >> bits
        i = (cuda.blockIdx.x << bits) + (thread & (wide - 1))
        acc = start()
        if i < results:
            above = div32(i, n)
            base = above * blocks * n + i - above * n
            block = np.int64(down)
            while block < blocks:
                acc = combine(acc, get(parts, base + block * n))
                block += THREADS >> bits
        put(shared, thread, acc)
        step = THREADS >> 1
        while step >= wide:
            cuda.syncthreads()
            if thread < step:
                put(shared, thread, combine(get(shared, thread), get(shared, thread + step)))
            step >>= 1
        if down == 0 and i < results:
            finish(y, i, get(shared, thread), count, divisor)

    kernel.__name__ = fold.name
    return kernel


def parts_of(fold: GpuFold, accumulators: int) -> Scratch:
    return Scratch(fold.accumulator, accumulators * fold.parts)


def join(fold: GpuFold, parts: Scratch, y: Arg, results: int, blocks: int, n: int, ends) -> Grid:
    bits = min(5, power_of_two(n).bit_length() - 1)
    args = (parts, y, results, blocks, n, bits, *ends)
    return Grid(join_kernel(fold), *args, grid=-(-results >> bits), block=THREADS)
