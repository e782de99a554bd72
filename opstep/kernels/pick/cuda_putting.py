"""Elements put by index, on CUDA; see `kernels.pick.picking`. What meets in a place does so in
order, so bits do not depend on a race.

Columns that have indices of their own are taken by a thread each where they are short or many, or
by a warp each, which takes 32 entries a step: those of one place after each other. It holds the
column of y in shared memory if that pays. All else is sorted by places (`cuda_segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import gcd, prod
from typing import Any

import numpy as np

from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.cuda_keys import itself
from opstep.kernels.pick.cuda_picking import located
from opstep.kernels.pick.cuda_sort import Rows, sorted_pairs
from opstep.kernels.pick.reach import Reach, from_front, joined, putter
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.device.source import Intrinsic

THREADS = 256
LANES = 32
MOST = 1 << 30  # entries that are sorted at once
ENOUGH = 1 << 17  # columns that fill a GPU with a thread each
SHORT = 8  # indices of a column that one thread takes one after the other
LONG = 256  # those from which on a warp does better, however many columns there are
TILE = 8 * LANES  # entries of a column that a block reads together
PITCH = TILE + 4  # from one column's to the next, so that neighbours are in different banks
WARPS = 8  # columns of a block that holds none
ROOM = (40 << 10, 72 << 10)  # bytes of held columns: of rows, and of columns that are neighbours
PLAIN = 48 << 10  # bytes of shared memory that a block has without asking
RESIDENT = 1056  # warps that are at work at once, about
SORTED = (
    1 << 14,
    64,
)  # turns of a warp that take as long as a sort: at least, entries for one more
FAR = 8  # times as long does a turn take where y is not held


def put(
    combine: Callable, source: Arg | Scratch, y: Arg | Scratch, reach: Reach, of: Sequence[int],
    clear: list[Launch],
) -> Sequence[Launch | Grid] | None:  # fmt: skip
    """See `picking.put`; `clear` are launches that clear y. None where sizes are too large, or
    indices too many.
    """
    free = [k for k, step in enumerate(reach.steps) if step and reach.sizes[k] > 1]
    own = [k for k in free if any(i.steps[k] for i in reach.indices)]
    if len(reach.indices) == 1 and own:
        found = _columns(combine, source, y, reach, of, free, clear)
        if found is not None:
            return found
    found = _sorted(combine, source, y, reach, of, [k for k in free if k not in own])
    return found and [*clear, *found]


def _columns(
    combine: Callable, source: Arg | Scratch, y: Arg | Scratch, reach: Reach, of: Sequence[int],
    free: list[int], clear: list[Launch],
) -> Sequence[Launch | Grid] | None:  # fmt: skip
    """By a thread or a warp for each column; None where neither suits."""
    (i,) = reach.indices
    shared = [k for k in range(len(of)) if k not in free]
    (length, *near), *more = joined(*([v[k] for k in shared] for v in (reach.sizes, of, i.steps)))
    walk = joined(*([v[k] for k in free] for v in (reach.sizes, reach.steps, of, i.steps)))
    units = prod(d[0] for d in walk)
    if more or max(units, i.extent) >= LIMIT // 2:
        return None
    about = (units, len(walk), *(tuple(d[k] for d in walk) for k in range(4)), length, *near)
    args = (source, i.of, y, *about, i.start, i.extent, i.along, i.skipped)
    if length <= SHORT or (units >= ENOUGH and length < LONG):
        kernel = take_columns(combine)
        return [*clear, Grid(kernel, *args, grid=-(-units // THREADS), block=THREADS)]
    side = walk[-1][3] == 1 and walk[-1][0] >= WARPS  # neighbours have neighbouring indices
    rounds = y.stored is not y.dtype  # what is written, and reads it again
    warps, parts = _held(i.extent, y.dtype.itemsize, side)
    held = warps > 0 and (rounds or i.extent <= FAR * length)
    warps, parts = (warps, parts) if held else (WARPS, 1)
    turns = length * -(-units * parts // RESIDENT) * (1 if held else FAR)
    if (rounds and not held) or turns > SORTED[0] + units * length // SORTED[1]:
        return None
    whole = held and units * i.extent == y.size  # is written, so need not be cleared first
    bits = -(-i.extent.bit_length() // 2) * 2
    kernel = take_tiles(combine, y.dtype.numpy.type, warps, side, held, bool(clear) and whole, bits)
    share = -(-i.extent // parts)
    grid = -(-units // warps) * parts
    room = warps * _pitch(share) * y.dtype.itemsize if held else 0
    if room + warps * PITCH * (4 + y.dtype.itemsize) > PLAIN:
        room = max(room, PLAIN + 1)  # more than a block has without asking, so that it is asked for
    args = (*args, parts, share, _pitch(share))
    launch = Grid(kernel, *args, grid=grid, block=LANES * warps, shared=room)
    return [launch] if whole else [*clear, launch]


def _held(extent: int, itemsize: int, side: bool) -> tuple[int, int]:
    """(columns that a block can hold, 0 if it cannot, parts of a column that are blocks of their
    own): where columns lie side by side, long ones are cut, so that as many are read together as
    lie in a sector of memory.
    """
    for warps, parts in ((8, 1), (4, 1), *([(4, 2), (4, 4)] if side else []), (2, 1), (1, 1)):
        if warps * _pitch(-(-extent // parts)) * itemsize <= ROOM[side]:
            return warps, parts
    return 0, 1


def _pitch(count: int) -> int:
    """So many held elements, and up to the next column's, which is in other banks."""
    return count + (4 - count) % LANES


