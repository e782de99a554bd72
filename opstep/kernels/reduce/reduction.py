"""The machinery of reductions: how axes group, the kernels, and how a long reduction is cut.

Axes are merged into groups that are kept and groups that are reduced. If the last group is reduced,
the kernel works by *rows*: runs of neighbouring elements that fold into one accumulator. If it is
kept, it works by *columns*: a tile of neighbouring results is accumulated side by side. Where there
are few results and many elements, a first launch folds fixed blocks and a second one folds what
they gave, so the order of the sum never depends on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

from opstep.kernels.pointwise.broadcast import locate
from opstep.kernels.reduce.folds import Fold, element, itself, result
from opstep.kernels.reduce.runs import RUN
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch

TILE = 512  # results that a column kernel accumulates side by side
WORK = 32768  # elements worth a lane of their own
BLOCKS = 256  # at most so many blocks for one result
PART = 512  # rows that are folded in order, where those of a column are more
LONG = 8192  # elements of a block of a row, where those of sums are `RUN`
FEW = 32  # results from which on their own number is parallelism enough


class Groups(NamedTuple):
    """What a kernel needs to know of shape and axes; strides in elements.

    Results = kept x n in column form (`columns`), else kept. Each folds `rows` runs of n elements
    or `rows` single elements n apart.
    """

    columns: bool
    kept_sizes: tuple[int, ...]
    kept_strides: tuple[int, ...]
    row_sizes: tuple[int, ...]
    row_strides: tuple[int, ...]
    n: int

    def about(self) -> tuple[tuple[int, ...] | int, ...]:
        """Sizes, strides and number of the axes kept, and of those reduced, for `locate`."""
        kept = (self.kept_sizes, self.kept_strides, len(self.kept_sizes))
        return (*kept, self.row_sizes, self.row_strides, len(self.row_sizes))

    @property
    def kept(self) -> int:
        return prod(self.kept_sizes)

    @property
    def rows(self) -> int:
        return prod(self.row_sizes)


def group(shape: Sequence[int], axes: Sequence[int]) -> Groups:
    """Merges neighbouring axes of the same fate.

    >>> group((8, 3, 4, 5), (0, 2, 3))  # N and H*W are reduced, C is kept
    Groups(columns=False, kept_sizes=(3,), kept_strides=(20,), row_sizes=(8,), row_strides=(60,),
    n=20)
    """
    merged = merged_axes(shape, axes)
    n, _, reduced = merged.pop(0) if merged else (1, 1, True)
    kept, rows = ([g[:2] for g in reversed(merged) if g[2] == folded] for folded in (False, True))
    return Groups(
        not reduced,
        tuple(size for size, _ in kept),
        tuple(step for _, step in kept),
        tuple(size for size, _ in rows),
        tuple(step for _, step in rows),
        n,
    )


def merged_axes(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int, bool]]:
    """(size, stride, whether it is reduced) of each group of neighbouring axes, the last first."""
    merged: list[tuple[int, int, bool]] = []
    stride = 1
    for axis in reversed(range(len(shape))):
        size, reduced = shape[axis], axis in axes
        if size != 1:
            if merged and merged[-1][2] == reduced:
                merged[-1] = (merged[-1][0] * size, *merged[-1][1:])
            else:
                merged.append((size, stride, reduced))
        stride *= size
    return merged


class Order(NamedTuple):
    """The order in which a column is folded: parts of so many rows, and of each part the rows k,
    k + together, ... before what these come to.
    """

    together: int
    part: int


def order_of(rows: int, n: int) -> Order:
    """Of n neighbouring columns of so many rows."""
    together = TILE // n if n <= TILE // 8 and rows >= 64 else 1
    return Order(together, PART * together)


@cache
def run_of(fold: Fold) -> Callable:
    """(pointer, n) -> the state of n neighbouring elements: a function of its own, so that nothing
    around it keeps LLVM from vectorising.
    """
    start, load, widen, combine = fold.start, fold.load, fold.widen, fold.combine
    together: Any = fold.together

    def run(x, n):
        acc = start()
        for j in range(n):
            acc = combine(acc, widen(load(x[j], 0)))
        return acc

    def in_runs(x, n):
        acc = start()
        for first in range(0, n, RUN):
            acc = combine(acc, widen(together(offset(x, first), min(RUN, n - first))))
        return acc

    return in_runs if together else run


@cache
def rows_kernel(fold: Fold) -> Callable:
    """Units are results: the runs of each, then what they come to."""
    start, combine, finish, run = fold.start, fold.combine, fold.finish, run_of(fold)

    def kernel(
        x, y, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes, rows, n, count, lo, hi
    ):
        for unit in range(lo, hi):
            base = locate(unit, kept_sizes, kept_strides, kept)
            acc = start()
            for r in range(rows):
                p = base + locate(r, row_sizes, row_strides, axes)
                acc = combine(acc, run(offset(x, p), n))
            y[unit] = finish(acc, count)

    kernel.__name__ = fold.name
    return kernel


@cache
def blocks_kernel(fold: Fold) -> Callable:
    """Units are the blocks of all runs."""
    run = run_of(fold)

    def kernel(
        x, parts, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        rows, n, blocks, length, lo, hi,
    ):  # fmt: skip
        for unit in range(lo, hi):
            r = unit // blocks
            i = r // rows
            start = (unit - r * blocks) * length
            p = locate(i, kept_sizes, kept_strides, kept) + start
            p += locate(r - i * rows, row_sizes, row_strides, axes)
            parts[unit] = run(offset(x, p), min(length, n - start))

    kernel.__name__ = f"{fold.name} of blocks"
    return kernel


@cache
def joining_kernel(fold: Fold) -> Callable:
    """Gives each result what `rows_kernel` would, from its blocks."""
    start, combine, finish = fold.start, fold.combine, fold.finish

    def kernel(parts, y, rows, blocks, count, lo, hi):
        for unit in range(lo, hi):
            acc = start()
            for r in range(unit * rows, (unit + 1) * rows):
                some = start()
                for k in range(r * blocks, (r + 1) * blocks):
                    some = combine(some, parts[k])
                acc = combine(acc, some)
            y[unit] = finish(acc, count)

    kernel.__name__ = fold.name
    return kernel


@cache
def columns_kernel(fold: Fold) -> Callable:
    """One unit folds one block of rows of one tile of neighbouring results: of each `together`
    rows, which fill the tile, what stands there; and these at the end. Four such pieces are taken
    in one go over the tile, in order.
    """
    start, finish = fold.start, fold.finish
    load, widen, combine = fold.load, fold.widen, fold.combine

    def joined(state, v):
        return combine(state, widen(load(v, 0)))

    def kernel(
        x, y, tiles, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        rows, per, blocks, n, width, together, count, lo, hi, lane,
    ):  # fmt: skip
        acc = offset(tiles, lane * width)
        across = (n + width - 1) // width
        for unit in range(lo, hi):
            block = unit // across
            column = (unit - block * across) * width
            i = block // blocks
            first = (block - i * blocks) * per
            end = min(first + per, rows)
            base = locate(i, kept_sizes, kept_strides, kept) + column
            w = min(width, n - column)
            for j in range(together * w):
                acc[j] = start()
            by_four = (end - first) // (4 * together) * 4 * together
            for r in range(first, first + by_four, 4 * together):
                p = base + locate(r, row_sizes, row_strides, axes)
                q = base + locate(r + together, row_sizes, row_strides, axes)
                s = base + locate(r + 2 * together, row_sizes, row_strides, axes)
                t = base + locate(r + 3 * together, row_sizes, row_strides, axes)
                for j in range(together * w):
                    two = joined(joined(acc[j], x[p + j]), x[q + j])
                    acc[j] = joined(joined(two, x[s + j]), x[t + j])
            for r in range(first + by_four, end, together):
                p = base + locate(r, row_sizes, row_strides, axes)
                for j in range(min(together, end - r) * w):
                    acc[j] = joined(acc[j], x[p + j])
            for j in range(w, together * w):
                acc[j % w] = combine(acc[j % w], acc[j])
            for j in range(w):
                y[block * n + column + j] = finish(acc[j], count)

    kernel.__name__ = fold.name
    return kernel


def fold(fold: Fold, x: Arg, y: Arg, axes: Sequence[int], count: int = 0) -> list[Launch]:
    """Launches that reduce `x` over `axes` into `y`, row-major without them. `count` is handed to
    `finish`.
    """
    g = group(x.shape, axes)
    return (_columns if g.columns else _rows)(fold, g, x, y, count)


def _rows(fold: Fold, g: Groups, x: Arg, y: Arg, count: int) -> list[Launch]:
    """Few long rows are shared among threads block by block."""
    each = g.rows * g.n
    about = (*g.about(), g.rows, g.n)
    if g.kept >= FEW or g.kept * each <= 4 * WORK:
        grain = max(1, WORK // max(1, each))
        return [Launch(rows_kernel(fold), x, y, *about, count, units=g.kept, grain=grain)]
    length = RUN if fold.in_order else LONG
    blocks = -(-g.n // length)
    units = g.kept * g.rows * blocks
    parts = Scratch(fold.state[0], units)
    first = Launch(
        blocks_kernel(fold), x, parts, *about, blocks, length, units=units, grain=WORK // length
    )
    return [first, Launch(joining_kernel(fold), parts, y, g.rows, blocks, count, units=g.kept)]


def _columns(fold: Fold, g: Groups, x: Arg, y: Arg, count: int) -> list[Launch]:
    units = g.kept * -(-g.n // TILE)
    each = g.rows * min(g.n, TILE)  # elements a unit folds
    per = g.rows
    if fold.in_order and len(g.row_sizes) == 1:
        per = min(per, order_of(g.rows, g.n).part)
    elif units < FEW and units * each > 4 * WORK:
        wanted = min(BLOCKS, -(-units * each // WORK), g.rows)
        per = -(-g.rows // wanted)
    blocks = max(1, -(-g.rows // per)) if per else 1
    if blocks == 1:
        return [_launch(fold, g, x, y, g.rows, 1, count)]
    parts = Scratch(fold.state[0], g.kept * blocks * g.n)
    first, second = fold._replace(finish=result), fold._replace(load=element, widen=itself)
    rest = Groups(True, (g.kept,), (blocks * g.n,), (blocks,), (g.n,), g.n)
    return [
        _launch(first, g, x, parts, per, blocks, count),
        _launch(second, rest, parts, y, blocks, 1, count, joins=True),
    ]


def _launch(
    fold: Fold, g: Groups, x, y, per: int, blocks: int, count: int, joins: bool = False
) -> Launch:
    """Of columns. `joins`: what is folded are states."""
    apart = g.row_strides != (g.n,) or (joins and fold.in_order)  # the parts of a column
    together = 1 if apart else order_of(per, g.n).together
    about = (*g.about(), g.rows, per, blocks, g.n, TILE, together, count)
    args = (x, y, Scratch(fold.state[0], TILE, per_lane=True), *about)
    units = g.kept * blocks * -(-g.n // TILE)
    grain = max(1, WORK // max(1, per * min(TILE, g.n)))
    return Launch(columns_kernel(fold), *args, units=units, grain=grain)
