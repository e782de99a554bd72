"""Statistics of a tensor on a GPU: read once, exact counts, the same bits on every run.

A block of threads takes a stretch of the tensor, tile by tile, 16 elements a thread and tile. Each
thread sums distances from the first number that it met, and their squares, in f64: what is lost
when those become a mean and a spread is then bounded by the number of its elements, however far
from 0 they lie. Threads, then blocks, are put together in a fixed order by the formula of Chan,
Golub and LeVeque (1979).

The histogram is counted in shared memory, a column for each lane of a warp: no two lanes of a warp
ever want one bank. Vectors that hold NaNs or infinities, and what is left at the end of a stretch,
are taken element by element.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from opstep.runtime.device.builtin import atomic_add, pick
from opstep.runtime.device.cuda.compiling.names import cuda, pointer_to
from opstep.runtime.device.cuda.recording.counters import (
    ABOVE,
    BELOW,
    COUNTED,
    DUST,
    DUST_BELOW,
    EXPONENTS,
    HIGHEST,
    LANES,
    NANS,
    NEAR,
    SUBNORMALS,
    UNWRITTEN_ROW,
    Kind,
    extra,
    is_finite,
)
from opstep.runtime.device.cuda.recording.merging import (
    ROWS,
    THREADS,
    WARPS,
    accumulate_scaled,
    centred,
    merge,
    merge_scaled,
    merge_threads,
    write_count,
    write_rest,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.payload import payload
from opstep.runtime.device.source import pinned
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType, f32, f64, i32, i64
from opstep.runtime.statistics import BINS

TILE = 16  # elements of a thread
STEP = THREADS * TILE
TOGETHER = 8  # elements whose sums are under way at once
ALONE = 4 * STEP  # elements that one block takes without the help of others
MOST = 792  # blocks: twice what an H200 runs at once, at 3 a multiprocessor
FEW = 264  # blocks of a tensor that is not large: 2 a multiprocessor, as each has a price
LONG = 32  # tiles of a block; those of such a tensor have no more
CELLS = COUNTED * LANES


def launches(x: Arg, enabled: Arg, out: Arg, *, filled: bool) -> list[Grid]:
    """The launches that write the record `out` (see `runtime.statistics`) of `x`, unless
    ``enabled[0]`` is 0; ``filled``: whether elements never written hold the NaN payload.
    """
    filled = filled and x.dtype.is_float
    numbers, unwritten = as_numbers(x), pattern_of(x.dtype, filled)
    blocks = blocks_for(x.size)
    span = span_for(x.size)
    counts, moments, limits = (Scratch(t, n * blocks) for t, n in ((i32, ROWS), (f64, 2), (i64, 3)))
    left = (counts, moments, limits)
    grids = [
        Grid(
            *(block_kernel(x.dtype), numbers, x, enabled, *left),
            *(out, x.size, span, unwritten, filled),
            grid=blocks,
            block=THREADS,
            blocks=3,
        )
    ]
    if blocks > 1:
        rest = (x.size, filled, x.dtype.is_float)
        grid = -(-ROWS // WARPS) + 1
        grids.append(Grid(merge, enabled, *left, out, blocks, *rest, grid=grid, block=THREADS))
    if x.dtype is f64:
        again = (enabled, out, moments, limits)
        grids.append(Grid(accumulate_scaled, x, *again, x.size, span, grid=blocks, block=THREADS))
        grids.append(Grid(merge_scaled, *again, blocks, grid=1, block=THREADS))
    return grids


def blocks_for(size: int) -> int:
    """How many blocks share the elements; those of no large tensor all run at once."""
    if size <= ALONE:
        return 1
    tiles = -(-size // STEP)
    each = -(-tiles // FEW)
    return -(-tiles // each) if each <= LONG else min(MOST, tiles)


def span_for(size: int) -> int:
    """The elements of a block."""
    return -(-size // (blocks_for(size) * STEP)) * STEP


def as_numbers(x: Arg) -> Arg:
    """Halves as the numbers that they are."""
    return Arg(TensorType(f32, x.shape), x.slot, x.dtype) if x.dtype.is_half else x


def pattern_of(dtype: DType, filled: bool) -> int:
    """The bits of elements never written; 0 where they cannot be told."""
    return _signed(int(payload(dtype)), dtype) if filled else 0


def _signed(bits: int, dtype: DType) -> int:
    """As a kernel sees the bits of floats: those of f32 and f64 as signed integers."""
    return bits - (1 << dtype.bits) if dtype.itemsize > 2 and bits >> dtype.bits - 1 else bits


# --- a stretch of the tensor ----------------------------------------------------------------------


@cache
def block_kernel(dtype: DType):
    """The kernel of which each block leaves counts and moments of its stretch."""
    add_stretch, floating = stretch_accumulator(dtype), dtype.is_float

    def accumulate(x, raw, enabled, counts, moments, limits, out, size, span, unwritten, filled):
        block, blocks = cuda.blockIdx.x, cuda.gridDim.x
        on = enabled[0]
        add_stretch(x, raw, on, counts, moments, limits, size, span, unwritten, block, blocks)
        if blocks == 1 and on != 0:
            thread = cuda.threadIdx.x
            cuda.syncthreads()
            if thread < ROWS:
                write_count(out, thread, counts[thread], filled)
            if thread == 0:
                mean, m2 = moments[0], moments[1]
                write_rest(out, size, limits[0], mean, m2, limits[1], limits[2], floating)

    kernel = pinned("f64")(accumulate)
    kernel.__name__ = f"statistics of {dtype.name}"
    return kernel


@cache
def stretch_accumulator(dtype: DType):
    """Takes the stretch that is a block's, one of so many; nothing where `on` is 0."""
    kind = Kind(dtype)
    value, low_end, high_end, counter_of = kind.value, kind.low, kind.high, kind.counter
    add_tile, add_element = tile_accumulator(dtype), element_accumulator(dtype)
    fold = block_folder(dtype)

    def accumulate(x, raw, on, counts, moments, limits, size, span, unwritten, block, blocks):
        columns = pointer_to(cuda.shared.array(CELLS, np.int32))
        thread = np.int64(cuda.threadIdx.x)
        lane = thread & (LANES - 1)
        for k in range(thread, CELLS, THREADS):
            columns[k] = 0
        if on == 0:  # tested late: it is read while counters are cleared
            return
        cuda.syncthreads()
        n, low, high = 0, high_end, low_end
        pivot, total, squares = 0.0, 0.0, 0.0
        at = block * span
        end = min(at + span, size)
        while at + STEP <= end:
            n, low, high, pivot, total, squares = add_tile(
                x, raw, at, thread, unwritten, columns, lane, n, low, high, pivot, total, squares
            )
            at += STEP
        for i in range(at + thread, end, THREADS):
            v = value(x[i])
            atomic_add(columns, counter_of(v, lane), 1)
            n, low, high, pivot, total, squares = add_element(
                v, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares
            )
        fold(
            columns, n, low, high, pivot, total, squares, counts, moments, limits, block, blocks
        )  # fmt: skip

    return pinned("f64")(accumulate)


