"""How CUDA kernels of reductions combine accumulators: of vectors, of warps, of blocks.

An accumulator is a number, or a pair of numbers as a tuple; pairs lie side by side in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.reduce.reduction import Fold
from opstep.runtime.device.cuda.compiling.names import cuda, shuffle_xor
from opstep.runtime.ir.types import DType

THREADS = 256  # of a block

NOTHING, FIRST, POSITION = "nothing", "first", "position"


class GpuFold(NamedTuple):
    """A reduction as functions of scalars: see `reduction.Fold`.

    `parts`: numbers of an accumulator, 1 or 2, of dtype `accumulator` in memory. ``load(v, c)``
    makes a term of an element v; c is what `context` says: 0, the first element of the result, or
    where the element stands among those that are folded. ``merge(term, term)`` adds terms of a few
    elements, ``widen(term)`` makes an accumulator of what they give, and ``combine(acc, acc)`` adds
    those: so a sum is made in f64, without a conversion for each element.
    ``finish(acc, count, divisor)`` gives the result.
    """

    name: str
    accumulator: DType
    parts: int
    start: Callable
    load: Callable
    merge: Callable
    widen: Callable
    combine: Callable
    finish: Callable
    context: str = NOTHING


def as_it_is(acc):
    return acc


@cache
def as_on_cpu(fold: Fold) -> GpuFold:
    """The fold of a CPU kernel."""
    ended, of_element = fold.finish, fold.load

    def finish(acc, count, divisor):
        return ended(acc, count)

    def load(v, c):
        return of_element(v)

    start, _, combine = fold[2:5]
    return GpuFold(fold.name, fold.accumulator, 1, start, load, combine, as_it_is, combine, finish)


class Steps(NamedTuple):
    """What kernels call, made from a fold."""

    term: Callable[..., Any]  # (vector, c) -> the accumulator of its elements
    spread: Callable[..., Any]  # (accs, vector, cs) -> accs, one for each element
    spread_four: Callable[..., Any]  # (accs, four vectors, cs of each) -> accs
    starts: Callable[..., Any]  # () -> as many accumulators as a vector has elements
    put: Callable[..., Any]  # (memory, i, acc)
    get: Callable[..., Any]  # (memory, i) -> acc
    together: Callable[..., Any]  # (acc, lanes) -> what `lanes` neighbouring threads have
    finish: Callable[..., Any]  # (y, i, acc, count, divisor)


@cache
def steps_of(fold: GpuFold, width: int, raw: bool) -> Steps:
    """`width`: elements of a vector. `raw`: results are accumulators, for another launch."""
    put, get = (_put_one, _get_one) if fold.parts == 1 else (_put_two, _get_two)
    ended = fold.finish

    def finish(y, i, acc, count, divisor):
        y[i] = ended(acc, count, divisor)

    def finish_raw(y, i, acc, count, divisor):
        put(y, i, acc)

    return Steps(
        _term(fold, width),
        _spread(fold, width),
        _spread_four(fold, width),
        _starts(fold, width),
        put,
        get,
        _together(fold, put, get),
        finish_raw if raw else finish,
    )


def _put_one(memory, i, acc):
    memory[i] = acc


def _get_one(memory, i):
    return memory[i]


def _put_two(memory, i, acc):
    memory[2 * i] = acc[0]
    memory[2 * i + 1] = acc[1]


def _get_two(memory, i):
    return memory[2 * i], memory[2 * i + 1]


def _exchange_one(acc, mask):
    return shuffle_xor(acc, mask)


def _exchange_two(acc, mask):
    return shuffle_xor(acc[0], mask), shuffle_xor(acc[1], mask)


def _together(fold: GpuFold, put, get):
    combine = fold.combine
    exchange = _exchange_one if fold.parts == 1 else _exchange_two
    kind = getattr(np, fold.accumulator.numpy.name)
    places = THREADS // 32 * fold.parts

    def together(acc, lanes):
        """Valid in the first of the lanes, a power of 2; all threads of the block call it."""
        mask = min(lanes, 32) >> 1
        while mask > 0:
            acc = combine(acc, exchange(acc, mask))
            mask >>= 1
        if lanes > 32:
            shared = cuda.shared.array(places, kind)
            warp = cuda.threadIdx.x >> 5
            if cuda.threadIdx.x & 31 == 0:
                put(shared, warp, acc)
            cuda.syncthreads()
            first = (cuda.threadIdx.x & -lanes) >> 5
            if cuda.threadIdx.x & 31 == 0 and warp == first:
                for other in range(1, lanes >> 5):
                    acc = combine(acc, get(shared, warp + other))
        return acc

    return together


# --- over the elements of a vector ----------------------------------------------------------------


def _same(c, k):
    return c


def _moved(c, k):
    return c + k


def _term(fold: GpuFold, width: int):
    """Pairwise: short chains, small errors."""
    load, merge, widen = fold.load, fold.merge, fold.widen
    at = _moved if fold.context == POSITION else _same

    def one(v, c):
        return load(v[0], c)

    def two(v, c):
        return merge(load(v[0], c), load(v[1], at(c, 1)))

    def four(v, c):
        return merge(two(v[:2], c), two(v[2:], at(c, 2)))

    def eight(v, c):
        return merge(four(v[:4], c), four(v[4:], at(c, 4)))

    def sixteen(v, c):
        return merge(eight(v[:8], c), eight(v[8:], at(c, 8)))

    merged = {1: one, 2: two, 4: four, 8: eight, 16: sixteen}[width]

    def term(v, c):
        return widen(merged(v, c))

    return term


def _spread(fold: GpuFold, width: int):
    load, widen, combine = fold.load, fold.widen, fold.combine

    def one(a, v, c):
        return (combine(a[0], widen(load(v[0], c[0]))),)

    def two(a, v, c):
        return one(a[:1], v[:1], c[:1]) + one(a[1:], v[1:], c[1:])

    def four(a, v, c):
        return two(a[:2], v[:2], c[:2]) + two(a[2:], v[2:], c[2:])

    def eight(a, v, c):
        return four(a[:4], v[:4], c[:4]) + four(a[4:], v[4:], c[4:])

    return {1: one, 2: two, 4: four, 8: eight}.get(width, one)


def _spread_four(fold: GpuFold, width: int):
    load, merge, widen, combine = fold.load, fold.merge, fold.widen, fold.combine

    def column(a, v0, v1, v2, v3, c0, c1, c2, c3):
        low = merge(load(v0, c0), load(v1, c1))
        return combine(a, widen(merge(low, merge(load(v2, c2), load(v3, c3)))))

    def one(a, v, w, x, y, c, d, e, f):
        return (column(a[0], v[0], w[0], x[0], y[0], c[0], d[0], e[0], f[0]),)

    def two(a, v, w, x, y, c, d, e, f):
        low = one(a[:1], v[:1], w[:1], x[:1], y[:1], c[:1], d[:1], e[:1], f[:1])
        return low + one(a[1:], v[1:], w[1:], x[1:], y[1:], c[1:], d[1:], e[1:], f[1:])

    def four(a, v, w, x, y, c, d, e, f):
        low = two(a[:2], v[:2], w[:2], x[:2], y[:2], c[:2], d[:2], e[:2], f[:2])
        return low + two(a[2:], v[2:], w[2:], x[2:], y[2:], c[2:], d[2:], e[2:], f[2:])

    def eight(a, v, w, x, y, c, d, e, f):
        low = four(a[:4], v[:4], w[:4], x[:4], y[:4], c[:4], d[:4], e[:4], f[:4])
        return low + four(a[4:], v[4:], w[4:], x[4:], y[4:], c[4:], d[4:], e[4:], f[4:])

    return {1: one, 2: two, 4: four, 8: eight}.get(width, one)


def _starts(fold: GpuFold, width: int):
    start = fold.start

    def one():
        return (start(),)

    def two():
        return start(), start()

    def four():
        return start(), start(), start(), start()

    def eight():
        return start(), start(), start(), start(), start(), start(), start(), start()

    return {1: one, 2: two, 4: four, 8: eight}.get(width, one)


def power_of_two(number: int) -> int:
    """The one that is not below it."""
    return 1 << max(0, number - 1).bit_length()
