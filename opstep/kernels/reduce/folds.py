"""What reductions do to single elements: terms, accumulators and results, in plain Python."""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce.reduction import Fold
from opstep.kernels.reduce.runs import product_of, sum_of
from opstep.runtime.device.builtin import bits_to_float, float_to_bits
from opstep.runtime.device.source import by_dtype
from opstep.runtime.ir.types import DType, boolean, f32, f64, i32, i64

# --- sums and products ----------------------------------------------------------------------------


def zero():
    return np.float64(0)


def one():
    return np.float64(1)


def no_count():
    return np.int64(0)


def one_count():
    return np.int64(1)


def wide(v):
    return np.float64(v)


def integer(v):
    return np.int64(v)


def plus(acc, term):
    return acc + term


def times(acc, term):
    return acc * term


def as_it_is(acc, count):
    return acc


def over_count(acc, count):
    return acc / np.float64(count)


def total(dtype: DType) -> Fold:
    if dtype.is_float:
        return Fold("sum", f64, zero, wide, plus, as_it_is, sum_of, in_order=True)
    return Fold("sum", i64, no_count, integer, plus, as_it_is)


def product(dtype: DType) -> Fold:
    if dtype.is_float:
        return Fold("prod", f64, one, wide, times, as_it_is, product_of)
    return Fold("prod", i64, one_count, integer, times, as_it_is)


average = Fold("mean", f64, zero, wide, plus, over_count, sum_of, in_order=True)

# --- extremes -------------------------------------------------------------------------------------
# Floats are compared as integers of the same order, in which NaN is the outermost: integer
# extremes vectorise, those of floats that must not lose a NaN do not.


def _key_f32(v):
    bits = float_to_bits(np.float32(v))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


def _key_f64(v):
    bits = float_to_bits(np.float64(v))
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


def _high_f32(v):
    return np.int32(0x7FFFFFFF) if v != v else _key_f32(v)


def _high_f64(v):
    return 0x7FFFFFFFFFFFFFFF if v != v else _key_f64(v)


@by_dtype(f32=_high_f32, f64=_high_f64)
def high_key(v):
    """An integer that is the larger the larger v is; the largest of all for NaN."""
    return np.int64(v)


def _low_f32(v):
    return np.int32(-0x80000000) if v != v else _key_f32(v)


def _low_f64(v):
    return -0x8000000000000000 if v != v else _key_f64(v)


@by_dtype(f32=_low_f32, f64=_low_f64)
def low_key(v):
    """The same, and the smallest of all for NaN."""
    return np.int64(v)


def _value_f32(acc, count):
    bits = np.int32(acc)
    return bits_to_float(np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)))


def _value_f64(acc, count):
    return bits_to_float(acc ^ ((acc >> 63) & 0x7FFFFFFFFFFFFFFF))


@by_dtype(f32=_value_f32, f64=_value_f64)
def value_of_key(acc, count):
    return acc


def _lowest_f32():
    return np.int32(-0x80000000)


@by_dtype(f32=_lowest_f32)
def lowest():
    return np.int64(-0x8000000000000000)


def _highest_f32():
    return np.int32(0x7FFFFFFF)


@by_dtype(f32=_highest_f32)
def uppermost():
    return np.int64(0x7FFFFFFFFFFFFFFF)


def larger(acc, term):
    return term if term > acc else acc


def smaller(acc, term):
    return term if term < acc else acc


def _key_type(dtype: DType) -> DType:
    return i32 if dtype is f32 else i64


def largest(dtype: DType) -> Fold:
    return Fold("max", _key_type(dtype), lowest, high_key, larger, value_of_key)


def smallest(dtype: DType) -> Fold:
    return Fold("min", _key_type(dtype), uppermost, low_key, smaller, value_of_key)


# --- truth ----------------------------------------------------------------------------------------


def no():
    return np.uint8(0)


def yes():
    return np.uint8(1)


def truth(v):
    return np.uint8(v != 0.0)


def either(acc, term):
    return np.uint8(acc | term)


def both(acc, term):
    return np.uint8(acc & term)


def some(dtype: DType) -> Fold:
    return Fold("any", boolean, no, truth, either, as_it_is)


def every(dtype: DType) -> Fold:
    return Fold("all", boolean, yes, truth, both, as_it_is)
