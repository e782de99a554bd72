"""Elements that go to places named by an index, in order, on CUDA.

Entry i of n sends `columns` elements of a source to a place of y. A stable sort of the entries by
their keys, the numbers of those places, brings together what meets in one. Then a thread takes a
piece of the sorted list, for one column: a run of equal keys that lies within the piece goes to y;
what it has of a run that goes on in a neighbouring piece becomes an entry of a list of its own,
which is shorter, and goes the same way. The cuts depend on sizes alone, and so do the bits of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.move.copying import merged
from opstep.kernels.move.cuda_copying import transposed
from opstep.kernels.pick.cuda_index import Index, located
from opstep.kernels.pick.cuda_keys import itself
from opstep.kernels.pick.cuda_ranking import Rows
from opstep.kernels.pick.cuda_sort import sorted_pairs
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.rules.axes import strides_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load4
from opstep.runtime.device.launch import Arg, Grid, Scratch

THREADS = 256
MOST = 1 << 30  # entries that are sorted at once
AHEAD = 8  # entries that a thread reads together
PIECES = (16, 64)  # entries of one at least, and at most
MANY = 1 << 20  # threads that are as good as more
ENOUGH = 1 << 17  # threads that fill a GPU
LARGE = 1 << 16  # elements from which on it is worth it to turn them round first
SHORT = 8  # indices of a column that one thread takes one after the other
LONG = 256  # those from which on sorting is worth it, however many columns there are


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
    return Walk(*zip(*merged(sizes, to, of), strict=True))


class Target(NamedTuple):
    """The places that entries go to. `sizes`: the axes of the entries; an entry's key is its place
    by `base` and what the indices add, below `keys`; key k begins at its place in y by `places`,
    and a column at that by `columns`; `of`: strides of the entries in the source.
    """

    sizes: tuple[int, ...]
    base: tuple[int, ...]
    indices: Sequence[Index]
    keys: int
    places: Walk
    columns: Walk
    of: tuple[int, ...]


def combined(
    combine: Callable, source: Arg | Scratch, y: Arg | Scratch, target: Target
) -> list[Grid] | None:
    """`source` combined into y, which is there already: ``y = combine(y, element)``, in the order
    of the entries. None where there are too many.
    """
    n, columns = prod(target.sizes), target.columns
    spread = 0 if target.places.rank == 1 else target.places.total
    if max(n, columns.total, spread) >= LIMIT:
        return None
    launches: list[Grid] = []
    entries = walk(target.sizes, target.of, target.of)
    for first in range(0, n, MOST):
        count = min(MOST, n - first)
        about = (target.indices, target.sizes, target.keys, count, first, target.base)
        found, keys = located(*about)
        in_order = columns.total == 1 and n == count and entries.of == (1,)
        bits, held = target.keys.bit_length(), source if in_order else None
        rows = Rows(keys, itself, keys.dtype, bits, 1, count, signed=False, held=held)
        sorting, keys, order = sorted_pairs(rows)
        launches += [*found, *sorting]
        to = (y, (-1, target.keys), target.places, columns)
        if in_order:  # elements travel with their keys, so they are read one after the other
            launches += runs(combine, order, keys, None, *to, walk((n,), (1,), (1,)))
        else:
            launches += runs(combine, source, keys, order, *to, entries, first)
    return launches


def runs(
    combine: Callable, source: Arg | Scratch, keys: Scratch, order: Scratch | None,
    y: Arg | Scratch, nowhere: tuple[int, int], places: Walk, columns: Walk, entries: Walk,
    first: int = 0, scale: Arg | Scratch | None = None, along: int = 0,
) -> Iterator[Grid]:  # fmt: skip
    """Launches that combine elements of equal keys, which are sorted, until no run of them lies in
    two pieces. Their entries stand in the source where `order` says, counted from `first`, or as
    the keys do; `scale`: what each is multiplied with, by its place in the source. A key whose bits
    of the mask are the other number of `nowhere` is dropped; see `Target` for the rest. With
    `along`, those bits are a place in a row of y, whose elements are so far apart, and the other
    ones the row's number, where `places` are of rows.
    """
    n, width = keys.size, columns.total
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
        ways = ("row" if along else way(places), way(entries))
        yield Grid(
            take_pieces(combine, y.dtype.numpy.type, *how, *ways),
            *(source, keys, order or keys, scale or keys, y, partial_keys, partials),
            *(n, length, pieces, *nowhere, width),
            *(columns.rank, columns.sizes, columns.to, columns.of),
            *(places.rank, places.sizes, places.to),
            *(first, entries.rank, entries.sizes, entries.of),
            *(entries.of[-1], along or places.to[-1], nowhere[0].bit_length()),
            grid=-(-pieces * width // THREADS),
            block=THREADS,
        )
        if pieces == 1:
            return
        source, keys, order, n, first, scaled = partials, partial_keys, None, 2 * pieces, 0, False
        columns = columns._replace(of=strides_of(columns.sizes))
        entries, whole = Walk((n,), (width,), (width,)), False  # some keys have no element


def scattered(
    combine: Callable, source: Arg | Scratch, index: Arg, y: Arg | Scratch, shape: Sequence[int],
    axis: int,
) -> list[Grid] | None:  # fmt: skip
    """`source`, of index's shape, combined into y, of `shape`, where index names the place along
    `axis`.
    """
    steps, inner = strides_of(shape), strides_of(index.shape)
    length, along = index.shape[axis], steps[axis]
    units = index.size // length
    if units >= LIMIT:
        return None
    rest = [k for k in range(len(shape)) if k != axis]
    if length <= SHORT or (units >= ENOUGH and length < LONG):
        columns = walk(*([of[k] for k in rest] for of in (index.shape, steps, inner)))
        about = (columns.rank, columns.sizes, columns.to, columns.of)
        args = (source, index, y, units, *about, length, inner[axis], shape[axis], along)
        grid = -(-units // THREADS)
        return [Grid(take_columns(combine), *args, grid=grid, block=THREADS)]
    one = walk((1,), (1,), (1,))
    own = Index(index, shape[axis], 1, inner)
    bits = shape[axis].bit_length()
    if units << bits < LIMIT // 2 and index.size < LIMIT // 2:
        base = dict(zip(rest, strides_of([index.shape[k] for k in rest]), strict=True))
        numbers = tuple(base.get(k, 0) << bits for k in range(len(shape)))
        found, keys = located([own], index.shape, shape[axis], index.size, 0, numbers, apart=True)
        along_axis = inner[axis]
        if along_axis > 1 and index.size >= LARGE:  # so that rows are read in order
            boxes = (index.size // (length * along_axis), length, along_axis)
            turned = [Scratch(a.dtype, index.size) for a in (keys, source)]
            found += [transposed(a, t, *boxes) for a, t in zip((keys, source), turned, strict=True)]
            (keys, source), along_axis = turned, 1
        of_rows = (bits, units, length, along_axis)
        rows = Rows(keys, itself, keys.dtype, *of_rows, signed=False, held=source)
        sorting, keys, values = sorted_pairs(rows)
        to = walk(*([of[k] for k in rest] for of in (index.shape, steps, steps)))
        nowhere, entries = ((1 << bits) - 1, shape[axis]), walk((index.size,), (1,), (1,))
        adding = runs(combine, values, keys, None, y, nowhere, to, one, entries, along=along)
        return [*found, *sorting, *adding]
    base = tuple(0 if k == axis else s for k, s in enumerate(steps))
    indices, whole = (own._replace(along=along),), prod(shape)
    target = Target(index.shape, base, indices, whole, walk((whole,), (1,), (1,)), one, inner)
    return combined(combine, source, y, target)


# --- kernels --------------------------------------------------------------------------------------


def in_line(i, row, sizes, steps, rank, step):
    return i * step


def in_box(i, row, sizes, steps, rank, step):
    return spot(i, sizes, steps, rank)


def in_row(i, row, sizes, steps, rank, step):
    return spot(row, sizes, steps, rank) + i * step


FOUND = {"line": in_line, "box": in_box, "row": in_row}


def way(places: Walk) -> str:
    """The way to the i-th of these places: along a line, or in a box."""
    return "line" if places.rank == 1 else "box"


@cache
def take_pieces(
    combine: Callable, kind: Any, picked: bool, side_by_side: bool, scaled: bool, ahead: bool,
    wide: bool, to_way: str, of_way: str,
) -> Callable:  # fmt: skip
    """A thread a column of a piece. A key that is inverted has no element of its own.

    `kind`: the type of an element; `picked`: elements stand where `order` says, else in the order
    of the keys; `side_by_side`: neighbouring threads have neighbouring columns, else pieces;
    `ahead`: y is read with the elements, which is worth it where most keys are different; `wide`:
    elements lie one after the other, and each key has one; `to_way`, `of_way`: how places in y and
    in the source are found, see `way`. For the others see `runs`.
    """
    stand_in_y, stand = FOUND[to_way], FOUND[of_way]

    def take_pieces(
        source, keys, order, scale, y, partial_keys, partials, n, length, pieces, mask, nowhere,
        width, rank, sizes, to, of, place_rank, place_sizes, place_to, first, depth, extents, steps,
        step, along, shift,
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
        own = of_place(np.int64(keys[lo]))
        lowest = own
        began = lo > 0 and of_place(np.int64(keys[lo - 1])) == own
        head = False
        held = False
        value = kind(0)
        there = kind(0)
        axes = (place_sizes, place_to, place_rank, along)
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
                    element = source[start + stand(place, 0, extents, steps, depth, step)]
                    if scaled:
                        element = element * scale[place]
                    elements[j] = element
            for j in range(AHEAD):  # y as it is, all at once: most keys may be different
                key = next_keys[j]
                olds[j] = kind(0)
                if ahead and key >= 0 and key & mask != nowhere:
                    olds[j] = y[into + stand_in_y(key & mask, key >> shift, *axes)]
            for j in range(AHEAD):
                if i + j < hi:
                    key = of_place(next_keys[j])
                    if key != own:
                        if held and began:
                            partials[slot * width + column] = value
                            head = True
                        elif held:
                            p = into + stand_in_y(own & mask, own >> shift, *axes)
                            y[p] = combine(there if ahead else y[p], value)
                        own = key
                        began = False
                        held = False
                    if next_keys[j] >= 0 and key & mask != nowhere:
                        value = kind(combine(value, elements[j])) if held else elements[j]
                        there = olds[j]
                        held = True
        tail = False
        if held and began:
            partials[slot * width + column] = value
            head = True
        elif held and hi < n and of_place(np.int64(keys[hi])) == own:
            partials[(slot + 1) * width + column] = value
            tail = True
        elif held:
            p = into + stand_in_y(own & mask, own >> shift, *axes)
            y[p] = combine(there if ahead else y[p], value)
        if column == 0:
            partial_keys[slot] = lowest if head else ~lowest
            partial_keys[slot + 1] = own if tail else ~own

    take_pieces.__name__ = f"combine_{combine.__name__}"
    return take_pieces


def hold(held, at, v):
    held[at] = v[0]
    held[at + 1] = v[1]
    held[at + 2] = v[2]
    held[at + 3] = v[3]


def of_place(key):
    """The number of the place that a key stands for."""
    return key if key >= 0 else ~key


@cache
def take_columns(combine: Callable) -> Callable:
    """A thread a column of the index, one element after the other."""

    def take_columns(
        source, index, y, units, rank, sizes, to, of, length, step, extent, along
    ):  # fmt: skip
        column = cuda.grid(1)
        if column >= units:
            return
        into, at = spot(column, sizes, to, rank), spot(column, sizes, of, rank)
        for _ in range(length):
            k = np.int64(index[at])
            k = k + extent if k < 0 else k
            if k >= 0 and k < extent:
                y[into + k * along] = combine(y[into + k * along], source[at])
            at += step

    take_columns.__name__ = f"scatter_{combine.__name__}"
    return take_columns
