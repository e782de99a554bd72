"""Changing the element type of a tensor; f16 and bf16 by their bits.

Rounding to a narrower float is to nearest, ties to even, once (from f64 or integers to a half
through an f32 that is rounded to odd). Floats become integers by truncation, NaN becomes 0 and what
is out of range the nearest limit. To bool: ``x != 0``, so NaN is true.
"""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.builtin import bits_to_float, float_to_bits, pick
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.types import DType, bf16, f16, i8, i16, i32, i64

# Halves are converted without a branch and in 32 bits, so that vectors stay short.


def from_f16(h):
    rest = np.uint32(h & 0x7FFF)
    number = bits_to_float(np.uint32(rest << 13)) * bits_to_float(np.uint32(0x77800000))
    bits = np.uint32(float_to_bits(number))
    bits = pick(rest >= 0x7C00, np.uint32(bits | 0x7F800000), bits)
    return bits_to_float(np.uint32(bits | np.uint32(np.uint32(h & 0x8000) << 16)))


def from_bf16(h):
    return bits_to_float(np.uint32(np.uint32(h) << 16))


@pinned("f32")
def to_f16(v):
    """The bits of a number that an f16 can hold."""
    bits = np.uint32(float_to_bits(np.float32(v)))
    size = np.uint32(bits & 0x7FFFFFFF)
    found = np.uint32((size >> 13) - (112 << 10))
    small = np.uint32(np.uint32(float_to_bits(bits_to_float(size) + 0.5)) - 0x3F000000)
    found = pick(size < 0x38800000, small, found)
    found = pick(size >= 0x7F800000, np.uint32((size >> 13) & 0x7FFF), found)
    return np.uint16(found | np.uint32(np.uint32(bits >> 16) & 0x8000))


def to_bf16(v):
    return np.uint16(np.uint32(float_to_bits(np.float32(v))) >> 16)


@pinned("f32")
def as_f16(v):
    """Rounded to what an f16 can hold."""
    bits = np.uint32(float_to_bits(np.float32(v)))
    size = np.uint32(bits & 0x7FFFFFFF)
    found = np.uint32((size + 0xFFF + ((size >> 13) & 1)) & 0xFFFFE000)
    # below the smallest normal: next to 0.5, the last bit of an f32 is 2**-24
    small = np.uint32(float_to_bits((bits_to_float(size) + 0.5) - 0.5))
    found = pick(size < 0x38800000, small, found)
    found = pick(size >= 0x477FF000, np.uint32(0x7F800000), found)
    found = pick(size > 0x7F800000, np.uint32(size | 0x400000), found)
    return bits_to_float(np.uint32(found | (bits & 0x80000000)))


def as_bf16(v):
    bits = np.uint32(float_to_bits(np.float32(v)))
    found = np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)
    is_nan = np.uint32(bits & 0x7FFFFFFF) > 0x7F800000
    return bits_to_float(pick(is_nan, np.uint32(bits | 0x400000), found))


def round_to_odd(wide):
    """f64 -> f32 such that a later rounding to fewer bits is as if it were the only one."""
    number = np.float32(wide)
    bits = np.int64(float_to_bits(number))
    back = np.float64(number)
    if back != wide and wide == wide:
        if abs(back) > abs(wide):
            bits -= 1
        bits |= 1
    return bits_to_float(np.uint32(bits & 0xFFFFFFFF))


def shortened(n):
    """An i64 as an f64, exactly or, where that has too few bits, on the same side of every half."""
    if -(1 << 53) <= n <= (1 << 53):
        return np.float64(n)
    return np.float64((n & -2048) | (1024 if n & 2047 else 0))


def f16_in(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = from_f16(x[i])


def bf16_in(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = from_bf16(x[i])


def f16_out(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = to_f16(as_f16(np.float32(x[i])))


def bf16_out(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = to_bf16(as_bf16(np.float32(x[i])))


def f16_out_of_wide(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = to_f16(as_f16(round_to_odd(x[i])))


def bf16_out_of_wide(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = to_bf16(as_bf16(round_to_odd(x[i])))


def bf16_out_of_long(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = to_bf16(as_bf16(round_to_odd(shortened(x[i]))))


def plain(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i]


def to_bool(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i] != 0


def half_to_bool(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = (x[i] & 0x7FFF) != 0


def to_integer(x, y, least, most, lo, hi):
    """`least` and `most` are the limits of y's type."""
    for i in range(lo, hi):
        v = np.float64(x[i])
        if v != v:
            y[i] = 0
        elif v <= np.float64(least):
            y[i] = least
        elif v >= np.float64(most):
            y[i] = most
        else:
            y[i] = np.int64(v)


_LIMITS = {t: (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) for t in (i64, i32, i16, i8)}


def limits_of(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    return _LIMITS.get(dtype, (0, 255))


def conversion(x: Arg, y: Arg, temporary) -> list[Launch]:
    """Launches that write `x`, converted, to `y` (equal sizes).

    `temporary(size)` gives an f32 Arg or Scratch for conversions that take two passes.
    """
    a, b, n = x.dtype, y.dtype, x.size
    if a is b or not (a.is_half or b.is_half or b.kind == "b" or (a.is_float and b.is_integer)):
        return [Launch(plain, x, y, units=n)]
    if b.kind == "b":
        return [Launch(half_to_bool if a.is_half else to_bool, x, y, units=n)]
    if a.is_half and b.name == "f32":
        return [Launch(f16_in if a is f16 else bf16_in, x, y, units=n)]
    if a.is_half:
        middle = temporary(n)
        return conversion(x, middle, temporary) + conversion(middle, y, temporary)
    if b.is_half:
        wide = a.name == "f64" or a.itemsize == 8 or a is i32
        kernels = (bf16_out, bf16_out_of_wide) if b is bf16 else (f16_out, f16_out_of_wide)
        kernel = bf16_out_of_long if a is i64 and b is bf16 else kernels[wide]
        return [Launch(kernel, x, y, units=n)]
    least, most = limits_of(b)
    return [Launch(to_integer, x, y, least, most, units=n)]
