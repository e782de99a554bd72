"""What the statistics kernels do to a block of numbers that lies in the L1 cache; plain loops that
LLVM vectorises.

Floats are looked at as integers of their width: those of the same order (*keys*, in which -0.0 is
below 0.0), and those of their size without the sign.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.builtin import bits_to_float, float_to_bits, offset
from opstep.runtime.device.convert import from_bf16, from_f16
from opstep.runtime.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, u8
from opstep.runtime.statistics import BINS, LOWEST

LINE = 64  # bins that are looked at together


class Width(NamedTuple):
    """A float type that blocks are looked at in."""

    dtype: DType
    word: Any  # integer of its width
    magnitude: int  # all bits but the sign
    infinity: int  # bits of inf
    fraction: int  # bits of the fraction
    bias: int  # of the exponent


SINGLE = Width(f32, np.int32, 0x7FFFFFFF, 0x7F800000, 23, 127)
DOUBLE = Width(f64, np.int64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 52, 1023)


SINGLES = (f32, f16, bf16, i16, i8, u8, boolean)  # all their values are f32s


def width_of(dtype: DType) -> Width:
    return SINGLE if dtype in SINGLES else DOUBLE


# --- widening -------------------------------------------------------------------------------------


@cache
def stager(dtype: DType):
    """Gives a function that gives a block of x in f32 or f64."""
    if dtype is f32 or dtype is f64:
        return _in_place
    value = {f16: half, bf16: bfloat}.get(dtype, single if dtype in SINGLES else double)

    def stage(x, first, n, block):
        for i in range(n):
            block[i] = value(x[first + i])
        return block

    return stage


def _in_place(x, first, n, block):
    return offset(x, first)


def half(v):
    return from_f16(v)


def bfloat(v):
    return from_bf16(v)


def single(v):
    return np.float32(v)


def double(v):
    return np.float64(v)


# --- bits -----------------------------------------------------------------------------------------


@cache
def scanner(width: Width):
    word, magnitude, infinity = width.word, width.magnitude, width.infinity
    sign = magnitude.bit_length()

    def scan(p, n):
        """(least key, greatest key, zeros, least size of what is not 0)."""
        low, high = word(magnitude), word(-magnitude - 1)
        zeros, least = word(0), word(infinity)
        for i in range(n):
            bits = word(float_to_bits(p[i]))
            size = word(bits & word(magnitude))
            key = word(bits ^ word(word(bits >> sign) & word(magnitude)))
            low = key if key < low else low
            high = key if key > high else high
            zeros = word(zeros + word(size == 0))
            size = word(infinity) if size == 0 else size
            least = size if size < least else least
        return np.int64(low), np.int64(high), np.int64(zeros), np.int64(least)

    return scan


@cache
def counters(width: Width):
    word, magnitude, infinity = width.word, width.magnitude, width.infinity

    def odd(p, n, payload):
        """(NaNs, +inf, -inf, elements of these bits)."""
        nans, above, below, same = word(0), word(0), word(0), word(0)
        for i in range(n):
            bits = word(float_to_bits(p[i]))
            nans = word(nans + word(word(bits & word(magnitude)) > word(infinity)))
            above = word(above + word(bits == word(infinity)))
            below = word(below + word(bits == word(infinity - magnitude - 1)))
            same = word(same + word(bits == word(payload)))
        return np.int64(nans), np.int64(above), np.int64(below), np.int64(same)

    def tiny(p, n, normal):
        """How many are not 0 and less than `normal`, the bits of a positive number, in size."""
        found = word(0)
        for i in range(n):
            size = word(word(float_to_bits(p[i])) & word(magnitude))
            found = word(found + (word(size != 0) & word(size < word(normal))))
        return np.int64(found)

    return odd, tiny


@cache
def squeezer(width: Width):
    word, magnitude, infinity = width.word, width.magnitude, width.infinity

    def squeeze(p, n, target):
        """Copies what is finite; returns how many."""
        kept = 0
        for i in range(n):
            target[kept] = p[i]
            kept += word(word(float_to_bits(p[i])) & word(magnitude)) < word(infinity)
        return kept

    return squeeze


@cache
def indexer(width: Width):
    """(the bins of a block, the bin of one size)."""
    word, magnitude, fraction = width.word, width.magnitude, width.fraction
    below = width.bias + LOWEST
    first, last = np.uint8(below & 0xFF), np.uint8((below + BINS - 1) & 0xFF)
    narrow = width is SINGLE  # all exponents fit a byte, where vectors hold the most

    def bin_of(size):
        return min(max((size >> fraction) - below, 0), BINS - 1)

    def index(p, n, bins):
        """The bin of each, that of zeros is the first; bytes behind them up to a whole line hold
        that, too. Returns the number of lines.
        """
        for i in range(n):
            size = word(word(float_to_bits(p[i])) & word(magnitude))
            bins[i] = np.uint8(size >> fraction) if narrow else np.uint8(bin_of(size))
        lines = (n + LINE - 1) // LINE
        for i in range(n, lines * LINE):
            bins[i] = 0
        if narrow:
            for i in range(lines * LINE):
                b = bins[i] if bins[i] > first else first
                bins[i] = np.uint8((b if b < last else last) - first)
        return lines

    return index, bin_of


def extremes(x, first, n):
    """Least and greatest of integers."""
    low, high = x[first], x[first]
    for i in range(first, first + n):
        v = x[i]
        low = v if v < low else low
        high = v if v > high else high
    return np.int64(low), np.int64(high)


def size_of(key):
    """The bits without the sign."""
    return key ^ (key >> 63)


def ordered_single(key):
    """The f64 key of an f32 key."""
    bits = np.int32(key ^ ((key >> 63) & 0x7FFFFFFF))
    return order(float_to_bits(np.float64(bits_to_float(bits))))


def ordered_double(key):
    return key


def order(bits):
    """From the bits of an f64 to its key, and back."""
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
