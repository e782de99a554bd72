"""Random numbers on CUDA: a thread makes those of one Philox block, side by side in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from opstep.kernels.random.philox import philox
from opstep.runtime.device.cuda.compiling.names import cuda, load4, store2, store4
from opstep.runtime.device.launch import Grid

THREADS = 256  # of a block


def random_grid(kernel: Callable, each: int, *args, size: int) -> Grid:
    """A thread for `each` elements of `size`."""
    blocks = -(-size // each)
    return Grid(kernel, *args, grid=-(-blocks // THREADS), block=THREADS)


def put_four(y, i, size, a, b, c, d):
    """Elements i to i + 4, those of them that are below `size`."""
    if i + 4 <= size:
        store4(y, i, (a, b, c, d))
    elif i < size:
        y[i] = a
        if i + 1 < size:
            y[i + 1] = b
        if i + 2 < size:
            y[i + 2] = c


def put_two(y, i, size, a, b):
    if i + 2 <= size:
        store2(y, i, (a, b))
    elif i < size:
        y[i] = a


@cache
def word_by_word(f: Callable, name: str) -> Callable:
    """(y, step, seed, size, p, q): y = f(word, p, q), a word an element."""

    def kernel(y, step, seed, size, p, q):
        block = cuda.grid(1)
        if 4 * block < size:
            a, b, c, d = philox(block, step[0], seed)
            put_four(y, 4 * block, size, f(a, p, q), f(b, p, q), f(c, p, q), f(d, p, q))

    kernel.__name__ = name
    return kernel


@cache
def by_fours(f: Callable, name: str) -> Callable:
    """(y, step, seed, size, p, q): y = f(four words, p, q), four numbers."""

    def kernel(y, step, seed, size, p, q):
        block = cuda.grid(1)
        if 4 * block < size:
            a, b, c, d = philox(block, step[0], seed)
            e, g, h, i = f(a, b, c, d, p, q)
            put_four(y, 4 * block, size, e, g, h, i)

    kernel.__name__ = name
    return kernel


@cache
def by_twos(f: Callable, name: str) -> Callable:
    """(y, step, seed, size, p, q): y = f(four words, p, q), two numbers."""

    def kernel(y, step, seed, size, p, q):
        block = cuda.grid(1)
        if 2 * block < size:
            a, b, c, d = philox(block, step[0], seed)
            e, g = f(a, b, c, d, p, q)
            put_two(y, 2 * block, size, e, g)

    kernel.__name__ = name
    return kernel


def drop(x, y, step, seed, size, limit, scale):
    i = 4 * cuda.grid(1)
    if i < size:
        a, b, c, d = philox(cuda.grid(1), step[0], seed)
        if i + 4 <= size:
            v = load4(x, i)
            e = v[0] * scale if a >= limit else 0.0
            g = v[1] * scale if b >= limit else 0.0
            h = v[2] * scale if c >= limit else 0.0
            k = v[3] * scale if d >= limit else 0.0
            store4(y, i, (e, g, h, k))
        else:
            y[i] = x[i] * scale if a >= limit else 0.0
            if i + 1 < size:
                y[i + 1] = x[i + 1] * scale if b >= limit else 0.0
            if i + 2 < size:
                y[i + 2] = x[i + 2] * scale if c >= limit else 0.0
