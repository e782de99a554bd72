"""Running folds along an axis on CUDA.

Where the axis is the last, a block takes a row, some thousand elements at a time, a few neighbours
a thread; otherwise a thread takes a sequence, and neighbours are read together. Where there are too
few rows or sequences to fill a GPU, each is cut into parts: a first launch folds them, a second one
runs over those folds, and the third one starts each part from what comes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.reduce.cuda_neighbours import GATHERED
from opstep.kernels.reduce.reduction import Fold
from opstep.runtime.device.cuda.compiling.names import cuda, shuffle_up
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import f64, i64

LANES = 32
MOST_THREADS = 256
BLOCKS = 512  # about as many keep a GPU busy
MOST_PARTS = 1024
LEAST = 2048  # elements of a part


class Way(NamedTuple):
    """How rows are scanned: `vectors` of `width` elements a thread, `threads` of a block."""

    width: int
    vectors: int
    threads: int

    @property
    def chunk(self) -> int:
        return self.width * self.vectors * self.threads


def scan(
    fold: Fold, x: Arg, y: Arg, shape: tuple[int, int, int], exclusive: bool, reverse: bool
) -> list[Grid]:
    """`shape`: elements before the axis, along it, and behind it."""
    outer, n, inner = shape
    functions = (fold.start, fold.load, fold.combine, y.dtype.is_float)
    kind = f64 if y.dtype.is_float else i64
    sequences = outer * inner
    if inner == 1:
        way = _way(n, max(x.stored.itemsize, y.stored.itemsize))
        parts = min(-(-BLOCKS // sequences), -(-n // max(LEAST, way.chunk)), MOST_PARTS)
        span = -(-n // (parts * way.chunk)) * way.chunk
        kernels = row_kernels(*functions, way)
        block, grid = way.threads, sequences * parts
    else:
        parts = min(-(-BLOCKS * MOST_THREADS // sequences), -(-n // LANES), MOST_PARTS)
        span = -(-n // parts)
        kernels = column_kernels(*functions)
        block, grid = MOST_THREADS, -(-sequences * parts // MOST_THREADS)
    folding, scanning = kernels
    partials = Scratch(kind, parts * sequences)
    args = (n, inner, sequences, parts, span)
    last = Grid(
        *(scanning, x, y, partials, *args, int(exclusive), int(reverse)), grid=grid, block=block
    )
    if parts == 1:
        return [last]
    first = Grid(folding, x, partials, *args, int(reverse), grid=grid, block=block)
    middle = part_scanner(*functions)
    threads = -(-sequences // LANES)
    return [first, Grid(middle, partials, sequences, parts, grid=threads, block=LANES), last]


def _way(n: int, itemsize: int) -> Way:
    width = gcd(n, max(1, 16 // itemsize))
    vectors = 4 if n >= 4 * width * LANES else 2 if n >= 2 * width * LANES else 1
    threads = LANES
    while threads < MOST_THREADS and threads * width * vectors < n:
        threads *= 2
    return Way(width, vectors, threads)


@cache
def part_scanner(start: Callable, load: Callable, combine: Callable, floating: bool) -> Callable:
    """What comes before each part, in the place of its fold."""

    def scan_parts(partials, sequences, parts):
        sequence = cuda.grid(1)
        if sequence < sequences:
            acc = start()
            for part in range(parts):
                i = part * sequences + sequence
                own = partials[i]
                partials[i] = acc
                acc = combine(acc, own)

    return scan_parts


# --- rows -----------------------------------------------------------------------------------------


@cache
def row_kernels(
    start: Callable, load: Callable, combine: Callable, floating: bool, way: Way
) -> tuple[Callable, Callable]:
    """(folds of parts, the scan)."""
    width, vectors, threads = way
    warps, held, chunk = threads // LANES, width * vectors, way.chunk
    kind: Any = np.float64 if floating else np.int64
    vector_at, store, gathered = (
        Intrinsic("load", width),
        Intrinsic("store", width),
        GATHERED[width],
    )

    def locate(row, p, n, reverse):
        """Where the vector stands that starts at place p of the sequence."""
        return row * n + (n - p - width if reverse else p)

    def fetch(x, row, p, end, n, reverse, values):
        for r in range(vectors):
            if p + r * width < end:
                vector = vector_at(x, locate(row, p + r * width, n, reverse))
                for j in range(width):
                    k = r * width + (width - 1 - j if reverse else j)
                    values[k] = load(vector[j], 0.0)
            else:
                for j in range(width):
                    values[r * width + j] = start()

    def inclusive_scan(own, lane):
        """The fold of the warp's threads up to this one."""
        step = 1
        while step < LANES:
            other = shuffle_up(own, step)
            if lane >= step:
                own = combine(other, own)
            step *= 2
        return own

    def warps_before(own, lane, acc):
        """(acc and the warps before this one, acc and all of them)."""
        ends = cuda.shared.array(warps, kind)
        warp = cuda.threadIdx.x // LANES
        cuda.syncthreads()
        if lane == LANES - 1:
            ends[warp] = own
        cuda.syncthreads()
        before = acc
        for w in range(warps):
            if w == warp:
                before = acc
            acc = combine(acc, ends[w])
        return before, acc

    def fold_rows(x, partials, n, inner, sequences, parts, span, reverse):
        row = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - row * parts
        thread = np.int64(cuda.threadIdx.x)
        lane = thread % LANES
        values = cuda.local.array(held, kind)
        total = start()
        end = min((part + 1) * span, n)
        for base in range(part * span, end, chunk):
            fetch(x, row, base + thread * held, end, n, reverse, values)
            own = values[0]
            for k in range(1, held):
                own = combine(own, values[k])
            _, total = warps_before(inclusive_scan(own, lane), lane, total)
        if thread == 0:
            partials[part * sequences + row] = total

    def scan_rows(x, y, partials, n, inner, sequences, parts, span, exclusive, reverse):
        row = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - row * parts
        thread = np.int64(cuda.threadIdx.x)
        lane = thread % LANES
        values = cuda.local.array(held, kind)
        results = cuda.local.array(width, kind)
        acc = partials[part * sequences + row] if parts > 1 else start()
        end = min((part + 1) * span, n)
        for base in range(part * span, end, chunk):
            p = base + thread * held
            fetch(x, row, p, end, n, reverse, values)
            own = values[0]
            for k in range(1, held):
                own = combine(own, values[k])
            own = inclusive_scan(own, lane)
            here, acc = warps_before(own, lane, acc)
            neighbour = shuffle_up(own, 1)
            here = combine(here, neighbour) if lane > 0 else here
            for r in range(vectors):
                for j in range(width):
                    before = here
                    here = combine(here, values[r * width + j])
                    results[width - 1 - j if reverse else j] = before if exclusive else here
                if p + r * width < end:
                    store(y, locate(row, p + r * width, n, reverse), gathered(results, 0))

    return fold_rows, scan_rows


