"""Kernels of random numbers: each Philox block becomes a few neighbouring elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from opstep.kernels.random.philox import philox
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.device.source import Intrinsic

GRAIN = 4096  # blocks worth a lane of their own
THREADS = 256  # of a block of a GPU
NO_STEP = (0,)  # an absent `step` is 0


class Draw(NamedTuple):
    """``of(words, values, p, q)`` makes `each` numbers, 2 or 4, of a block's four words, and of
    what an operand has in their places, if there is one.
    """

    of: Callable
    each: int
    p: float
    q: float = 0


@cache
def word_by_word(f: Callable) -> Callable:
    """Four numbers, each ``f(word, value, p, q)``."""

    def draw(words, values, p, q):
        return (
            f(words[0], values[0], p, q),
            f(words[1], values[1], p, q),
            f(words[2], values[2], p, q),
            f(words[3], values[3], p, q),
        )

    return draw


def _two(x, i, step):
    return x[i], x[i + step]


def _four(x, i, step):
    return x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]


def _put_two(y, i, found):
    y[i] = found[0]
    y[i + 1] = found[1]


def _put_four(y, i, found):
    y[i] = found[0]
    y[i + 1] = found[1]
    y[i + 2] = found[2]
    y[i + 3] = found[3]


_AT, _PUT = {2: _two, 4: _four}, {2: _put_two, 4: _put_four}


@cache
def _on_cpu(draw: Callable, each: int, name: str) -> Callable:
    at, put = _AT[each], _PUT[each]

    def kernel(x, y, step, seed, size, p, q, lo, hi):
        for block in range(lo, min(hi, size // each)):
            i = each * block
            put(y, i, draw(philox(block, step[0], seed), at(x, i, 1), p, q))
        if hi > size // each:
            i = size - size % each
            words = philox(size // each, step[0], seed)
            for k in range(size % each):
                y[i + k] = draw(words, at(x, i + k, 0), p, q)[k]

    kernel.__name__ = name
    return kernel


@cache
def _on_gpu(draw: Callable, each: int, name: str) -> Callable:
    load, store, at = Intrinsic("load", each), Intrinsic("store", each), _AT[each]

    def kernel(x, y, step, seed, size, p, q):
        i = each * cuda.grid(1)
        if i < size:
            words = philox(cuda.grid(1), step[0], seed)
            if i + each <= size:
                store(y, i, draw(words, load(x, i), p, q))
            else:
                for k in range(size - i):
                    y[i + k] = draw(words, at(x, i + k, 0), p, q)[k]

    kernel.__name__ = name
    return kernel


def drawn(
    gpu: bool, name: str, draw: Draw, x: Arg, y: Arg, step: Arg | None, seed: int
) -> Launch | Grid:
    """The launch that draws y; x is the operand, or y where there is none."""
    blocks = -(-y.size // draw.each)
    args = (x, y, step or NO_STEP, seed, y.size, draw.p, draw.q)
    if gpu:
        kernel = _on_gpu(draw.of, draw.each, name)
        return Grid(kernel, *args, grid=-(-blocks // THREADS), block=THREADS)
    return Launch(_on_cpu(draw.of, draw.each, name), *args, units=blocks, grain=GRAIN)
