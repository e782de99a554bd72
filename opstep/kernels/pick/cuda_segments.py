"""Elements that go to places named by an index, in order, on CUDA.

Entry i of n sends `columns` elements of a source to a place of y. A stable sort of the entries by
their keys, the numbers of those places, brings together what meets in one. Then a thread takes a
piece of the sorted list, for one column: a run of equal keys that lies within the piece goes to y;
what it has of a run that goes on in a neighbouring piece becomes an entry of a list of its own,
which is shorter, and goes the same way. The cuts depend on sizes alone, and so do the bits of sums.

A key with its sign bit set has no element: of an index that is out of range, with the last place's
number, so that no bit of a key is needed for it; or of a piece, where no run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pick.reach import joined, strides_of
from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load4
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import DType

THREADS = 256
AHEAD = 8  # entries that a thread reads together
PIECES = (16, 64)  # entries of one at least, and at most
MANY = 1 << 20  # threads that are as good as more


class Walk(NamedTuple):
    """Merged axes: their extents, the strides of each in y and in the source."""

    sizes: tuple[int, ...]
    to: tuple[int, ...]
    of: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return prod(self.sizes)


def walk(sizes: Sequence[int], to: Sequence[int], of: Sequence[int]) -> Walk:
    return Walk(*zip(*joined(sizes, to, of), strict=True))


def without_element(key: int, dtype: DType) -> int:
    """The key of that place which has no element."""
    return key + int(np.iinfo(dtype.numpy).min)


def runs(
    combine: Callable, source: Arg | Scratch, keys: Scratch, order: Scratch | None,
    y: Arg | Scratch, apart: int, columns: Walk, entries: Walk, first: int = 0,
    scale: Arg | Scratch | None = None,
) -> Iterator[Grid]:  # fmt: skip
    """Launches that combine elements of equal keys, which are sorted, into y, until no run of them
    lies in two pieces. Their entries stand in the source where `order` says, counted from `first`,
    or as the keys do; `scale`: what each is multiplied with, by its place in the source. The places
    of two keys that follow each other are `apart` in y, where each has `columns`.
    """
    n, width, highest = keys.size, columns.total, int(np.iinfo(keys.dtype.numpy).max)
    scaled, whole = scale is not None, True
    while True:
        least, most = PIECES
        length = n if n <= 2 * least else min(most, max(least, n * width // MANY // AHEAD * AHEAD))
        pieces = -(-n // length)
        partial_keys = Scratch(keys.dtype, 2 * pieces)
        partials = Scratch(y.dtype, 2 * pieces * width)
        side_by_side, picked = columns.of[-1] == 1, order is not None
        wide = whole and not (picked or scaled) and width == 1 and entries.of == (1,)
        how = (picked, side_by_side, scaled, width > 1, wide)
        yield Grid(
            take_pieces(combine, y.dtype.numpy.type, *how, entries.rank > 1),
            *(source, keys, order or keys, scale or keys, y, partial_keys, partials),
            *(n, length, pieces, highest, apart, width),
            *(columns.rank, columns.sizes, columns.to, columns.of),
            *(first, entries.rank, entries.sizes, entries.of, entries.of[-1]),
            grid=-(-pieces * width // THREADS),
            block=THREADS,
        )
        if pieces == 1:
            return
        source, keys, order, n, first, scaled = partials, partial_keys, None, 2 * pieces, 0, False
        columns = columns._replace(of=strides_of(columns.sizes))
        entries, whole = Walk((n,), (width,), (width,)), False  # some keys have no element


# --- kernels --------------------------------------------------------------------------------------


def in_line(i, sizes, steps, rank, step):
    return i * step


def in_box(i, sizes, steps, rank, step):
    return spot(i, sizes, steps, rank)


@cache
def take_pieces(
    combine: Callable, kind: Any, picked: bool, side_by_side: bool, scaled: bool, ahead: bool,
    wide: bool, box: bool,
) -> Callable:  # fmt: skip
    """A thread a column of a piece. `highest`: the largest key, without which one is its sign bit.

    `kind`: the type of an element; `picked`: elements stand where `order` says, else in the order
    of the keys; `side_by_side`: neighbouring threads have neighbouring columns, else pieces;
    `ahead`: y is read with the elements, which is worth it where most keys are different; `wide`:
    elements lie one after the other, and each key has one; `box`: entries have several axes in the
    source. For the others see `runs`.
    """
    stand = in_box if box else in_line

    def take_pieces(
        source, keys, order, scale, y, partial_keys, partials, n, length, pieces, highest, apart,
        width, rank, sizes, to, of, first, depth, extents, steps, step,
    ):  # fmt: skip
        t = cuda.grid(1)
        if t >= pieces * width:
            return
        if side_by_side:
            piece = div32(t, width)
            column = t - piece * width
        else:
            column = div32(t, pieces)
            piece = t - column * pieces
        into, start = spot(column, sizes, to, rank), spot(column, sizes, of, rank)
        lo, slot = piece * length, 2 * piece
        hi = min(lo + length, n)
        own = np.int64(keys[lo]) & highest
        lowest = own
        began = lo > 0 and np.int64(keys[lo - 1]) & highest == own
        head = False
        held = False
        value = kind(0)
        there = kind(0)
        next_keys = cuda.local.array(AHEAD, np.int64)
        elements = cuda.local.array(AHEAD, kind)
        olds = cuda.local.array(AHEAD, kind)
        for i in range(lo, hi, AHEAD):
            whole = wide and i % AHEAD == 0 and i + AHEAD <= hi
            if whole:
                for j in range(0, AHEAD, 4):
                    hold(next_keys, j, load4(keys, i + j))
                    hold(elements, j, load4(source, i + j))
            for j in range(AHEAD):
                if not whole:
                    next_keys[j] = keys[i + j] if i + j < hi else -1
            for j in range(AHEAD):
                if not whole:
                    elements[j] = kind(0)
                if next_keys[j] >= 0 and not whole:
                    place = first + np.int64(order[i + j]) if picked else i + j
                    element = source[start + stand(place, extents, steps, depth, step)]
                    if scaled:
                        element = element * scale[place]
                    elements[j] = element
            for j in range(AHEAD):  # y as it is, all at once: most keys may be different
                key = next_keys[j]
                olds[j] = kind(0)
                if ahead and key >= 0:
                    olds[j] = y[into + key * apart]
            for j in range(AHEAD):
                if i + j < hi:
                    key = next_keys[j] & highest
                    if key != own:
                        if held and began:
                            partials[slot * width + column] = value
                            head = True
                        elif held:
                            p = into + own * apart
                            y[p] = combine(there if ahead else y[p], value)
                        own = key
                        began = False
                        held = False
                    if next_keys[j] >= 0:
                        value = kind(combine(value, elements[j])) if held else elements[j]
                        there = olds[j]
                        held = True
        tail = False
        if held and began:
            partials[slot * width + column] = value
            head = True
        elif held and hi < n and np.int64(keys[hi]) & highest == own:
            partials[(slot + 1) * width + column] = value
            tail = True
        elif held:
            p = into + own * apart
            y[p] = combine(there if ahead else y[p], value)
        if column == 0:
            partial_keys[slot] = lowest if head else lowest - highest - 1
            partial_keys[slot + 1] = own if tail else own - highest - 1

    take_pieces.__name__ = f"combine_{combine.__name__}"
    return take_pieces


def hold(held, at, v):
    held[at] = v[0]
    held[at + 1] = v[1]
    held[at + 2] = v[2]
    held[at + 3] = v[3]
