"""How CUDA kernels of reductions combine accumulators: of vectors, of warps, of blocks.

An accumulator is a number, or a pair of numbers as a tuple; pairs lie side by side in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.reduction import Fold
from opstep.runtime.device.cuda.names import cuda, shuffle_xor
from opstep.runtime.ir.types import DType

THREADS = 256  # of a block

NOTHING, FIRST, POSITION = "nothing", "first", "position"


class GpuFold(NamedTuple):
    """A reduction as functions of scalars: see `reduction.Fold`.

    `parts`: numbers of an accumulator, 1 or 2, of dtype `accumulator` in memory. ``load(v, c)``
    makes a term of an element v, of the accumulator's kind; c is what `given` says: 0, the first
    element of the result, or where the element stands among those that are folded.
    ``finish(acc, count, divisor)`` gives the result.
    """

    name: str
    accumulator: DType
    parts: int
    start: Callable
    load: Callable
    combine: Callable
    finish: Callable
    given: str = NOTHING


@cache
def as_on_cpu(fold: Fold) -> GpuFold:
    """The fold of a CPU kernel that has no centre."""
    ended = fold.finish

    def finish(acc, count, divisor):
        return ended(acc, 0.0, count)

    return GpuFold(fold.name, fold.accumulator, 1, *fold[2:5], finish)


class Steps(NamedTuple):
    """What kernels call, made from a fold."""

    term: Callable[..., Any]  # (vector, c) -> the term of its elements
    spread: Callable[..., Any]  # (accs, vector, cs) -> accs, one for each element
    begun: Callable[..., Any]  # () -> as many accumulators as a vector has elements
    put: Callable[..., Any]  # (memory, i, acc)
    take: Callable[..., Any]  # (memory, i) -> acc
    together: Callable[..., Any]  # (acc, lanes) -> what `lanes` neighbouring threads have
    finish: Callable[..., Any]  # (y, i, acc, count, divisor)


@cache
def steps_of(fold: GpuFold, width: int, raw: bool) -> Steps:
    """`width`: elements of a vector. `raw`: results are accumulators, for another launch."""
    put, take = (_put_one, _take_one) if fold.parts == 1 else (_put_two, _take_two)
    ended = fold.finish

    def finish(y, i, acc, count, divisor):
        y[i] = ended(acc, count, divisor)

    def finish_raw(y, i, acc, count, divisor):
        put(y, i, acc)

    return Steps(
        _term(fold, width),
        _spread(fold, width),
        _begun(fold, width),
        put,
        take,
        _together(fold, put, take),
        finish_raw if raw else finish,
    )


def _put_one(memory, i, acc):
    memory[i] = acc


def _take_one(memory, i):
    return memory[i]


def _put_two(memory, i, acc):
    memory[2 * i] = acc[0]
    memory[2 * i + 1] = acc[1]


def _take_two(memory, i):
    return memory[2 * i], memory[2 * i + 1]


def _exchange_one(acc, mask):
    return shuffle_xor(acc, mask)


def _exchange_two(acc, mask):
    return shuffle_xor(acc[0], mask), shuffle_xor(acc[1], mask)


def _together(fold: GpuFold, put, take):
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
                    acc = combine(acc, take(shared, warp + other))
        return acc

    return together


# --- over the elements of a vector ----------------------------------------------------------------


def _same(c, k):
    return c


def _moved(c, k):
    return c + k


def _term(fold: GpuFold, width: int):
    """Pairwise: short chains, small errors."""
    load, combine = fold.load, fold.combine
    at = _moved if fold.given == POSITION else _same

    def one(v, c):
        return load(v[0], c)

    def two(v, c):
        return combine(load(v[0], c), load(v[1], at(c, 1)))

    def four(v, c):
        first = combine(load(v[0], c), load(v[1], at(c, 1)))
        return combine(first, combine(load(v[2], at(c, 2)), load(v[3], at(c, 3))))

    def eight(v, c):
        low = four((v[0], v[1], v[2], v[3]), c)
        return combine(low, four((v[4], v[5], v[6], v[7]), at(c, 4)))

    def sixteen(v, c):
        low = eight((v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]), c)
        return combine(low, eight((v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]), at(c, 8)))

    return {1: one, 2: two, 4: four, 8: eight, 16: sixteen}[width]


def _spread(fold: GpuFold, width: int):
    load, combine = fold.load, fold.combine

    def one(a, v, c):
        return (combine(a[0], load(v[0], c[0])),)

    def two(a, v, c):
        return combine(a[0], load(v[0], c[0])), combine(a[1], load(v[1], c[1]))

    def four(a, v, c):
        return (
            combine(a[0], load(v[0], c[0])),
            combine(a[1], load(v[1], c[1])),
            combine(a[2], load(v[2], c[2])),
            combine(a[3], load(v[3], c[3])),
        )

    def eight(a, v, c):
        low = four(a[:4], v[:4], c[:4])
        high = four(a[4:], v[4:], c[4:])
        return low + high

    return {1: one, 2: two, 4: four, 8: eight}.get(width, one)


def _begun(fold: GpuFold, width: int):
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
