"""Statistics of a tensor on a GPU: read once, exact counts, the same bits on every run.

A block of threads takes a stretch of the tensor, tile by tile, 16 elements a thread and tile, which
stay in registers. Each thread sums distances from the first number that it met, and their squares,
in f64: what is lost when those become a mean and a spread is then bounded by the number of its
elements, however far from 0 they lie. Threads, then blocks, are put together in a fixed order by
the formula of Chan, Golub and LeVeque (1979).

The histogram is counted in shared memory, a column for each lane of a warp: no two lanes of a warp
ever want one bank. Tiles that hold NaNs or infinities, and what is left at the end of a stretch,
are taken element by element.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from opstep.runtime.device.blocks import SINGLES, order
from opstep.runtime.device.builtin import atomic_add, bits_to_float, float_to_bits, pick
from opstep.runtime.device.cuda.names import (
    cuda,
    fmax,
    fmin,
    pointer_to,
    saturated_product,
    shuffle_down,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.payload import payload
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.device.statistics import power
from opstep.runtime.ir.types import DType, TensorType, f16, f32, f64, i32, i64
from opstep.runtime.statistics import (
    BINS,
    COUNT,
    EXPONENT,
    FIRST_BIN,
    LOWEST,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    SUMSQ,
    UNWRITTEN,
)

THREADS = 256
TILE = 16  # elements of a thread
STEP = THREADS * TILE
ALONE = 4 * STEP  # elements that one block takes without the help of others
MOST = 792  # blocks: twice what an H200 runs at once, at 3 a multiprocessor

# Rows of counters while a block counts: one for each exponent from -104 to 23, the first and the
# last ones for those beyond as well, then these. Dust: what is not 0, yet stands in the first row.
EXPONENTS = 128
_NANS, _ABOVE, _BELOW, _DUST, _SUBNORMALS, _UNWRITTEN = range(EXPONENTS, EXPONENTS + 6)
COUNTED = EXPONENTS + 6
_NEAR = EXPONENTS - BINS  # the row of the first bin
_DUST_BELOW = 2.0 ** (LOWEST - _NEAR + 1)
# What a block leaves: the bins, then the words from NAN to UNWRITTEN.
ROWS = BINS + UNWRITTEN - NAN + 1
LANES = 32
WARPS = THREADS // LANES
CELLS = COUNTED * LANES

_INFINITY = 0x7FF0000000000000
_LARGEST, _SMALLEST = 480, -400  # exponents between which f64 holds sums of squares well
_HIGHEST = 0x7FFFFFFFFFFFFFFF


def launches(x: Arg, enabled: Arg, out: Arg, *, filled: bool) -> list[Grid]:
    """The launches that write the record `out` (see `runtime.statistics`) of `x`, unless
    ``enabled[0]`` is 0; ``filled``: whether elements never written hold the NaN payload.
    """
    told = filled and x.dtype.is_float
    seen = Arg(TensorType(f32, x.shape), x.slot, x.dtype) if x.dtype.is_half else x
    unwritten = _signed(int(payload(x.dtype)), x.dtype) if told else 0
    blocks = 1 if x.size <= ALONE else min(MOST, -(-x.size // STEP))
    span = -(-x.size // (blocks * STEP)) * STEP
    counts, moments, whole = (Scratch(t, n * blocks) for t, n in ((i32, ROWS), (f64, 2), (i64, 3)))
    left = (counts, moments, whole)
    made = [
        Grid(
            *(block_taker(x.dtype), seen, x, enabled, *left, out, x.size, span, unwritten, told),
            grid=blocks,
            block=THREADS,
            blocks=3,
        )
    ]
    if blocks > 1:
        rest = (x.size, told, x.dtype.is_float)
        grid = -(-ROWS // WARPS) + 1
        made.append(Grid(merge, enabled, *left, out, blocks, *rest, grid=grid, block=THREADS))
    if x.dtype is f64:
        again = (enabled, out, moments, whole)
        made.append(Grid(take_scaled, x, *again, x.size, span, grid=blocks, block=THREADS))
        made.append(Grid(merge_scaled, *again, blocks, grid=1, block=THREADS))
    return made


def _signed(bits: int, dtype: DType) -> int:
    """As a kernel sees the bits of floats: those of f32 and f64 as signed integers."""
    return bits - (1 << dtype.bits) if dtype.itemsize > 2 and bits >> dtype.bits - 1 else bits


# --- one element ----------------------------------------------------------------------------------


def counter_of_single(v, lane):
    """The place of a number's counter, that of its exponent; that of NaN is in the first row."""
    size = saturated_product(abs(np.float32(v)), _SCALE)
    return ((float_to_bits(size) >> 18) & 0xFE0) | lane  # 32 times the exponent


