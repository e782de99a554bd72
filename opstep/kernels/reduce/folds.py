"""Folds: what reductions and scans do to single elements, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from opstep.kernels.reduce.runs import product_of, sum_of
from opstep.runtime.device.builtin import bits_to_float, float_to_bits
from opstep.runtime.device.cuda.compiling.names import max_nan, min_nan
from opstep.runtime.device.source import by_dtype
from opstep.runtime.ir.types import DType, boolean, f32, f64, i32, i64


def itself(state):
    return state


class Fold(NamedTuple):
    """A reduction as functions of scalars.

    A state is a number, or a pair of numbers as a tuple, in memory of the dtypes `state`.
    ``start()`` is that of nothing. ``load(v, place)`` makes a term of an element v, which may know
    its place among neighbours that are folded with it. ``combine`` joins two terms, or two states;
    ``widen(term)`` makes a state of what a few terms come to: so a GPU makes a sum in f64, without
    a conversion for each element.
    ``finish(state, count)`` gives the result.

    Only the CPU looks at the others. Where the order of terms matters, as for sums of floats,
    ``together(x, n)`` is what a run of at most `RUN` elements comes to, in an order of its own. If
    the fold is `in_order`, columns are folded in the order that `order_of` gives, which other
    kernels repeat.
    """

    name: str
    state: tuple[DType, ...]
    start: Callable
    load: Callable
    combine: Callable
    finish: Callable
    widen: Callable = itself
    together: Callable | None = None
    in_order: bool = False

    @property
    def pair(self) -> bool:
        """Whether a state is a pair."""
        return len(self.state) > 1


def element(v, place):
    return v


def result(state, count):
    return state


# --- sums and products ----------------------------------------------------------------------------


def zero():
    return np.float64(0)


def one():
    return np.float64(1)


def no_count():
    return np.int64(0)


def one_count():
    return np.int64(1)


def wide(term):
    return np.float64(term)


def wide_element(v, place):
    return np.float64(v)


def integer(v, place):
    return np.int64(v)


def plus(a, b):
    return a + b


def times(a, b):
    return a * b


def over_count(state, count):
    return state / np.float64(count)


def total(dtype: DType, gpu: bool = False) -> Fold:
    if dtype.is_float:
        return Fold("sum", (f64,), zero, element, plus, result, wide, sum_of, in_order=True)
    return Fold("sum", (i64,), no_count, integer, plus, result)


def average(dtype: DType, gpu: bool = False) -> Fold:
    return total(dtype)._replace(name="mean", finish=over_count)


def product(dtype: DType, gpu: bool = False) -> Fold:
    if dtype.is_float:
        return Fold("prod", (f64,), one, wide_element, times, result, together=product_of)
    return Fold("prod", (i64,), one_count, integer, times, result)


# --- extremes -------------------------------------------------------------------------------------
# The CPU compares floats as integers of the same order, in which NaN is the outermost: integer
# extremes vectorise, those of floats that must not lose a NaN do not. A GPU has instructions.


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
    return one_nan(bits_to_float(np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))))


def _value_f64(acc, count):
    return one_nan(bits_to_float(acc ^ ((acc >> 63) & 0x7FFFFFFFFFFFFFFF)))


def one_nan(v):
    """v, and of NaNs the one that arithmetic on a CPU gives most often: an addition of two that
    differ has the bits of either, as the compiler chooses.
    """
    return v if v == v else math.nan


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


def _from_high_key(v, place):
    return high_key(v)


def _from_low_key(v, place):
    return low_key(v)


def least():
    return -1e999


def most():
    return 1e999


def larger_float(a, b):
    return max_nan(a, b)


def smaller_float(a, b):
    return min_nan(a, b)


def largest(dtype: DType, gpu: bool = False) -> Fold:
    if gpu and dtype.is_float:
        return Fold("max", (dtype,), least, element, larger_float, result)
    return Fold("max", (_key_type(dtype),), lowest, _from_high_key, larger, value_of_key)


def smallest(dtype: DType, gpu: bool = False) -> Fold:
    if gpu and dtype.is_float:
        return Fold("min", (dtype,), most, element, smaller_float, result)
    return Fold("min", (_key_type(dtype),), uppermost, _from_low_key, smaller, value_of_key)


def _key_type(dtype: DType) -> DType:
    return i32 if dtype is f32 else i64


# --- truth: in bytes on the CPU, whose vectors hold many; threads of a GPU exchange words ---------


def no():
    return np.uint8(0)


def yes():
    return np.uint8(1)


def truth(v, place):
    return np.uint8(v != 0.0)


def either(acc, term):
    return np.uint8(acc | term)


def both(acc, term):
    return np.uint8(acc & term)


def word_of_truth(v, place):
    return np.int64(v != 0.0)


def either_word(a, b):
    return a | b


def both_words(a, b):
    return a & b


def some(dtype: DType, gpu: bool = False) -> Fold:
    if gpu:
        return Fold("any", (i64,), no_count, word_of_truth, either_word, result)
    return Fold("any", (boolean,), no, truth, either, result)


def every(dtype: DType, gpu: bool = False) -> Fold:
    if gpu:
        return Fold("all", (i64,), one_count, word_of_truth, both_words, result)
    return Fold("all", (boolean,), yes, truth, both, result)


# --- pairs ----------------------------------------------------------------------------------------


def no_index():
    return np.int64(-0x8000000000000000), np.int64(0x7FFFFFFFFFFFFFFF)


def better(a, b):
    """The pair with the higher rank, of equals the one that comes first."""
    if b[0] > a[0] or (b[0] == a[0] and b[1] < a[1]):
        return b
    return a


def index_found(state, count):
    return state[1]


@cache
def arg_best(rank: Callable, name: str) -> Fold:
    """(rank, place) of the element of the highest rank, which is an integer."""

    def load(v, place):
        return np.int64(rank(v)), np.int64(place)

    return Fold(name, (i64, i64), no_index, load, better, index_found)
