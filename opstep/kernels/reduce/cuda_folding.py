"""How CUDA kernels of reductions combine states: of vectors, of warps, of blocks, of launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.reduce.folds import Fold
from opstep.kernels.reduce.states import GET, PUT
from opstep.runtime.device.cuda.compiling.names import cuda, div32, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DType

THREADS = 256  # of a block


def held_as(dtype: DType) -> Any:
    """The type of a kernel's own arrays of such elements."""
    if not dtype.is_float:
        return np.int64
    return np.float64 if dtype.itemsize == 8 else np.float32


@cache
def exchange(shuffle: Intrinsic, pair: bool) -> Callable:
    """The state of another thread of the warp."""

    def one(state, other):
        return shuffle(state, other)

    def two(state, other):
        return shuffle(state[0], other), shuffle(state[1], other)

    return two if pair else one


def power_of_two(number: int) -> int:
    """The one that is not below it."""
    return 1 << max(0, number - 1).bit_length()


@cache
def term_of(fold: Fold, width: int) -> Callable:
    """(elements of a vector, place of the first) -> what they come to.
    Pairwise: short chains, small errors.
    """
    load, combine, half = fold.load, fold.combine, width // 2

    def one(v, place):
        return load(v[0], place)

    def several(v, place):
        return combine(of_half(v[:half], place), of_half(v[half:], place + half))

    if width == 1:
        return one
    of_half = term_of(fold, half)
    return several


@cache
def finisher(fold: Fold, raw: bool) -> Callable:
    """(y, more, i, state, count): writes result i, or the state for another launch."""
    ended, put = fold.finish, PUT[fold.pair]

    def finish(y, more, i, state, count):
        y[i] = ended(state, count)

    def finish_raw(y, more, i, state, count):
        put(y, more, i, state)

    return finish_raw if raw else finish


@cache
def together(fold: Fold) -> Callable:
    combine, pair = fold.combine, fold.pair
    put, get, across = PUT[pair], GET[pair], exchange(shuffle_xor, pair)
    kind, second = held_as(fold.state[0]), held_as(fold.state[-1])
    warps = THREADS // 32

    def folded(state, lanes):
        """Valid in the first of the lanes, a power of 2; all threads of the block call it."""
        mask = min(lanes, 32) >> 1
        while mask > 0:
            state = combine(state, across(state, mask))
            mask >>= 1
        if lanes > 32:
            shared = cuda.shared.array(warps, kind)
            more = cuda.shared.array(warps, second) if pair else shared
            warp = cuda.threadIdx.x >> 5
            if cuda.threadIdx.x & 31 == 0:
                put(shared, more, warp, state)
            cuda.syncthreads()
            first = (cuda.threadIdx.x & -lanes) >> 5
            if cuda.threadIdx.x & 31 == 0 and warp == first:
                for other in range(1, lanes >> 5):
                    state = combine(state, get(shared, more, warp + other))
        return state

    return folded


# --- what several blocks folded of one result, joined by a second launch --------------------------


@cache
def join_kernel(fold: Fold):
    """2**bits results of a block side by side: the threads below one another share their states,
    `blocks` of them for each result, n apart.
    """
    start, combine, pair = fold.start, fold.combine, fold.pair
    put, get, finish = PUT[pair], GET[pair], fold.finish
    kind, second = held_as(fold.state[0]), held_as(fold.state[-1])

    def kernel(parts, seconds, y, results, blocks, n, bits, count):
        shared = cuda.shared.array(THREADS, kind)
        more = cuda.shared.array(THREADS, second) if pair else shared
        thread = cuda.threadIdx.x
        wide = 1 << bits
        down = thread >> bits
        i = (cuda.blockIdx.x << bits) + (thread & (wide - 1))
        state = start()
        if i < results:
            above = div32(i, n)
            base = above * blocks * n + i - above * n
            block = np.int64(down)
            while block < blocks:
                state = combine(state, get(parts, seconds, base + block * n))
                block += THREADS >> bits
        put(shared, more, thread, state)
        step = THREADS >> 1
        while step >= wide:
            cuda.syncthreads()
            if thread < step:
                below = get(shared, more, thread + step)
                put(shared, more, thread, combine(get(shared, more, thread), below))
            step >>= 1
        if down == 0 and i < results:
            y[i] = finish(get(shared, more, thread), count)

    kernel.__name__ = fold.name
    return kernel


def folded_by(
    fold: Fold, y: Arg, blocks: int, n: int, count: int, first: Callable[..., Grid]
) -> list[Grid]:
    """``first(raw, y, more)`` folds; where several blocks share a result, into states that another
    launch joins. Those of n neighbouring results stand side by side.
    """
    if blocks == 1:
        return [first(False, y, y)]
    parts = [Scratch(kind, y.size * blocks) for kind in fold.state]
    bits = min(5, power_of_two(n).bit_length() - 1)
    args = (parts[0], parts[-1], y, y.size, blocks, n, bits, count)
    join = Grid(join_kernel(fold), *args, grid=-(-y.size >> bits), block=THREADS)
    return [first(True, parts[0], parts[-1]), join]
