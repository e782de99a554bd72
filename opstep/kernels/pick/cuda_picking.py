"""Elements picked by index, on CUDA; see `kernels.pick.picking`. Offsets are computed from the
indices as elements are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from opstep.kernels.move.cuda_copying import reinterpreted, repeated
from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.reach import Index, Reach, joined, strides_of
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load2, store2
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Scratch
from opstep.runtime.ir.types import i32, i64

THREADS = 256  # of a block
TURN = 4  # words that a thread of a long row copies
EACH = 4  # elements that a thread picks, and entries that it locates
AGAIN = 8  # elements that it picks by one index
WIDE = 64  # elements after each other from which on that is worth it
OPERANDS = 4  # different tensors of indices that kernels take


def pick(x: Arg, y: Arg, reach: Reach, nothing: int) -> Grid | None:
    """y, whose elements stand in x at these places; `nothing` (the bits of an element) where there
    is none. None where sizes are too large, or indices too many.
    """
    indices, found = reach.indices, operands(reach.indices)
    dims = joined(reach.sizes, reach.steps, *(i.steps for i in indices))
    rows = y.size // dims[-1][0] if are_rows(dims) else y.size
    if max(rows, y.size // rows) >= LIMIT or x.stored is not x.dtype or found is None:
        return None
    tensors, which = found
    if rows < y.size:
        return _rows(x, y, indices, dims, tensors, which, nothing)
    word = CARRIERS[x.stored.itemsize]
    args = (reinterpreted(x, word), reinterpreted(y, word), repeated(nothing, word.itemsize))
    size = y.size // dims[0][0]
    if size >= WIDE and not any(dims[0][2:]):  # the same indices again and again
        (again, apart, *_), *dims = dims
        args = (*args, *tensors, size, again, apart, len(dims), *table(indices, dims))
        grid = -(-size * -(-again // AGAIN) // THREADS)
        return Grid(again_kernel(which), *args, grid=grid, block=THREADS)
    grid = -(-y.size // (THREADS * EACH))
    in_order, dims = ordered(dims)
    args = (*args, *tensors, y.size, 0, *table(indices, dims))
    kernel = elements_kernel(which, len(dims), in_order)
    return Grid(kernel, *args, grid=grid, block=THREADS)


def _rows(
    x: Arg, y: Arg, indices: Sequence[Index], dims: list, tensors: tuple, which: tuple[int, ...],
    nothing: int,
) -> Grid:  # fmt: skip
    """Rows of neighbours, in words as wide as they allow."""
    *outer, (inner, *_) = dims
    itemsize, group = x.stored.itemsize, word_of(dims, indices, x.stored.itemsize, 16)
    pair = group * itemsize == 16
    word = CARRIERS[8 if pair else group * itemsize]
    rows, count = prod(d[0] for d in outer), inner // group
    bits = min(THREADS.bit_length(), max(1, count // TURN).bit_length()) - 1
    each = count if count < THREADS * TURN else THREADS * TURN
    across = -(-count // each)
    args = (reinterpreted(x, word), reinterpreted(y, word), repeated(nothing, itemsize), *tensors)
    args = (*args, rows, len(outer), *table(indices, outer, group), count, each, across, bits)
    grid = across * -(-rows // (THREADS >> bits))
    return Grid(rows_kernel(pair, which), *args, grid=grid, block=THREADS)


def are_rows(dims: list) -> bool:
    """Whether neighbours are picked together, by one index."""
    return len(dims) > 1 and not any(dims[-1][2:]) and dims[-1][1] == 1


def ordered(dims: list) -> tuple[bool, list]:
    """Whether all indices stand one after the other, as entries do; axes, of x alone if so."""
    sizes, steps, *of = zip(*dims, strict=True)
    in_order = all(walk == strides_of(sizes) for walk in of)
    return in_order, joined(sizes, steps) if in_order else dims


def word_of(dims: list, indices: Sequence[Index], itemsize: int, most: int) -> int:
    """The most elements of rows that a word of so many bytes may have."""
    *outer, (inner, *_) = dims
    strides, group = [inner, *(d[1] for d in outer), *(i.along for i in indices)], 1
    while are_rows(dims) and group * itemsize < most and not any(s % (2 * group) for s in strides):
        group *= 2
    return group


def operands(indices: Sequence[Index]) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """(`OPERANDS` tensors, which of them each index reads); None where there are more."""
    distinct = list({id(i.of): i.of for i in indices}.values())
    if not 0 < len(distinct) <= OPERANDS:
        return None
    which = tuple(next(k for k, t in enumerate(distinct) if t is i.of) for i in indices)
    return (*distinct, *distinct[:1] * (OPERANDS - len(distinct))), which


def table(indices: Sequence[Index], dims: list, group: int = 1) -> tuple:
    """The table that `finder` takes of axes of (extent, step in x, step of each index): sizes,
    steps, and about each index; what is counted in x is counted in groups.
    """
    columns = list(zip(*dims, strict=True))
    steps = (*(s // group for s in columns[1]), *(s for of in columns[2:] for s in of))
    about = tuple(n for i in indices for n in (i.extent, i.along // group, i.start, i.skipped))
    return columns[0], steps, about


def located(
    reach: Reach, axes: Sequence[int], unit: int, first: int, count: int
) -> tuple[Grid, Scratch, int] | None:
    """(launch, keys, their bits) of the entries from `first` on of those along these axes of the
    reach: where each stands in y, in units of so many elements.
    """
    found = operands(reach.indices)
    if found is None:
        return None
    tensors, which = found
    dims = joined(*([v[k] for k in axes] for v in (reach.sizes, reach.steps)), *(
        [i.steps[k] for k in axes] for i in reach.indices
    ))  # fmt: skip
    most = [(reach.sizes[k] - 1) * reach.steps[k] for k in axes]
    most += [max(i.extent - 1, 0) * i.along for i in reach.indices]
    last = sum(most) // unit
    keys = Scratch(i32 if last < LIMIT // 2 else i64, count)
    nowhere = cuda_segments.without_element(last, keys.dtype)
    in_order, dims = ordered(dims)
    args = (tensors[0], keys, nowhere, *tensors, count, first, *table(reach.indices, dims, unit))
    kernel = elements_kernel(which, len(dims), in_order, place_itself)
    grid = -(-count // (THREADS * EACH))
    return Grid(kernel, *args, grid=grid, block=THREADS), keys, max(1, last.bit_length())


# --- kernels --------------------------------------------------------------------------------------


def first_of(a, b, c, d):
    return a


def second_of(a, b, c, d):
    return b


def third_of(a, b, c, d):
    return c


def fourth_of(a, b, c, d):
    return d


_TAKE = (first_of, second_of, third_of, fourth_of)


@cache
def reader(which: tuple[int, ...]) -> Callable:
    """Reads a number of each index, at these offsets, into `numbers` from `at` on."""
    if not which:

        def read_nothing(a, b, c, d, offsets, about, numbers, at):
            return

        return read_nothing

    before, take, m = reader(which[:-1]), _TAKE[which[-1]], len(which) - 1

    def read(a, b, c, d, offsets, about, numbers, at):
        before(a, b, c, d, offsets, about, numbers, at)
        numbers[at + m] = take(a, b, c, d)[offsets[m + 1] + about[4 * m + 2]]

    return read


@cache
def adder(count: int) -> Callable:
    """Adds to a place what these numbers say; below 0 where the place does not exist. No load waits
    for a condition.
    """

    def add(place, numbers, at, about):
        there = True
        for m in range(count):
            n, along, skipped = about[4 * m], about[4 * m + 1], about[4 * m + 3]
            k = numbers[at + m]
            k = k + n if k < 0 else k
            there = there & (k >= 0) & (k < n) & (k != skipped)
            place += k * along if there else 0
        return place if there else np.int64(-1)

    return add


@cache
def walker(walks: int) -> Callable:
    """The offsets of an entry: in x, and in each index."""

    def walk(entry, rank, sizes, steps, offsets):
        for m in range(walks):
            offsets[m] = 0
        for back in range(1, rank):
            axis = rank - back
            above = div32(entry, sizes[axis])
            for m in range(walks):
                offsets[m] += (entry - above * sizes[axis]) * steps[m * rank + axis]
            entry = above
        for m in range(walks):
            offsets[m] += entry * steps[m * rank]

    return walk


@cache
def finder(which: tuple[int, ...]) -> Callable:
    """The place of an entry in x; below 0 where it does not exist."""
    count, walks = len(which), len(which) + 1
    walk, read_numbers, add = walker(walks), reader(which), adder(count)

    def find(a, b, c, d, entry, rank, sizes, steps, about):
        offsets = cuda.local.array(walks, np.int64)
        numbers = cuda.local.array(count, np.int64)
        walk(entry, rank, sizes, steps, offsets)
        read_numbers(a, b, c, d, offsets, about, numbers, 0)
        return add(offsets[0], numbers, 0, about)

    return find


def element_at(x, place):
    return x[place]


def place_itself(x, place):
    return place


@cache
def elements_kernel(
    which: tuple[int, ...], rank: int, in_order: bool, read: Callable = element_at
) -> Callable:
    """A thread has `EACH` elements, a block apart: their indices are read together, then they. They
    are those of the entries from `start` on; `in_order`: so are all indices, and axes are of x.
    """
    count, walks, room = len(which), len(which) + 1, len(which) * EACH
    walk, read_numbers, add = walker(walks), reader(which), adder(count)

    def pick_elements(x, y, nothing, a, b, c, d, size, start, sizes, steps, about):
        first = np.int64(cuda.blockIdx.x) * (THREADS * EACH) + cuda.threadIdx.x
        offsets = cuda.local.array(walks, np.int64)
        numbers = cuda.local.array(room, np.int64)
        places = cuda.local.array(EACH, np.int64)
        found = cuda.local.array(EACH, np.int64)
        for j in range(EACH):
            entry = start + min(first + j * THREADS, size - 1)
            if in_order:
                for m in range(walks):
                    offsets[m] = entry
            else:
                walk(entry, rank, sizes, steps, offsets)
            places[j] = offsets[0]
            read_numbers(a, b, c, d, offsets, about, numbers, j * count)
        for j in range(EACH):
            place = spot(places[j], sizes, steps, rank) if in_order else places[j]
            places[j] = add(place, numbers, j * count, about)
        for j in range(EACH):
            found[j] = read(x, places[j]) if places[j] >= 0 else nothing
        for j in range(EACH):
            i = first + j * THREADS
            if i < size:
                y[i] = found[j]

    return pick_elements


@cache
def again_kernel(which: tuple[int, ...]) -> Callable:
    """As many elements, `apart` in x, for each of `size` entries: a thread has `AGAIN` of them."""
    find = finder(which)

    def pick_again(x, y, nothing, a, b, c, d, size, again, apart, rank, sizes, steps, about):
        unit = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        group = div32(unit, size)
        entry = unit - group * size
        first = group * AGAIN
        if first >= again:
            return
        place = find(a, b, c, d, entry, rank, sizes, steps, about)
        found = cuda.local.array(AGAIN, np.int64)
        for j in range(AGAIN):
            there = place >= 0 and first + j < again
            found[j] = x[place + (first + j) * apart] if there else nothing
        for j in range(AGAIN):
            if first + j < again:
                y[(first + j) * size + entry] = found[j]

    return pick_again


@cache
def rows_kernel(pair: bool, which: tuple[int, ...]) -> Callable:
    """`each` words of a row for a block of 2**bits threads side by side, one row below another."""

    def read_one(x, p):
        return x[p]

    def write_one(y, q, word):
        y[q] = word

    def read_two(x, p):
        return load2(x, 2 * p)

    def write_two(y, q, word):
        store2(y, 2 * q, word)

    def one_of(nothing):
        return nothing

    def two_of(nothing):
        return nothing, nothing

    read, write = (read_two, write_two) if pair else (read_one, write_one)
    none, find = two_of if pair else one_of, finder(which)

    def pick_rows(
        x, y, nothing, a, b, c, d, rows, rank, sizes, steps, about, count, each, across, bits
    ):
        block = div32(cuda.blockIdx.x, across)
        row = (block * THREADS + cuda.threadIdx.x) >> bits
        if row >= rows:
            return
        p = find(a, b, c, d, row, rank, sizes, steps, about)
        there = p >= 0
        q = row * count
        wide = 1 << bits
        j = (cuda.blockIdx.x - block * across) * each + (cuda.threadIdx.x & (wide - 1))
        end = min(count, (cuda.blockIdx.x - block * across + 1) * each)
        while there and j + 3 * wide < end:
            v0 = read(x, p + j)
            v1 = read(x, p + j + wide)
            v2 = read(x, p + j + 2 * wide)
            v3 = read(x, p + j + 3 * wide)
            write(y, q + j, v0)
            write(y, q + j + wide, v1)
            write(y, q + j + 2 * wide, v2)
            write(y, q + j + 3 * wide, v3)
            j += 4 * wide
        while j < end:
            write(y, q + j, read(x, p + j) if there else none(nothing))
            j += wide

    return pick_rows