@cache
def tile_accumulator(dtype: DType):
    """Takes a thread's vectors of a tile: all are under way before the first is looked at, and some
    are summed up before anything is asked of the sums of one, so that none waits for another.
    """
    width = Kind(dtype).width
    state = "n, low, high, pivot, total, squares"
    vectors = range(TILE // width)
    lines = [f"def accumulate(x, raw, at, thread, unwritten, columns, lane, {state}):"]
    lines += [f"    i{k} = at + ({k} * THREADS + thread) * {width}" for k in vectors]
    lines += [f"    v{k} = load(x, i{k})" for k in vectors]
    given = f"unwritten, columns, lane, {state}"
    together = max(TOGETHER // width, 1)
    for first in vectors[::together]:
        some = vectors[first : first + together]
        lines += [f"    count(v{k}, columns, lane)" for k in some]
        lines.append(f"    pivot = pivot_of(n, v{first}, pivot)")
        lines += [f"    {sums_named(k)} = sums(v{k}, pivot)" for k in some]
        usual = " & ".join(f"is_usual({usual_named(k)})" for k in some)
        lines += [f"    if {usual}:", *(f"        {taking(k)}" for k in some), "    else:"]
        lines += [f"        {state} = settle(v{k}, raw, i{k}, {given})" for k in some]
    scope = {"THREADS": THREADS, "load": Kind(dtype).load, **vector_functions(dtype)}
    text = "\n".join([*lines, f"    return {state}"])
    return pinned("f64")(from_text(text, f"tiles of {width}", "accumulate", scope))


def sums_named(k: int) -> str:
    """What `sums` gives, of one vector of several."""
    return f"part{k}, part_squares{k}, least{k}, most{k}, finest{k}"


def usual_named(k: int) -> str:
    return f"part_squares{k}, finest{k}"


def taking(k: int, m: int | str = "") -> str:
    """The line that adds the sums of vector k to the state of tensor m."""
    state = f"n{m}, low{m}, high{m}, total{m}, squares{m}"
    return f"{state} = take{m}({state}, part{k}, part_squares{k}, least{k}, most{k})"


@cache
def vector_functions(dtype: DType) -> dict[str, Any]:
    """What a thread does with elements that follow each other, 16 bytes of them:

    - ``count``: their exponents. ``sums``: distances from a pivot, their squares, extremes, the
      least size. ``is_usual``: whether all are finite and none is subnormal or dust; ``take`` adds
      the sums of such to the state.
    - ``settle`` does for any what ``sums`` and ``take`` do. `unwritten`, if not 0: the bits of
      those never written, which stand in `raw` from `i` on.
    """
    kind = Kind(dtype)
    floating, tiny, width, finite = kind.floating, kind.tiny, kind.width, kind.finite
    counter_of, size_of, smaller, larger = kind.counter, kind.size, kind.smaller, kind.larger
    add_element, count_tiny = element_accumulator(dtype), tiny_counter(dtype)

    def count(values, columns, lane):
        for j in range(width):
            atomic_add(columns, counter_of(values[j], lane), 1)

    def pivot_of(n, values, pivot):
        first = np.float64(values[0]) if finite(values[0]) else 0.0
        return first if n == 0 else pivot

    def sums(values, pivot):
        part, part_squares = 0.0, 0.0
        least, most, finest = values[0], values[0], size_of(values[0])
        for j in range(width):
            v = values[j]
            away = np.float64(v) - pivot
            part += away
            part_squares += away * away
            least = smaller(least, v)
            most = larger(most, v)
            if floating:
                own = size_of(v)
                finest = pick(own < finest, own, finest)
        return part, part_squares, least, most, finest

    def is_usual(part_squares, finest):
        return (part_squares < np.inf) & (finest >= tiny) if floating else part_squares < np.inf

    def take(n, low, high, total, squares, part, part_squares, least, most):
        total += part
        squares += part_squares
        return n + width, smaller(low, least), larger(high, most), total, squares

    def settle(
        values, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares
    ):  # fmt: skip
        pivot = pivot_of(n, values, pivot)
        part, part_squares, least, most, finest = sums(values, pivot)
        if part_squares < np.inf:
            n, low, high, total, squares = take(
                n, low, high, total, squares, part, part_squares, least, most
            )
            if floating and finest < tiny:
                for j in range(width):
                    count_tiny(values[j], columns, lane)
        else:
            for j in range(width):
                n, low, high, pivot, total, squares = add_element(
                    values[j], raw, i + j, unwritten, columns, lane,
                    n, low, high, pivot, total, squares,
                )  # fmt: skip
        return n, low, high, pivot, total, squares

    functions = (count, pivot_of, sums, is_usual, take, settle)
    return {f.__name__: pinned("f64")(f) for f in functions}


@cache
def tiny_counter(dtype: DType):
    """Counts an element that is finite, if it is subnormal or dust."""
    normal, dust_below = Kind(dtype).normal, DUST_BELOW

    def count(v, columns, lane):
        if v != 0 and abs(v) < normal:
            atomic_add(columns, extra(SUBNORMALS, lane), 1)
        if v != 0 and abs(v) < dust_below:
            atomic_add(columns, extra(DUST, lane), 1)

    return pinned("f64")(count)


@cache
def element_accumulator(dtype: DType):
    """Takes one element that may be anything, all but its exponent."""
    kind = Kind(dtype)
    floating, raw_of, count_tiny = kind.floating, kind.raw, tiny_counter(dtype)
    smaller, larger = kind.smaller, kind.larger

    def accumulate(v, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares):
        if floating and not is_finite(v):
            row = NANS if v != v else ABOVE if v > 0.0 else BELOW
            atomic_add(columns, extra(row, lane), 1)
            if unwritten != 0 and raw_of(raw, i) == unwritten:
                atomic_add(columns, extra(UNWRITTEN_ROW, lane), 1)
        else:
            pivot = np.float64(v) if n == 0 else pivot
            away = np.float64(v) - pivot
            n += 1
            total += away
            squares += away * away
            low = smaller(low, v)
            high = larger(high, v)
            if floating:
                count_tiny(v, columns, lane)
        return n, low, high, pivot, total, squares

    return pinned("f64")(accumulate)


@cache
def block_folder(dtype: DType):
    """Puts the threads of a block together and writes its counts, its moments and its limits.

    counts: [ROWS, blocks]; moments: mean and m2, [2, blocks]; limits: finite elements and the keys
    of min and max, [3, blocks].
    """
    key, count = Kind(dtype).key, counter_folder(dtype)

    def fold(
        columns, n, low, high, pivot, total, squares, counts, moments, limits, block, blocks
    ):  # fmt: skip
        thread = cuda.threadIdx.x
        sums = cuda.shared.array(COUNTED, np.int32)
        cuda.syncthreads()
        if thread < COUNTED:
            found = 0
            for k in range(LANES):
                found += columns[thread * LANES + ((k + thread) & (LANES - 1))]
            sums[thread] = found
        mean, m2 = centred(n, pivot, total, squares)
        low, high = (key(low), key(high)) if n > 0 else (HIGHEST, -HIGHEST - 1)
        n, mean, m2, low, high = merge_threads(n, mean, m2, low, high)
        if thread < ROWS:
            counts[thread * blocks + block] = count(sums, thread)
        if thread == 0:
            moments[block], moments[blocks + block] = mean, m2
            limits[block], limits[blocks + block], limits[2 * blocks + block] = n, low, high

    return pinned("f64")(fold)


@cache
def counter_folder(dtype: DType):
    """Gives a row of what a block leaves, from the sums of its rows of counters."""
    nan_row = EXPONENTS - 1 if dtype is f64 else 0

    def count(sums, row):
        nans_in_first = sums[NANS] if nan_row == 0 else 0
        zeros = sums[0] - sums[DUST] - nans_in_first
        if row >= BINS:
            word = row - BINS
            return zeros if word == 3 else sums[NANS + word]
        found = sums[NEAR + row]
        if row == 0:
            found -= zeros + nans_in_first
            for k in range(NEAR):
                found += sums[k]
        if row == BINS - 1:
            found -= sums[ABOVE] + sums[BELOW] + (0 if nan_row == 0 else sums[NANS])
        return found

    return pinned("f64")(count)