_SCALE = np.float32(2.0 ** -(LOWEST + BINS - 1))  # brings the last bin to 1.0


def counter_of_double(v, lane):
    """Likewise; that of NaN is in the last row."""
    k = ((float_to_bits(v) >> 52) & 0x7FF) - (1023 + LOWEST - _NEAR)
    return min(max(k, 0), EXPONENTS - 1) * LANES + lane


def extra(row, lane):
    """The place of the counter of a row behind those of exponents."""
    return row * LANES + lane


def key_of_float(v):
    """An integer of the order of numbers, in which -0.0 is below 0.0."""
    return order(float_to_bits(np.float64(v)))


def key_of_integer(v):
    return np.int64(v)


def size_of_single(v):
    """An integer of the order of sizes; that of 0 is the largest."""
    return np.uint32((np.int64(float_to_bits(np.float32(v))) * 2 - 1) & 0xFFFFFFFF)


def size_of_double(v):
    return np.uint64(float_to_bits(abs(v)) - 1) if v != 0.0 else np.uint64(_HIGHEST)


class _Kind:
    """How the kernels see elements of a dtype."""

    def __init__(self, dtype: DType):
        self.floating = dtype.is_float
        self.width = 16 // dtype.itemsize  # elements of 16 bytes
        self.load = Intrinsic("load", self.width)
        self.key = key_of_float if dtype.is_float else key_of_integer
        self.counter = counter_of_double if dtype is f64 else counter_of_single
        self.size = size_of_double if dtype is f64 else size_of_single
        single = dtype in SINGLES  # f32 holds them, small integers too
        self.value: Any = np.float32 if single else getattr(np, dtype.numpy.name)
        self.finite = is_finite if dtype.is_float else is_whole
        small = 2.0**-1022 if dtype is f64 else 2.0**-14 if dtype is f16 else 2.0**-126
        self.normal: Any = self.value(small) if dtype.is_float else 0  # the smallest one
        # below this size, an element may be subnormal, or dust
        tiny = np.array(max(float(self.normal), _DUST_BELOW), np.float64 if dtype is f64 else "f4")
        bits = int(tiny.view(f"i{tiny.itemsize}"))
        self.tiny: Any = np.uint64(bits - 1) if dtype is f64 else np.uint32(2 * bits - 1)
        ends = (-np.inf, np.inf) if single or dtype is f64 else _ends(dtype)
        self.low, self.high = (self.value(end) for end in ends)
        self.smaller = fmin if single or dtype is f64 else smaller
        self.larger = fmax if single or dtype is f64 else larger
        self.raw = _raw_half if dtype.is_half else _raw_float


def _ends(dtype: DType) -> tuple[int, int]:
    info: Any = np.iinfo(dtype.numpy)
    return info.min, info.max


def is_finite(v):
    return abs(v) < np.inf


def is_whole(v):
    return True


def smaller(a, b):
    return a if a < b else b


def larger(a, b):
    return a if a > b else b


def _raw_half(raw, i):
    return np.int64(raw[i])


def _raw_float(raw, i):
    return np.int64(float_to_bits(raw[i]))


# --- a stretch of the tensor ----------------------------------------------------------------------


