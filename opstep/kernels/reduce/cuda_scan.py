"""Running folds along an axis on CUDA.

Where the axis is the last, a block takes a row, some thousand elements at a time, a few neighbours
a thread; otherwise, and where rows are short, a thread takes a sequence, and neighbours are read
together. Where there are too few rows or sequences to fill a GPU, each is cut into parts: a first
launch folds them, a second one runs over those folds, and the third one starts each part from what
comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import gcd
from typing import NamedTuple

import numpy as np

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.reduce.cuda_folding import exchange, held_as
from opstep.kernels.reduce.scans import Running
from opstep.kernels.reduce.states import GET, PUT
from opstep.runtime.device.cuda.compiling.names import cuda, shuffle_from, shuffle_up
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DType

LANES = 32
MOST_THREADS = 256
BLOCKS = 512  # about as many keep a GPU busy
MOST_PARTS = 1024
LEAST = 2048  # elements of a part
SHORT = 32  # elements of a row that a thread takes alone
HELD = (32, 16)  # elements that a thread holds at most, by the numbers of a state


class Way(NamedTuple):
    """How rows are scanned: `vectors` of `width` elements a thread, `threads` of a block."""

    width: int
    vectors: int
    threads: int

    @property
    def chunk(self) -> int:
        return self.width * self.vectors * self.threads


def scan(
    run: Running,
    operands: Sequence[Arg | Scratch],
    results: Sequence[Arg | Scratch],
    shape: tuple[int, int, int],
    reverse: bool,
) -> list[Grid]:
    """`shape`: elements before the axis, along it, and behind it."""
    outer, n, inner = shape
    arrays = [*operands, *results]
    dtypes = tuple(a.dtype for a in operands), tuple(a.dtype for a in results)
    sequences = outer * inner
    if inner == 1 and n > SHORT:
        way = _way(n, max(a.stored.itemsize for a in arrays), HELD[len(run.state) - 1])
        parts = min(-(-BLOCKS // sequences), -(-n // max(LEAST, way.chunk)), MOST_PARTS)
        span = -(-n // (parts * way.chunk)) * way.chunk
        kernel = partial(row_kernel, run, *dtypes, way)
        block, grid = way.threads, sequences * parts
    else:
        parts = min(-(-BLOCKS * MOST_THREADS // sequences), -(-n // LANES), MOST_PARTS)
        span = -(-n // parts)
        kernel = partial(column_kernel, run, len(results))
        block, grid = MOST_THREADS, -(-sequences * parts // MOST_THREADS)
    states = [Scratch(t, parts * sequences) for t in run.state]
    given = (operands[0], operands[-1], results[0], results[-1], states[0], states[-1])
    given += (n, inner, sequences, parts, span, int(reverse))
    last = Grid(kernel(False), *given, grid=grid, block=block)
    if parts == 1:
        return [last]
    first = Grid(kernel(True), *given, grid=grid, block=block)
    lanes = min(LANES, 1 << (parts - 1).bit_length())
    middle = (states[0], states[-1], sequences, parts)
    grid = -(-sequences * lanes // LANES)
    return [first, Grid(part_scanner(run, lanes), *middle, grid=grid, block=LANES), last]


def _way(n: int, itemsize: int, held: int) -> Way:
    width = gcd(n, max(1, 16 // itemsize))
    vectors = max(v for v in (1, 2, 4) if v == 1 or v * width <= min(held, n // LANES))
    threads = LANES
    while threads < MOST_THREADS and threads * width * vectors < n:
        threads *= 2
    return Way(width, vectors, threads)


@cache
def warp_scan(combine: Callable, pair: bool, lanes: int) -> Callable:
    up = exchange(shuffle_up, pair)

    def inclusive_scan(own, lane):
        """The fold of the `lanes` threads up to this one."""
        step = 1
        while step < lanes:
            other = up(own, step)
            if lane >= step:
                own = combine(other, own)
            step *= 2
        return own

    return inclusive_scan


@cache
def part_scanner(run: Running, lanes: int) -> Callable:
    """Puts the state before each part in the place of its fold: `lanes` threads a sequence."""
    start, combine, pair = run.start, run.combine, len(run.state) > 1
    put, get, up = PUT[pair], GET[pair], exchange(shuffle_up, pair)
    inclusive_scan, from_lane = warp_scan(combine, pair, lanes), exchange(shuffle_from, pair)

    def scan_parts(partials, seconds, sequences, parts):
        sequence = cuda.grid(1) // lanes
        lane = cuda.threadIdx.x % lanes
        last = cuda.threadIdx.x - lane + lanes - 1
        acc = start()
        for first in range(0, parts, lanes):
            part = min(first + lane, parts - 1)
            i = part * sequences + min(sequence, sequences - 1)
            own = inclusive_scan(get(partials, seconds, i), lane)
            before = up(own, 1)
            here = combine(acc, before) if lane > 0 else acc
            acc = combine(acc, from_lane(own, last))
            if first + lane < parts and sequence < sequences:
                put(partials, seconds, i, here)

    return scan_parts


# --- rows -----------------------------------------------------------------------------------------


@cache
def row_kernel(
    run: Running, operands: tuple[DType, ...], results: tuple[DType, ...], way: Way, folds: bool
) -> Callable:
    """The scan, or what `folds` parts."""
    _, start, load, combine, finish = run
    width, vectors, threads = way
    warps, held, chunk = threads // LANES, width * vectors, way.chunk
    dual, pair, both = len(operands) > 1, len(run.state) > 1, len(results) > 1
    of_v, of_other = held_as(operands[0]), held_as(operands[-1])
    of_state, of_second = held_as(run.state[0]), held_as(run.state[-1])
    of_result, of_another = held_as(results[0]), held_as(results[-1])
    put, get, give = PUT[pair], GET[pair], PUT[both]
    up, inclusive_scan = exchange(shuffle_up, pair), warp_scan(combine, pair, LANES)
    vector_at, store, gathered = (
        Intrinsic("load", width),
        Intrinsic("store", width),
        GATHERED[width],
    )

    def locate(row, p, n, reverse):
        """Where the vector stands that starts at place p of the sequence."""
        return row * n + (n - p - width if reverse else p)

    def fetch(x, z, row, p, end, n, reverse, values, others):
        """Elements of the sequence from p on; zeros from its end on, which no result depends on."""
        for r in range(vectors):
            if p + r * width < end:
                at = locate(row, p + r * width, n, reverse)
                vector = vector_at(x, at)
                second = vector_at(z, at) if dual else vector
                for j in range(width):
                    k = r * width + (width - 1 - j if reverse else j)
                    values[k] = vector[j]
                    others[k] = second[j]
            else:
                for j in range(width):
                    values[r * width + j] = 0
                    others[r * width + j] = 0

    def own_fold(values, others, p):
        own = load(values[0], others[0], p)
        for k in range(1, held):
            own = combine(own, load(values[k], others[k], p + k))
        return own

    def warps_before(own, lane, acc):
        """(acc and the warps before this one, acc and all of them)."""
        ends = cuda.shared.array(warps, of_state)
        seconds = cuda.shared.array(warps, of_second) if pair else ends
        warp = cuda.threadIdx.x // LANES
        cuda.syncthreads()
        if lane == LANES - 1:
            put(ends, seconds, warp, own)
        cuda.syncthreads()
        before = acc
        for w in range(warps):
            if w == warp:
                before = acc
            acc = combine(acc, get(ends, seconds, w))
        return before, acc

    def scan_rows(x, z, y, w, partials, seconds, n, inner, sequences, parts, span, reverse):
        row = cuda.blockIdx.x // parts
        part = cuda.blockIdx.x - row * parts
        thread = np.int64(cuda.threadIdx.x)
        lane = thread % LANES
        values = cuda.local.array(held, of_v)
        others = cuda.local.array(held, of_other)
        results = cuda.local.array(width, of_result)
        more = cuda.local.array(width, of_another)
        from_start = folds or parts == 1
        acc = start() if from_start else get(partials, seconds, part * sequences + row)
        end = min((part + 1) * span, n)
        for base in range(part * span, end, chunk):
            p = base + thread * held
            fetch(x, z, row, p, end, n, reverse, values, others)
            own = inclusive_scan(own_fold(values, others, p), lane)
            here, acc = warps_before(own, lane, acc)
            if not folds:
                neighbour = up(own, 1)
                here = combine(here, neighbour) if lane > 0 else here
                for r in range(vectors):
                    for j in range(width):
                        k = r * width + j
                        v, other, before = values[k], others[k], here
                        here = combine(here, load(v, other, p + k))
                        found = finish(v, other, before, here)
                        give(results, more, width - 1 - j if reverse else j, found)
                    if p + r * width < end:
                        at = locate(row, p + r * width, n, reverse)
                        store(y, at, gathered(results, 0))
                        if both:
                            store(w, at, gathered(more, 0))
        if folds and thread == 0:
            put(partials, seconds, part * sequences + row, acc)

    return scan_rows


# --- sequences side by side -----------------------------------------------------------------------


@cache
def column_kernel(run: Running, results: int, folds: bool) -> Callable:
    """The scan, or what `folds` parts: a thread a sequence, and part of it."""
    _, start, load, combine, finish = run
    pair = len(run.state) - 1
    put, get, give = PUT[pair], GET[pair], PUT[results - 1]

    def locate(sequence, n, inner, reverse):
        """(first element, from one to the next)"""
        outer = sequence // inner
        first = outer * n * inner + sequence - outer * inner
        if reverse:
            return first + (n - 1) * inner, -inner
        return first, inner

    def scan_columns(x, z, y, w, partials, seconds, n, inner, sequences, parts, span, reverse):
        part = cuda.grid(1) // sequences
        sequence = cuda.grid(1) - part * sequences
        if part < parts:
            first, step = locate(sequence, n, inner, reverse)
            from_start = folds or parts == 1
            acc = start() if from_start else get(partials, seconds, part * sequences + sequence)
            for p in range(part * span, min((part + 1) * span, n)):
                i = first + p * step
                v, other, before = x[i], z[i], acc
                acc = combine(acc, load(v, other, p))
                if not folds:
                    give(y, w, i, finish(v, other, before, acc))
            if folds:
                put(partials, seconds, part * sequences + sequence, acc)

    return scan_columns
