"""Statistics of a tensor on the CPU: read once, exact counts, the same bits on any lanes.

The tensor is cut into *units*. One lane takes a unit and leaves a record of it; a second launch
merges the records in order. A unit goes block by block, each so small that further passes over it
read from the L1 cache: the bits are looked at as integers (extremes, zeros, exponents), the mean
and the squared distances from it are summed in f64. Blocks and units are merged by the formula of
Chan, Golub and LeVeque (1979), so no squares of large numbers are subtracted from each other.

What is neither f32 nor f64 is widened to one of them on the way: exactly, but for i64, whose
extremes are taken from the integers. A block that holds NaNs or infinities is copied without them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from opstep.runtime.device.builtin import (
    bits_to_float,
    count_bytes,
    fixed_squares_f64,
    fixed_sum_f64,
    float_to_bits,
    offset,
)
from opstep.runtime.device.cpu.blocks import (
    DOUBLE,
    SINGLE,
    counters,
    extremes,
    indexer,
    order,
    ordered_double,
    ordered_single,
    scanner,
    size_of,
    squeezer,
    stager,
    width_of,
)
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.device.payload import payload
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.types import DType, bf16, f16, f64, i64, u8
from opstep.runtime.statistics import (
    COUNT,
    EXPONENT,
    FIRST_BIN,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGINF,
    POSINF,
    SUBNORMAL,
    SUMSQ,
    UNWRITTEN,
    WORDS,
    ZERO,
)

BLOCK = 2048  # elements
UNIT = 16 * BLOCK  # worth a lane of its own
_MOST = 0x7FFFFFFFFFFFFFFF
_FRACTION, _BIAS = DOUBLE.fraction, DOUBLE.bias
LARGEST_EXPONENT, LEAST_EXPONENT = 480, -400  # f64 holds sums of squares well between them


def launches(x: Arg, enabled: Arg, out: Arg, *, filled: bool) -> list[Launch]:
    """The launches that write the record `out` (see `runtime.statistics`) of `x`, unless
    ``enabled[0]`` is 0; ``filled``: whether elements never written hold the NaN payload.
    """
    width, marked = width_of(x.dtype), filled and x.dtype.is_float
    units = max(1, -(-x.size // UNIT))  # one for a tensor of no elements: it has a record, too
    records = Scratch(i64, units * WORDS)
    block = Scratch(width.dtype, BLOCK, per_lane=True)
    bins = Scratch(u8, BLOCK, per_lane=True)
    unwritten = widened_payload(x.dtype) if marked else 0
    normal = HALF_NORMAL if x.dtype is f16 else 1 << width.fraction
    args = (x, enabled, records, block, bins, x.size, unwritten, normal)
    result = [
        Launch(unit_taker(x.dtype), *args, units=units, grain=1),
        Launch(merge, records, enabled, out, units, x.size, x.dtype.is_float, marked, units=1),
    ]
    if x.dtype is f64:
        result.append(Launch(take_scaled, x, enabled, out, block, x.size, units=1))
    return result


HALF_NORMAL = 0x38800000  # bits of the smallest normal f16 as an f32


def widened_payload(dtype: DType) -> int:
    """The bits of memory never written, as the kernel sees them."""
    bits = int(payload(dtype))
    if dtype is f16:
        return SINGLE.infinity | (bits & 0x3FF) << 13
    return bits << 16 if dtype is bf16 else bits


# --- units ----------------------------------------------------------------------------------------


@cache
def unit_taker(dtype: DType):
    """The kernel that takes units of a tensor of that dtype."""
    take_block = block_taker(dtype)

    def take_units(x, enabled, records, block, bins, size, payload, normal, lo, hi, lane):
        if enabled[0] == 0:
            return
        block = offset(block, lane * BLOCK)
        bins = offset(bins, lane * BLOCK)
        for unit in range(lo, hi):
            record = offset(records, unit * WORDS)
            begin(record)
            for first in range(unit * UNIT, min((unit + 1) * UNIT, size), BLOCK):
                n = min(BLOCK, size - first)
                take_block(x, first, n, record, block, bins, payload, normal)
            first_bin = record[SUMSQ] - record[ZERO]  # zeros were counted with it
            for k in range(FIRST_BIN + 1, WORDS):
                first_bin -= record[k]
            record[FIRST_BIN] = first_bin

    take_units.__name__ = f"statistics of {dtype.name}"
    return take_units


def block_taker(dtype: DType):
    """Takes n elements of x into a record, by way of a block and its bins."""
    width, floating = width_of(dtype), dtype.is_float
    infinity, ordered = width.infinity, ordered_single if width is SINGLE else ordered_double
    stage, scan, squeeze = stager(dtype), scanner(width), squeezer(width)
    (index, bin_of), (odd, tiny) = indexer(width), counters(width)

    def take_block(x, first, n, record, block, bins, payload, normal):
        p = stage(x, first, n, block)
        low, high, zeros, least = scan(p, n)
        if high >= infinity or low < -infinity:
            nans, above, below, same = odd(p, n, payload)
            record[NAN] += nans
            record[POSINF] += above
            record[NEGINF] += below
            record[UNWRITTEN] += same
            n = squeeze(p, n, block)
            if n == 0:
                return
            p = block
            low, high, zeros, least = scan(p, n)
        record[ZERO] += zeros
        if zeros < n:
            most = bin_of(max(size_of(low), size_of(high)))
            count_bytes(bins, index(p, n, bins), offset(record, FIRST_BIN), bin_of(least), most)
        if floating:
            low, high = ordered(low), ordered(high)
            if least < normal:
                record[SUBNORMAL] += tiny(p, n, normal)
        else:
            low, high = extremes(x, first, n)
        record[MIN] = min(low, record[MIN])
        record[MAX] = max(high, record[MAX])
        add_block(p, n, record)

    return take_block


# --- records --------------------------------------------------------------------------------------
# While it is put together, a record holds keys as extremes, and the number of elements that its
# mean is of as SUMSQ.


def begin(record):
    for k in range(WORDS):
        record[k] = 0
    record[MIN] = _MOST
    record[MAX] = -_MOST - 1


def add_block(p, n, record):
    mean = fixed_sum_f64(p, n) / np.float64(n)
    add_moments(record, n, mean, fixed_squares_f64(p, mean, n))


@pinned("f64")
def add_moments(record, n, mean, m2):
    """Takes in n more elements."""
    before = record[SUMSQ]
    after = before + n
    old = bits_to_float(record[MEAN])
    apart = mean - old
    share = np.float64(n) / np.float64(after)
    grown = bits_to_float(record[M2]) + m2 + apart * apart * np.float64(before) * share
    record[MEAN] = float_to_bits(old + apart * share)
    record[M2] = float_to_bits(grown)
    record[SUMSQ] = after


@pinned("f64")
def merge(records, enabled, out, units, size, floating, told, lo, hi):
    """The record of the whole from those of its units."""
    if enabled[0] == 0:
        return
    begin(out)
    for unit in range(units):
        record = offset(records, unit * WORDS)
        for k in range(NAN, UNWRITTEN + 1):
            out[k] += record[k]
        for k in range(FIRST_BIN, WORDS):
            out[k] += record[k]
        out[MIN] = min(out[MIN], record[MIN])
        out[MAX] = max(out[MAX], record[MAX])
        if record[SUMSQ] > 0:
            mean, m2 = bits_to_float(record[MEAN]), bits_to_float(record[M2])
            add_moments(out, record[SUMSQ], mean, m2)
    out[COUNT] = size
    if told == 0:
        out[UNWRITTEN] = -1
    finish(out, floating)


@pinned("f64")
def finish(out, floating):
    """From keys to numbers, and from the number of finite elements to their squares."""
    finite = out[SUMSQ]
    if finite == 0:
        out[MIN], out[MAX] = 0, 0
    elif floating != 0:
        out[MIN], out[MAX] = order(out[MIN]), order(out[MAX])
    mean = bits_to_float(out[MEAN])
    out[SUMSQ] = float_to_bits(bits_to_float(out[M2]) + mean * mean * np.float64(finite))


# --- numbers whose squares f64 does not hold ------------------------------------------------------


@pinned("f64")
def exponent_of(out):
    """That of the scale at which moments must be taken again; 0 where they are good."""
    largest = max(abs(bits_to_float(out[MIN])), abs(bits_to_float(out[MAX])))
    exponent = (float_to_bits(largest) >> _FRACTION) - _BIAS
    good = largest == 0.0 or LEAST_EXPONENT <= exponent <= LARGEST_EXPONENT
    return 0 if good else exponent


@pinned("f64")
def take_scaled(x, enabled, out, block, size, lo, hi):
    """Takes the moments again where they may be out of range, of x / 2**exponent."""
    if enabled[0] == 0:
        return
    exponent = exponent_of(out)
    if exponent == 0:
        return
    out[MEAN], out[M2], out[SUMSQ], out[EXPONENT] = 0, 0, 0, exponent
    first, second = power(-exponent // 2), power(-exponent - -exponent // 2)
    for start in range(0, size, BLOCK):
        kept = 0
        for i in range(start, min(start + BLOCK, size)):
            block[kept] = x[i] * first * second
            kept += abs(x[i]) < math.inf
        if kept > 0:
            add_block(block, kept, out)
    finish(out, 0)
    mean = bits_to_float(out[MEAN])
    out[MEAN] = float_to_bits(mean / first / second)


def power(n):
    """2**n as f64; n from -1022 to 1023."""
    return bits_to_float((n + _BIAS) << _FRACTION)