@cache
def block_taker(dtype: DType):
    """The kernel of which each block leaves counts and moments of its stretch."""
    kind = _Kind(dtype)
    floating, value, tiny = kind.floating, kind.value, kind.tiny
    low_end, high_end = kind.low, kind.high
    load, width, vectors = kind.load, kind.width, TILE // kind.width
    finite = kind.finite
    counter_of, size_of, smaller, larger = kind.counter, kind.size, kind.smaller, kind.larger
    take_odd, take_tiny, fold = odd_taker(dtype), tiny_taker(dtype), block_folder(dtype)

    def take(x, raw, enabled, counts, moments, whole, out, size, span, unwritten, told):
        if enabled[0] == 0:
            return
        columns = pointer_to(cuda.shared.array(CELLS, np.int32))
        thread = np.int64(cuda.threadIdx.x)
        lane = thread & (LANES - 1)
        for k in range(thread, CELLS, THREADS):
            columns[k] = 0
        cuda.syncthreads()
        values = cuda.local.array(TILE, value)
        n, low, high = 0, high_end, low_end
        pivot, total, squares = 0.0, 0.0, 0.0
        at = cuda.blockIdx.x * span
        end = min(at + span, size)
        while at + STEP <= end:
            for k in range(vectors):
                vector = load(x, at + (k * THREADS + thread) * width)
                for j in range(width):
                    values[k * width + j] = vector[j]
            if n == 0:
                first = low_end
                for k in range(TILE):
                    first = values[k] if finite(values[k]) else first
                pivot = np.float64(first) if finite(first) else 0.0
            part, part_squares = 0.0, 0.0
            least, most, finest = values[0], values[0], size_of(values[0])
            for k in range(TILE):
                v = values[k]
                away = np.float64(v) - pivot
                part += away
                part_squares += away * away
                least = smaller(least, v)
                most = larger(most, v)
                if floating:
                    own = size_of(v)
                    finest = pick(own < finest, own, finest)
                atomic_add(columns, counter_of(v, lane), 1)
            if part_squares < np.inf:
                n += TILE
                total += part
                squares += part_squares
                low = smaller(low, least)
                high = larger(high, most)
                if floating and finest < tiny:
                    for k in range(TILE):
                        take_tiny(values[k], columns, lane)
            else:
                for k in range(TILE):
                    i = at + (k // width * THREADS + thread) * width + k % width
                    n, low, high, pivot, total, squares = take_odd(
                        x, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares
                    )
            at += STEP
        for i in range(at + thread, end, THREADS):
            atomic_add(columns, counter_of(x[i], lane), 1)
            n, low, high, pivot, total, squares = take_odd(
                x, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares
            )
        fold(columns, n, low, high, pivot, total, squares, counts, moments, whole)
        if cuda.gridDim.x == 1:
            cuda.syncthreads()
            if thread < ROWS:
                write_count(out, thread, counts[thread], told)
            if thread == 0:
                mean, m2 = moments[0], moments[1]
                write_rest(out, size, whole[0], mean, m2, whole[1], whole[2], floating)

    kernel = pinned("f64")(take)
    kernel.__name__ = f"statistics of {dtype.name}"
    return kernel


@cache
def tiny_taker(dtype: DType):
    """Counts an element that is finite, if it is subnormal or dust."""
    normal, dust_below = _Kind(dtype).normal, _DUST_BELOW

    def take(v, columns, lane):
        if v != 0 and abs(v) < normal:
            atomic_add(columns, extra(_SUBNORMALS, lane), 1)
        if v != 0 and abs(v) < dust_below:
            atomic_add(columns, extra(_DUST, lane), 1)

    return pinned("f64")(take)


@cache
def odd_taker(dtype: DType):
    """Takes one element that may be anything, all but its exponent."""
    kind = _Kind(dtype)
    floating, raw_of, take_tiny = kind.floating, kind.raw, tiny_taker(dtype)
    value, smaller, larger = kind.value, kind.smaller, kind.larger

    def take(x, raw, i, unwritten, columns, lane, n, low, high, pivot, total, squares):
        v = value(x[i])
        if floating and not is_finite(v):
            row = _NANS if v != v else _ABOVE if v > 0.0 else _BELOW
            atomic_add(columns, extra(row, lane), 1)
            if unwritten != 0 and raw_of(raw, i) == unwritten:
                atomic_add(columns, extra(_UNWRITTEN, lane), 1)
        else:
            pivot = np.float64(v) if n == 0 else pivot
            away = np.float64(v) - pivot
            n += 1
            total += away
            squares += away * away
            low = smaller(low, v)
            high = larger(high, v)
            if floating:
                take_tiny(v, columns, lane)
        return n, low, high, pivot, total, squares

    return pinned("f64")(take)


@cache
def block_folder(dtype: DType):
    """Puts the threads of a block together and writes its counts, its moments and its extremes.

    counts: [ROWS, blocks]; moments: mean and m2, [2, blocks]; whole: finite elements and the keys
    of min and max, [3, blocks].
    """
    key, count = _Kind(dtype).key, counter_folder(dtype)

    def fold(columns, n, low, high, pivot, total, squares, counts, moments, whole):
        thread, block, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
        sums = cuda.shared.array(COUNTED, np.int32)
        cuda.syncthreads()
        if thread < COUNTED:
            found = 0
            for k in range(LANES):
                found += columns[thread * LANES + ((k + thread) & (LANES - 1))]
            sums[thread] = found
        mean, m2 = centred(n, pivot, total, squares)
        low, high = (key(low), key(high)) if n > 0 else (_HIGHEST, -_HIGHEST - 1)
        n, mean, m2, low, high = merge_threads(n, mean, m2, low, high)
        if thread < ROWS:
            counts[thread * blocks + block] = count(sums, thread)
        if thread == 0:
            moments[block], moments[blocks + block] = mean, m2
            whole[block], whole[blocks + block], whole[2 * blocks + block] = n, low, high

    return pinned("f64")(fold)


@cache
def counter_folder(dtype: DType):
    """Gives a row of what a block leaves, from the sums of its rows of counters."""
    nan_row = EXPONENTS - 1 if dtype is f64 else 0

    def count(sums, row):
        nans_in_first = sums[_NANS] if nan_row == 0 else 0
        zeros = sums[0] - sums[_DUST] - nans_in_first
        if row >= BINS:
            word = row - BINS
            return zeros if word == 3 else sums[_NANS + word]
        found = sums[_NEAR + row]
        if row == 0:
            found -= zeros + nans_in_first
            for k in range(_NEAR):
                found += sums[k]
        if row == BINS - 1:
            found -= sums[_ABOVE] + sums[_BELOW] + (0 if nan_row == 0 else sums[_NANS])
        return found

    return pinned("f64")(count)


@pinned("f64")
def centred(n, pivot, total, squares):
    """(mean, sum of squared distances from it) of n elements from their distances from a pivot."""
    if n == 0:
        return 0.0, 0.0
    away = total / np.float64(n)
    return pivot + away, max(squares - total * away, 0.0)


@pinned("f64")
def merge_threads(n, mean, m2, low, high):
    """(elements, mean, m2, least key, greatest key) of a whole block, in its first thread."""
    thread = cuda.threadIdx.x
    numbers = cuda.shared.array(THREADS, np.int64)
    lows = cuda.shared.array(THREADS, np.int64)
    highs = cuda.shared.array(THREADS, np.int64)
    means = cuda.shared.array(THREADS, np.float64)
    spreads = cuda.shared.array(THREADS, np.float64)
    numbers[thread], means[thread], spreads[thread] = n, mean, m2
    lows[thread], highs[thread] = low, high
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            other = thread + half
            n, mean, m2 = chan(n, mean, m2, numbers[other], means[other], spreads[other])
            low, high = min(low, lows[other]), max(high, highs[other])
            numbers[thread], means[thread], spreads[thread] = n, mean, m2
            lows[thread], highs[thread] = low, high
        half //= 2
    return n, mean, m2, low, high


@pinned("f64")
def chan(n, mean, m2, more, other_mean, other_m2):
    """(elements, mean, sum of squared distances from it) of two sets of elements."""
    if more == 0:
        return n, mean, m2
    if n == 0:
        return more, other_mean, other_m2
    apart = other_mean - mean
    share = np.float64(more) / np.float64(n + more)
    return n + more, mean + apart * share, m2 + other_m2 + apart * apart * np.float64(n) * share


# --- the record -----------------------------------------------------------------------------------


@pinned("f64")
def merge(enabled, counts, moments, whole, out, blocks, size, told, floating):
    """Makes one record: each row of counts is a warp's work, and the rest is the last block's."""
    if enabled[0] == 0:
        return
    if cuda.blockIdx.x < cuda.gridDim.x - 1:
        lane = cuda.threadIdx.x % LANES
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES
        found = np.int64(0)
        if row < ROWS:
            for k in range(lane, blocks, LANES):
                found += counts[row * blocks + k]
        step = LANES // 2
        while step > 0:
            found += shuffle_down(found, step)
            step //= 2
        if row < ROWS and lane == 0:
            write_count(out, row, found, told)
    else:
        n, mean, m2, low, high = merge_blocks(moments, whole, blocks)
        if cuda.threadIdx.x == 0:
            write_rest(out, size, n, mean, m2, low, high, floating)


@pinned("f64")
def write_count(out, row, found, told):
    if row == ROWS - 1 and told == 0:
        found = np.int64(-1)
    out[FIRST_BIN + row if row < BINS else NAN + row - BINS] = found


@pinned("f64")
def write_rest(out, size, n, mean, m2, low, high, floating):
    """All but the counts."""
    if floating:
        low, high = order(low), order(high)
    if n == 0:
        low, high = np.int64(0), np.int64(0)
    out[COUNT], out[MIN], out[MAX] = size, low, high
    write_moments(out, n, mean, m2)
    for k in range(EXPONENT, FIRST_BIN):
        out[k] = 0


@pinned("f64")
def merge_blocks(moments, whole, blocks):
    """As `merge_threads`, of the blocks."""
    n, mean, m2 = np.int64(0), 0.0, 0.0
    low, high = np.int64(_HIGHEST), np.int64(-_HIGHEST - 1)
    for k in range(cuda.threadIdx.x, blocks, THREADS):
        n, mean, m2 = chan(n, mean, m2, whole[k], moments[k], moments[blocks + k])
        low, high = min(low, whole[blocks + k]), max(high, whole[2 * blocks + k])
    return merge_threads(n, mean, m2, low, high)


@pinned("f64")
def write_moments(out, n, mean, m2):
    out[MEAN], out[M2] = float_to_bits(mean), float_to_bits(m2)
    out[SUMSQ] = float_to_bits(m2 + mean * mean * np.float64(n))


# --- numbers whose squares f64 does not hold ------------------------------------------------------


@pinned("f64")
def exponent_of(out):
    """That of the scale at which moments must be taken again; 0 where they are good."""
    largest = max(abs(bits_to_float(out[MIN])), abs(bits_to_float(out[MAX])))
    exponent = (float_to_bits(largest) >> 52) - 1023
    return 0 if largest == 0.0 or _SMALLEST <= exponent <= _LARGEST else exponent


@pinned("f64")
def take_scaled(x, enabled, out, moments, whole, size, span):
    """The moments of x / 2**exponent, where those of x are out of range."""
    if enabled[0] == 0:
        return
    exponent = exponent_of(out)
    if exponent == 0:
        return
    first, second = power(-exponent // 2), power(-exponent - -exponent // 2)
    thread, block, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
    n, pivot, total, squares = 0, 0.0, 0.0, 0.0
    start = block * span
    for i in range(start + thread, min(start + span, size), THREADS):
        if abs(x[i]) < np.inf:
            v = x[i] * first * second
            pivot = v if n == 0 else pivot
            n += 1
            total += v - pivot
            squares += (v - pivot) * (v - pivot)
    mean, m2 = centred(n, pivot, total, squares)
    nothing = np.int64(0)
    n, mean, m2, _, _ = merge_threads(np.int64(n), mean, m2, nothing, nothing)
    if thread == 0:
        moments[block], moments[blocks + block], whole[block] = mean, m2, n


@pinned("f64")
def merge_scaled(enabled, out, moments, whole, blocks):
    if enabled[0] == 0:
        return
    exponent = exponent_of(out)
    if exponent == 0:
        return
    n, mean, m2, _, _ = merge_blocks(moments, whole, blocks)
    if cuda.threadIdx.x == 0:
        write_moments(out, n, mean, m2)
        out[EXPONENT] = exponent
        first, second = power(-exponent // 2), power(-exponent - -exponent // 2)
        out[MEAN] = float_to_bits(mean / first / second)
