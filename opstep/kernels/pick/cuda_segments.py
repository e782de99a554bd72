"""Elements that go to places named by an index, in order: what goes to one place is brought
together by a stable sort, and one thread takes it up, one element after the other. Elements travel
with their keys, so they are read in order; of whole rows, their numbers do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.pick.cuda_keys import itself
from opstep.kernels.pick.cuda_ranking import Rows
from opstep.kernels.pick.cuda_sort import sorted_pairs
from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import i32

THREADS = 256
LONG = 256  # indices along an axis from which on sorting is worth it
MANY = 4096  # rows to add from which on it is
LIMIT = (1 << 31) - 1  # of places, the last of which is nowhere, and of elements


def scatter(
    combine: Callable,
    source: Arg,
    index: Arg,
    y: Arg,
    axis: int,
    steps: tuple[int, ...],
    into: Scratch | None = None,
) -> list[Grid] | None:
    """`source` combined into y, or working memory like it, which is there already; None where other
    kernels do better.

    `steps`: y's strides.
    """
    if index.shape[axis] < LONG or max(index.size, y.size) >= LIMIT:
        return None
    along, rest = steps[axis], tuple(0 if k == axis else s for k, s in enumerate(steps))
    walk = (index.shape, rest, index.rank, y.shape[axis], along)
    return _combined(combine, source, index, walk, y.size, into or y)


def put(combine: Callable, source: Arg | Scratch, positions: Scratch, y: Arg) -> list[Grid] | None:
    """Element by element of `source` combined into y at the positions in it; those below -y.size
    are nowhere. None where other kernels do better.
    """
    n = positions.size
    if n < LONG or max(n, y.size) >= LIMIT:
        return None
    return _combined(combine, source, positions, ((n,), (0,), 1, y.size, 1), y.size, y)


def _combined(
    combine: Callable, source: Arg | Scratch, index: Arg | Scratch, walk: tuple, places: int,
    into: Arg | Scratch,
) -> list[Grid]:  # fmt: skip
    n, targets = index.size, Scratch(i32, index.size)
    grid = -(-n // THREADS)
    locate = Grid(element_keys, index, *walk, targets, n, places, grid=grid, block=THREADS)
    launches, keys, held = sorted_pairs(_by_place(targets, places, source))
    take = combine_runs(combine)
    return [locate, *launches, Grid(take, into, keys, held, n, places, grid=grid, block=THREADS)]


def _by_place(targets: Scratch, places: int, held: Arg | Scratch | None = None) -> Rows:
    """Elements in the order of where they go: to one of the places, or to `places`, nowhere."""
    bits = places.bit_length()
    return Rows(targets, itself, i32, bits, 1, targets.size, signed=False, held=held)


def add_rows(gy: Arg, index: Arg, gx: Arg, skipped: int) -> list[Grid] | None:
    """gx [n, inner]: the rows of gy that index sends there, added in their order."""
    n, count = gx.shape[0], index.size
    inner = gx.size // n
    if count < MANY or max(count, n) >= LIMIT:
        return None
    targets = Scratch(i32, count)
    args = (index, targets, count, n, skipped)
    locate = Grid(row_keys, *args, grid=-(-count // THREADS), block=THREADS)
    launches, keys, places = sorted_pairs(_by_place(targets, n))
    threads = 32
    while threads < min(inner, THREADS):
        threads *= 2
    add = Grid(add_segments, gy, gx, keys, places, count, inner, grid=n, block=threads)
    return [locate, *launches, add]


# --- kernels --------------------------------------------------------------------------------------


def element_keys(index, sizes, strides, rank, extent, along, targets, n, nowhere):
    """Where in y each element goes."""
    i = cuda.grid(1)
    if i < n:
        k = np.int64(index[i])
        k = k + extent if k < 0 else k
        there = k >= 0 and k < extent
        targets[i] = spot(i, sizes, strides, rank) + k * along if there else nowhere


def row_keys(index, targets, n, extent, skipped):
    """Which row of gx each row goes to."""
    i = cuda.grid(1)
    if i < n:
        k = np.int64(index[i])
        k = k + extent if k < 0 else k
        targets[i] = k if k >= 0 and k < extent and k != skipped else extent


@cache
def combine_runs(combine: Callable) -> Callable:
    """The thread of the first element that goes to a place takes all of them."""

    def take(y, keys, held, n, nowhere):
        i = cuda.grid(1)
        if i >= n:
            return
        key = np.int64(keys[i])
        if key == nowhere or (i > 0 and keys[i - 1] == key):
            return
        value = y[key]
        while i < n and keys[i] == key:
            value = combine(value, held[i])
            i += 1
        y[key] = value

    take.__name__ = f"scatter_{combine.__name__}"
    return take


def add_segments(gy, gx, keys, places, n, inner):
    """A block a row of gx."""
    row = np.int64(cuda.blockIdx.x)
    lo, hi = np.int64(0), np.int64(n)
    while lo < hi:
        middle = (lo + hi) // 2
        if keys[middle] < row:
            lo = middle + 1
        else:
            hi = middle
    for column in range(cuda.threadIdx.x, inner, cuda.blockDim.x):
        value = 0.0
        i = lo
        while i < n and keys[i] == row:
            value += gy[np.int64(places[i]) * inner + column]
            i += 1
        gx[row * inner + column] = value
