"""Elements that go to places named by an index, in order: what goes to one place is brought
together by a stable sort, and one thread takes it up, one element after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.pick.cuda_sort import CHUNK, network, sorted_pairs
from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Arg, Grid, Scratch

THREADS = 256
LONG = 256  # indices along an axis from which on sorting is worth it
MANY = 4096  # rows to add from which on it is
LIMIT = 1 << 31  # of places and of elements
_NOWHERE = 0x7FFFFFFFFFFFFFFF


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
    args = (index, index.shape, rest, index.rank, y.shape[axis], along)
    launches, keys, places = sorted_pairs(element_keys, args, 1, index.size, 1)
    args = (source, into or y, keys, places, index.size)
    grid = -(-index.size // THREADS)
    return [*launches, Grid(combine_runs(combine), *args, grid=grid, block=THREADS)]


def put(combine: Callable, source: Arg | Scratch, positions: Scratch, y: Arg) -> list[Grid] | None:
    """Element by element of `source` combined into y at the positions in it; those below -y.size
    are nowhere. None where other kernels do better.
    """
    n = positions.size
    if n < LONG or max(n, y.size) >= LIMIT:
        return None
    launches, keys, places = sorted_pairs(
        element_keys, (positions, (n,), (0,), 1, y.size, 1), 1, n, 1
    )
    args = (source, y, keys, places, n)
    return [*launches, Grid(combine_runs(combine), *args, grid=-(-n // THREADS), block=THREADS)]


def add_rows(gy: Arg, index: Arg, gx: Arg, skipped: int) -> list[Grid] | None:
    """gx [n, inner]: the rows of gy that index sends there, added in their order."""
    n = gx.shape[0]
    inner = gx.size // n
    if index.size < MANY or max(index.size, n) >= LIMIT:
        return None
    launches, keys, places = sorted_pairs(row_keys, (index, n, skipped), 1, index.size, 1)
    threads = 32
    while threads < min(inner, THREADS):
        threads *= 2
    args = (gy, gx, keys, places, index.size, inner)
    return [*launches, Grid(add_segments, *args, grid=n, block=threads)]


# --- kernels --------------------------------------------------------------------------------------


def write_chunk(keys, places, into_keys, into_places, n):
    """Sorts a chunk and writes what there is of it."""
    order_chunk(keys, places)
    chunk = np.int64(cuda.blockIdx.x) * CHUNK
    for i in range(cuda.threadIdx.x, min(CHUNK, n - chunk), THREADS):
        into_keys[chunk + i] = keys[i]
        into_places[chunk + i] = places[i]


order_chunk = network(CHUNK)


def element_keys(
    index, sizes, strides, rank, extent, along, into_keys, into_places, n, inner, tiles
):  # fmt: skip
    """Where in y each element goes."""
    keys = cuda.shared.array(CHUNK, np.int64)
    places = cuda.shared.array(CHUNK, np.int32)
    chunk = np.int64(cuda.blockIdx.x) * CHUNK
    for i in range(cuda.threadIdx.x, CHUNK, THREADS):
        key = np.int64(_NOWHERE)
        if chunk + i < n:
            k = np.int64(index[chunk + i])
            k = k + extent if k < 0 else k
            if k >= 0 and k < extent:
                key = spot(chunk + i, sizes, strides, rank) + k * along
        keys[i] = key
        places[i] = chunk + i
    write_chunk(keys, places, into_keys, into_places, n)


def row_keys(index, extent, skipped, into_keys, into_places, n, inner, tiles):
    """Which row of gx each row goes to."""
    keys = cuda.shared.array(CHUNK, np.int64)
    places = cuda.shared.array(CHUNK, np.int32)
    chunk = np.int64(cuda.blockIdx.x) * CHUNK
    for i in range(cuda.threadIdx.x, CHUNK, THREADS):
        key = np.int64(_NOWHERE)
        if chunk + i < n:
            k = np.int64(index[chunk + i])
            k = k + extent if k < 0 else k
            if k >= 0 and k < extent and k != skipped:
                key = k
        keys[i] = key
        places[i] = chunk + i
    write_chunk(keys, places, into_keys, into_places, n)


@cache
def combine_runs(combine: Callable) -> Callable:
    """The thread of the first element that goes to a place takes all of them."""

    def take(source, y, keys, places, n):
        i = cuda.grid(1)
        if i >= n:
            return
        key = keys[i]
        if key == _NOWHERE or (i > 0 and keys[i - 1] == key):
            return
        value = y[key]
        while i < n and keys[i] == key:
            value = combine(value, source[np.int64(places[i])])
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
