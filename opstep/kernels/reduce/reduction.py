"""The machinery of reductions: how axes group, the two kernels, and how a long reduction is cut.

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
from typing import NamedTuple

from opstep.kernels.pointwise.broadcast import locate
from opstep.kernels.reduce.folds import Fold, element, itself, result
from opstep.kernels.reduce.runs import RUN
from opstep.runtime.device.builtin import buffer_f64_512, offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.device.source import vectorised

ROW = 8192  # a longer run is cut into rows of this length
TILE = 512  # results that a column kernel accumulates side by side
WORK = 32768  # elements worth a lane of their own
BLOCKS = 256  # at most so many blocks for one result
PART = 512  # rows that are folded in order, where those of a column are more
FEW = 32  # results from which on their own number is parallelism enough


class Groups(NamedTuple):
    """What a kernel needs to know of shape and axes; strides in elements.

    Results = kept x n in column form (`columns`), else kept. Each folds `rows` runs of n elements
    (the last one `last`), or `rows` single elements n apart.
    """

    columns: bool
    kept_sizes: tuple[int, ...]
    kept_strides: tuple[int, ...]
    row_sizes: tuple[int, ...]
    row_strides: tuple[int, ...]
    n: int
    last: int

    @property
    def kept(self) -> int:
        return prod(self.kept_sizes)

    @property
    def rows(self) -> int:
        return prod(self.row_sizes)


def group(shape: Sequence[int], axes: Sequence[int], cut: bool = True) -> Groups:
    """Merges neighbouring axes of the same fate. `cut`: a long run becomes rows.

    >>> group((8, 3, 4, 5), (0, 2, 3))  # N and H*W are reduced, C is kept
    Groups(columns=False, kept_sizes=(3,), kept_strides=(20,), row_sizes=(8,), row_strides=(60,),
    n=20, last=20)
    """
    merged = merged_axes(shape, axes)
    n, _, reduced = merged.pop(0) if merged else (1, 1, True)
    kept = [(g[0], g[1]) for g in reversed(merged) if not g[2]]
    rows = [(g[0], g[1]) for g in reversed(merged) if g[2]]
    last = n
    if cut and reduced and not rows and n > ROW:
        rows, n, last = [(-(-n // ROW), ROW)], ROW, n - (-(-n // ROW) - 1) * ROW
    return Groups(
        not reduced,
        tuple(size for size, _ in kept),
        tuple(step for _, step in kept),
        tuple(size for size, _ in rows),
        tuple(step for _, step in rows),
        n,
        last,
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


FEW_TERMS = 8  # of a run: folded one by one


def _run(fold: Fold) -> Callable:
    """A function that folds n neighbouring elements."""
    load, widen, combine, together = fold.load, fold.widen, fold.combine, fold.together

    def run(x, n, acc):  # on its own, so that nothing around it keeps LLVM from vectorising
        for j in range(n):
            acc = combine(acc, widen(load(x[j], x[j], 0)))
        return acc

    if together is None:
        return run

    def in_vectors(x, n, acc):
        terms = buffer_f64_512()
        if n <= FEW_TERMS:
            for j in range(n):
                acc = combine(acc, widen(load(x[j], x[j], 0)))
        else:
            for first in range(0, n, RUN):
                count = min(RUN, n - first)
                for j in range(count):
                    terms[j] = widen(load(x[first + j], x[first], 0))
                acc = combine(acc, together(terms, count))
        return acc

    return vectorised(f32=in_vectors, f64=in_vectors)(run)


@cache
def rows_kernel(fold: Fold) -> Callable:
    """One unit folds one block of rows of one result."""
    start, finish, run = fold.start, fold.finish, _run(fold)

    def kernel(
        x, y, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        rows, per, blocks, n, last, count, lo, hi,
    ):  # fmt: skip
        for unit in range(lo, hi):
            i = unit if blocks == 1 else unit // blocks
            first = (unit - i * blocks) * per
            base = locate(i, kept_sizes, kept_strides, kept)
            acc = start()
            for r in range(first, min(first + per, rows)):
                p = base + locate(r, row_sizes, row_strides, axes)
                acc = run(offset(x, p), last if r == rows - 1 else n, acc)
            y[unit] = finish(acc, count, count)

    kernel.__name__ = fold.name
    return kernel


@cache
def columns_kernel(fold: Fold) -> Callable:
    """One unit folds one block of rows of one tile of neighbouring results: of each `together`
    rows, which fill the tile, what stands there; and these at the end.
    """
    start, finish = fold.start, fold.finish
    load, widen, combine = fold.load, fold.widen, fold.combine

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
            for r in range(first, end, together):
                p = base + locate(r, row_sizes, row_strides, axes)
                for j in range(min(together, end - r) * w):
                    acc[j] = combine(acc[j], widen(load(x[p + j], x[p + j], 0)))
            for j in range(w, together * w):
                acc[j % w] = combine(acc[j % w], acc[j])
            for j in range(w):
                y[block * n + column + j] = finish(acc[j], count, count)

    kernel.__name__ = fold.name
    return kernel


def fold(fold: Fold, x: Arg, y: Arg | Scratch, axes: Sequence[int], count: int = 0) -> list[Launch]:
    """Launches that reduce `x` over `axes` into `y`, row-major without them. `count` is handed to
    `finish`.
    """
    g = group(x.shape, axes)
    units = g.kept * (-(-g.n // TILE) if g.columns else 1)
    each = g.rows * (min(g.n, TILE) if g.columns else g.n)  # elements a unit folds
    per = g.rows
    if fold.in_order and g.columns and len(g.row_sizes) == 1:
        per = min(per, order_of(g.rows, g.n).part)
    elif units < FEW and units * each > 4 * WORK:
        wanted = min(BLOCKS, -(-units * each // WORK), g.rows)
        per = -(-g.rows // wanted)
    blocks = max(1, -(-g.rows // per)) if per else 1
    if blocks == 1:
        return [_launch(fold, g, x, y, g.rows, 1, count)]
    parts = Scratch(fold.state[0], g.kept * blocks * (g.n if g.columns else 1))
    first, second = fold._replace(finish=result), fold._replace(load=element, widen=itself)
    if g.columns:
        rest = Groups(True, (g.kept,), (blocks * g.n,), (blocks,), (g.n,), g.n, g.n)
    else:
        rest = Groups(False, (g.kept,), (blocks,), (), (), blocks, blocks)
    return [
        _launch(first, g, x, parts, per, blocks, count),
        _launch(second, rest, parts, y, rest.rows, 1, count, joins=True),
    ]


def _launch(
    fold: Fold, g: Groups, x, y, per: int, blocks: int, count: int, joins: bool = False
) -> Launch:
    """`joins`: what is folded are states."""
    about = (
        *(g.kept_sizes, g.kept_strides, len(g.kept_sizes)),
        *(g.row_sizes, g.row_strides, len(g.row_sizes)),
        *(g.rows, per, blocks, g.n),
    )
    units = g.kept * blocks * (-(-g.n // TILE) if g.columns else 1)
    grain = max(1, WORK // max(1, per * (min(TILE, g.n) if g.columns else g.n)))
    if not g.columns:
        return Launch(rows_kernel(fold), x, y, *about, g.last, count, units=units, grain=grain)
    apart = g.row_strides != (g.n,) or (joins and fold.in_order)  # the parts of a column
    together = 1 if apart else order_of(per, g.n).together
    args = (x, y, Scratch(fold.state[0], TILE, per_lane=True), *about, TILE, together, count)
    return Launch(columns_kernel(fold), *args, units=units, grain=grain)