def _sorted(
    combine: Callable, source: Arg | Scratch, y: Arg | Scratch, reach: Reach, of: Sequence[int],
    across: list[int],
) -> list[Grid] | None:  # fmt: skip
    """All axes but those `across` are of entries, which are sorted by where they go."""
    axes = [k for k in range(len(of)) if k not in across]
    unit = gcd(*(i.along for i in reach.indices), *(reach.steps[k] for k in axes))
    columns = cuda_segments.walk(*([v[k] for k in across] for v in (reach.sizes, reach.steps, of)))
    entries = cuda_segments.walk(*([v[k] for k in axes] for v in (reach.sizes, of, of)))
    n = prod(reach.sizes[k] for k in axes)
    if max(n, columns.total) >= LIMIT:
        return None
    launches: list[Grid] = []
    for first in range(0, n, MOST):
        count = min(MOST, n - first)
        found = located(reach, axes, max(unit, 1), first, count)
        if found is None:
            return None
        launch, keys, bits = found
        in_order = columns.total == 1 and n == count and entries.of == (1,)
        held = source if in_order else None
        rows = Rows(keys, itself, keys.dtype, bits, 1, count, signed=False, held=held)
        sorting, keys, order = sorted_pairs(rows)
        launches += [launch, *sorting]
        to = (y, max(unit, 1), columns)
        if in_order:  # elements travel with their keys, so they are read one after the other
            adding = cuda_segments.runs(combine, order, keys, None, *to, entries)
        else:
            adding = cuda_segments.runs(combine, source, keys, order, *to, entries, first)
        launches += adding
    return launches


# --- kernels --------------------------------------------------------------------------------------


@cache
def take_columns(combine: Callable) -> Callable:
    """A thread a column, one element after the other."""
    put_one = putter(combine)

    def take_columns(
        source, index, y, units, rank, sizes, to, of, of_index, length, near, index_near, start, n,
        along, skipped,
    ):  # fmt: skip
        column = cuda.grid(1)
        if column >= units:
            return
        into, at = spot(column, sizes, to, rank), spot(column, sizes, of, rank)
        wanted = start + spot(column, sizes, of_index, rank)
        for j in range(length):
            k = index[wanted + j * index_near]
            put_one(offset(y, into), k, n, along, skipped, source[at + j * near])

    take_columns.__name__ = f"put_{combine.__name__}"
    return take_columns