# --- sequences side by side -----------------------------------------------------------------------


@cache
def column_kernels(
    start: Callable, load: Callable, combine: Callable, floating: bool
) -> tuple[Callable, Callable]:
    """(folds of parts, the scan): a thread a sequence, and part of it."""

    def locate(sequence, n, inner, reverse):
        """(first element, from one to the next)"""
        outer = sequence // inner
        first = outer * n * inner + sequence - outer * inner
        if reverse:
            return first + (n - 1) * inner, -inner
        return first, inner

    def fold_columns(x, partials, n, inner, sequences, parts, span, reverse):
        part = cuda.grid(1) // sequences
        sequence = cuda.grid(1) - part * sequences
        if part < parts:
            first, step = locate(sequence, n, inner, reverse)
            acc = start()
            for p in range(part * span, min((part + 1) * span, n)):
                acc = combine(acc, load(x[first + p * step], 0.0))
            partials[part * sequences + sequence] = acc

    def scan_columns(x, y, partials, n, inner, sequences, parts, span, exclusive, reverse):
        part = cuda.grid(1) // sequences
        sequence = cuda.grid(1) - part * sequences
        if part < parts:
            first, step = locate(sequence, n, inner, reverse)
            acc = partials[part * sequences + sequence] if parts > 1 else start()
            for p in range(part * span, min((part + 1) * span, n)):
                i = first + p * step
                before = acc
                acc = combine(acc, load(x[i], 0.0))
                y[i] = before if exclusive else acc

    return fold_columns, scan_columns
