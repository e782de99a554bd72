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

from opstep.runtime.device.blocks import (
    COPIES,
    DOUBLE,
    SINGLE,
    counters,
    extremes,
    indexer,
    scanner,
    spread,
    squeezer,
    tally,
    total,
)
from opstep.runtime.device.builtin import bits_to_float, float_to_bits, offset
from opstep.runtime.device.convert import bfloat_to_float, half_to_float
from opstep.runtime.device.jit import pinned
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from opstep.runtime.statistics import (
    BINS,
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
_LARGEST, _SMALLEST = 480, -400  # exponents between which f64 holds sums of squares well


def launches(x: Arg, enabled: Arg, out: Arg, *, filled: bool) -> list[Launch]:
    """The launches that write the record `out` (see `runtime.statistics`) of `x`, unless
    ``enabled[0]`` is 0; ``filled``: whether elements never written hold the NaN payload.
    """
    dtype = x.dtype
    width = SINGLE if dtype in _SINGLE else DOUBLE
    units = max(1, -(-x.size // UNIT))
    records = Scratch(i64, units * WORDS)
    block = Scratch(width.dtype, BLOCK, per_lane=True)
    bins = Scratch(u8, BLOCK, per_lane=True)
    counts = Scratch(i32, COPIES * BINS, per_lane=True)
    told = _bits(dtype) if filled and dtype.is_float else -1
    about = (x.size, told, 0x38800000 if dtype is f16 else 1 << width.fraction)
    made = [
        Launch(
            _taker(dtype), x, enabled, records, block, bins, counts, *about, units=units, grain=1
        ),
        Launch(merge, records, enabled, out, units, x.size, dtype.is_float, told >= 0, units=1),
    ]
    if dtype is f64:
        made.append(Launch(take_scaled, x, enabled, out, block, x.size, units=1))
    return made


_SINGLE = (f32, f16, bf16, i16, i8, u8, boolean)  # exact in f32


def _bits(dtype: DType) -> int:
    """The payload of memory never written, as the kernel sees it."""
    bits = int(payload(dtype))
    if dtype is f16:
        return SINGLE.infinity | (bits & 0x3FF) << 13
    return bits << 16 if dtype is bf16 else bits


# --- units ----------------------------------------------------------------------------------------


@cache
def _taker(dtype: DType):
    """The kernel that takes units of a tensor of that dtype."""
    width = SINGLE if dtype in _SINGLE else DOUBLE
    infinity, magnitude, floating = width.infinity, width.magnitude, dtype.is_float
    scan, squeeze, index = scanner(width), squeezer(width), indexer(width)
    odd, tiny = counters(width)
    stage = _stager(dtype)
    ordered = _ordered_single if width is SINGLE else _ordered_double

    def take_block(x, first, n, record, block, bins, counts, payload, normal):
        p = stage(x, first, n, block)
        low, high, zeros, least = scan(p, n)
        if high >= infinity or low < -infinity:
            nans, above, below, same = odd(p, n, payload)
            record[NAN] += nans
            record[POSINF] += above
            record[NEGINF] += below
            record[UNWRITTEN] += same
            n = squeeze(p, n, block)
            p = block
            if n == 0:
                return
            low, high, zeros, least = scan(p, n)
        record[ZERO] += zeros
        if floating:
            low, high = ordered(low), ordered(high)
            if least < normal:
                record[SUBNORMAL] += tiny(p, n, normal)
        else:
            low, high = extremes(x, first, n)
        record[MIN] = min(low, record[MIN])
        record[MAX] = max(high, record[MAX])
        index(p, n, bins)
        tally(bins, n, counts)
        add_block(p, n, record)

    def take_units(
        x, enabled, records, block, bins, counts, size, payload, normal, lo, hi, lane
    ):  # fmt: skip
        if enabled[0] == 0:
            return
        block = offset(block, lane * BLOCK)
        bins = offset(bins, lane * BLOCK)
        counts = offset(counts, lane * COPIES * BINS)
        for unit in range(lo, hi):
            record = offset(records, unit * WORDS)
            begin(record)
            for k in range(COPIES * BINS):
                counts[k] = 0
            for first in range(unit * UNIT, min((unit + 1) * UNIT, size), BLOCK):
                n = min(BLOCK, size - first)
                take_block(x, first, n, record, block, bins, counts, payload, normal)
            for k in range(BINS):
                for copy in range(COPIES):
                    record[FIRST_BIN + k] += counts[copy * BINS + k]
            record[FIRST_BIN] -= record[ZERO]

    take_units.__name__ = f"statistics of {dtype.name}"
    return take_units


@cache
def _stager(dtype: DType):
    """Gives a function that gives a block of x in f32 or f64."""
    if dtype is f32 or dtype is f64:
        return _in_place
    value = {f16: half, bf16: bfloat}.get(dtype, single if dtype in _SINGLE else double)

    def stage(x, first, n, block):
        for i in range(n):
            block[i] = value(x[first + i])
        return block

    return stage


def _in_place(x, first, n, block):
    return offset(x, first)


def half(v):
    return half_to_float(np.int64(v))


def bfloat(v):
    return bfloat_to_float(np.int64(v))


def single(v):
    return np.float32(v)


def double(v):
    return np.float64(v)


def _ordered_single(key):
    """The f64 key of an f32 key."""
    bits = np.int32(key ^ ((key >> 63) & 0x7FFFFFFF))
    return _key(np.float64(bits_to_float(bits)))


def _ordered_double(key):
    return key


def _key(number):
    """An integer that is the larger the larger an f64 is; the same again gives its bits."""
    bits = float_to_bits(number)
    return bits ^ ((bits >> 63) & _MOST)


# --- records --------------------------------------------------------------------------------------
# While it is put together, a record holds keys as extremes, and the number of elements that its
# mean is of as SUMSQ.


def begin(record):
    for k in range(WORDS):
        record[k] = 0
    record[MIN] = _MOST
    record[MAX] = -_MOST - 1


def add_block(p, n, record):
    mean = total(p, n) / np.float64(n)
    add_moments(record, n, mean, spread(p, n, mean))


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
        out[MIN] ^= (out[MIN] >> 63) & _MOST
        out[MAX] ^= (out[MAX] >> 63) & _MOST
    mean = bits_to_float(out[MEAN])
    out[SUMSQ] = float_to_bits(bits_to_float(out[M2]) + mean * mean * np.float64(finite))


# --- numbers whose squares f64 does not hold ------------------------------------------------------


@pinned("f64")
def take_scaled(x, enabled, out, block, size, lo, hi):
    """Takes the moments again where they may be out of range, of x / 2**exponent."""
    if enabled[0] == 0:
        return
    largest = max(abs(bits_to_float(out[MIN])), abs(bits_to_float(out[MAX])))
    exponent = (float_to_bits(largest) >> _FRACTION) - _BIAS
    if largest == 0.0 or _SMALLEST <= exponent <= _LARGEST:
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
