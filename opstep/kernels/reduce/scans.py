"""Running folds along an axis: what they are, and the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from opstep.kernels.reduce.folds import Fold
from opstep.kernels.reduce.states import GET, PUT
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import DType

TILE = 256  # neighbouring sequences that are run side by side
WORK = 32768  # elements worth a lane of their own


class Running(NamedTuple):
    """A fold of which every state is wanted, as functions of scalars.

    A state is a number, or a pair of numbers as a tuple, in memory of the dtypes `state`.
    ``start()`` is that of nothing, ``load(v, other, place)`` that of one element, of which a second
    operand has `other`; ``combine(state, state)`` is associative. ``finish(v, other, before,
    after)`` makes the element's result, or its two results as a tuple, of the states before it and
    with it.
    """

    state: tuple[DType, ...]
    start: Callable
    load: Callable
    combine: Callable
    finish: Callable


@cache
def running(fold: Fold, exclusive: bool) -> Running:
    """Of a reduction's fold."""
    term, widen = fold.load, fold.widen

    def load(v, other, place):
        return widen(term(v, place))

    def finish(v, other, before, after):
        return before if exclusive else after

    return Running(fold.state, fold.start, load, fold.combine, finish)


def scan(
    run: Running,
    operands: Sequence[Arg | Scratch],
    results: Sequence[Arg | Scratch],
    shape: tuple[int, int, int],
    reverse: bool,
) -> list[Launch]:
    """`shape`: elements before the axis, along it, and behind it."""
    outer, n, inner = shape
    args = (operands[0], operands[-1], results[0], results[-1], n, int(reverse))
    if inner == 1:
        kernel = along_rows(run, len(results) > 1)
        return [Launch(kernel, *args, units=outer if n else 0, grain=max(1, WORK // max(1, n)))]
    tiles = [Scratch(dtype, TILE, per_lane=True) for dtype in run.state]
    kernel = along_columns(run, len(results) > 1)
    units = outer * -(-inner // TILE) if n else 0
    grain = max(1, WORK // max(1, n * min(inner, TILE)))
    tiled = (tiles[0], tiles[-1], tiles[0].size, tiles[-1].size, inner, TILE)
    return [Launch(kernel, *args, *tiled, units=units, grain=grain)]


@cache
def along_rows(run: Running, both: bool) -> Callable:
    """Units are sequences whose elements are neighbours."""
    _, start, load, combine, finish = run
    give = PUT[both]

    def scan_rows(x, z, y, w, n, reverse, lo, hi):
        step = -1 if reverse else 1
        for row in range(lo, hi):
            i = row * n + (n - 1 if reverse else 0)
            acc = start()
            for place in range(n):
                v, other, before = x[i], z[i], acc
                acc = combine(before, load(v, other, place))
                give(y, w, i, finish(v, other, before, acc))
                i += step

    return scan_rows


@cache
def along_columns(run: Running, both: bool) -> Callable:
    """Units are tiles of neighbouring sequences, whose own elements are `inner` apart."""
    _, start, load, combine, finish = run
    pair = len(run.state) > 1
    put, get, give = PUT[pair], GET[pair], PUT[both]

    def scan_columns(
        x, z, y, w, n, reverse, tiles, seconds, size, second_size, inner, width, lo, hi, lane
    ):
        acc = offset(tiles, lane * size)
        more = offset(seconds, lane * second_size)
        across = (inner + width - 1) // width
        for unit in range(lo, hi):
            outer = unit // across
            column = (unit - outer * across) * width
            wide = min(width, inner - column)
            for j in range(wide):
                put(acc, more, j, start())
            for place in range(n):
                row = n - 1 - place if reverse else place
                i = (outer * n + row) * inner + column
                for j in range(wide):
                    v, other, before = x[i + j], z[i + j], get(acc, more, j)
                    after = combine(before, load(v, other, place))
                    put(acc, more, j, after)
                    give(y, w, i + j, finish(v, other, before, after))

    return scan_columns