@cache
def take_tiles(
    combine: Callable, kind: Any, warps: int, side: bool, held: bool, fresh: bool, bits: int
) -> Callable:
    """A warp a column. A block reads a tile of all its columns, neighbours in turn where they are
    `side` by side in memory, then each warp takes what is its own.

    `held`: the column of y stands in shared memory meanwhile, and begins at 0 if it is `fresh`; or
    its part of `share` places does, where each of `parts` has a block. The others drop its entries.
    `bits`: those of a place, and of the number of places, for one that does not exist.
    """
    rank_among = Intrinsic("rank_among", bits)
    turns, room = TILE // LANES, warps * PITCH

    def take_tiles(
        source, index, y, units, rank, sizes, to, of, of_index, length, near, index_near, start, n,
        along, skipped, parts, share, pitch,
    ):  # fmt: skip
        places = pointer_to(cuda.shared.array(room, np.int32))
        elements = pointer_to(cuda.shared.array(room, kind))
        columns = pointer_to(cuda.shared.array(0, kind))
        next_numbers = cuda.local.array(turns, np.int64)
        next_elements = cuda.local.array(turns, kind)
        lasts = cuda.local.array(turns, np.int32)
        lane, warp = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
        column, line = warp, lane
        if side:
            column, line = cuda.threadIdx.x % warps, cuda.threadIdx.x // warps
        block = np.int64(div32(cuda.blockIdx.x, parts))
        begin = (cuda.blockIdx.x - block * parts) * share
        end = min(begin + share, n)
        unit = block * warps + column
        there = unit < units
        unit = unit if there else np.int64(0)
        into, at = spot(unit, sizes, to, rank), spot(unit, sizes, of, rank)
        wanted = start + spot(unit, sizes, of_index, rank)
        mine = min(block * warps + warp, units - 1)
        own = warp * pitch if held else spot(mine, sizes, to, rank)
        if held and there:
            for k in range(begin + line, end, LANES):
                old = kind(0) if fresh else y[into + k * along]
                columns[column * pitch + k - begin] = old
        for base in range(-TILE, length, TILE):
            for j in range(turns):
                entry = base + TILE + line + j * LANES
                next_numbers[j] = n
                next_elements[j] = kind(0)
                if there and entry < length:  # what comes of it is looked at after the last tile
                    next_numbers[j] = index[wanted + entry * index_near]
                    next_elements[j] = source[at + entry * near]
            if base >= 0:
                for j in range(turns):
                    before, last = rank_among(places[warp * PITCH + j * LANES + lane])
                    lasts[j] = last if before == 0 else -1
                for j in range(turns):
                    first = warp * PITCH + j * LANES
                    k = np.int64(places[first + lane])
                    if lasts[j] >= 0 and k < n:  # the first one of a place takes all of it
                        p = own + k if held else own + k * along
                        value = columns[p] if held else y[p]
                        value = combine(value, elements[first + lane])
                        for other in range(lane + 1, lasts[j] + 1):
                            if places[first + other] == k:
                                value = combine(value, elements[first + other])
                        if held:
                            columns[p] = value
                        else:
                            y[p] = value
                    cuda.syncwarp()
            cuda.syncthreads()
            for j in range(turns):
                p = column * PITCH + line + j * LANES
                k = from_front(next_numbers[j], n)
                places[p] = k - begin if k >= begin and k < end and k != skipped else n
                elements[p] = next_elements[j]
            cuda.syncthreads()
        if held and there:
            for k in range(begin + line, end, LANES):
                y[into + k * along] = columns[column * pitch + k - begin]

    take_tiles.__name__ = f"take_{combine.__name__}"
    return take_tiles
