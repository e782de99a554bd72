"""Folds that are made otherwise on a GPU: extremes as floats, statistics in one pass, places."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.reduce import folds
from opstep.kernels.reduce.cuda_folding import FIRST, POSITION, GpuFold, as_it_is, as_on_cpu
from opstep.runtime.device.cuda.compiling.names import max_nan, min_nan
from opstep.runtime.ir.types import DType, f64, i64


def itself(acc, count, divisor):
    return acc


# --- sums: a few elements in the kernel's dtype, what they give in f64 ----------------------------


def zero():
    return np.float64(0)


def element(v, c):
    return v


def plus(a, b):
    return a + b


def wide(term):
    return np.float64(term)


def over_count(acc, count, divisor):
    return acc / np.float64(count)


def _sum(name: str, load, finish) -> GpuFold:
    return GpuFold(name, f64, 1, zero, load, plus, wide, plus, finish)


average = _sum("mean", element, over_count)


def total(dtype: DType) -> GpuFold:
    return _sum("sum", element, itself) if dtype.is_float else as_on_cpu(folds.total(dtype))


# --- extremes: NaN is the outermost ---------------------------------------------------------------


def least():
    return -1e999


def most():
    return 1e999


def larger(acc, term):
    return max_nan(acc, term)


def smaller(acc, term):
    return min_nan(acc, term)


def largest(dtype: DType) -> GpuFold:
    if not dtype.is_float:
        return as_on_cpu(folds.largest(dtype))
    return GpuFold("max", dtype, 1, least, element, larger, as_it_is, larger, itself)


def smallest(dtype: DType) -> GpuFold:
    if not dtype.is_float:
        return as_on_cpu(folds.smallest(dtype))
    return GpuFold("min", dtype, 1, most, element, smaller, as_it_is, smaller, itself)


# --- truth ----------------------------------------------------------------------------------------


def no():
    return np.int64(0)


def yes():
    return np.int64(1)


def truth(v, c):
    return np.int64(v != 0.0)


def either(acc, term):
    return acc | term


def both(acc, term):
    return acc & term


def some(dtype: DType) -> GpuFold:
    return GpuFold("any", i64, 1, no, truth, either, as_it_is, either, itself)


def every(dtype: DType) -> GpuFold:
    return GpuFold("all", i64, 1, yes, truth, both, as_it_is, both, itself)


# --- pairs ----------------------------------------------------------------------------------------
# Distances from a result's first element, and their squares: one pass, and no cancellation but for
# a first element that is far out itself.


def no_distance():
    return np.float64(0), np.float64(0)


def distance(v, c):
    d = v - c
    return d, d * d


def sums(acc, term):
    return acc[0] + term[0], acc[1] + term[1]


def both_wide(term):
    return np.float64(term[0]), np.float64(term[1])


def variance_of(acc, count, divisor):
    rest = acc[1] - acc[0] * (acc[0] / np.float64(count))
    return (np.float64(0) if rest < 0 else rest) / np.float64(divisor)


def deviation_of(acc, count, divisor):
    return np.sqrt(variance_of(acc, count, divisor))


def _spread(name: str, finish) -> GpuFold:
    return GpuFold(
        *(name, f64, 2, no_distance, distance, sums, both_wide, sums, finish),
        context=FIRST,
    )


variance = _spread("var", variance_of)
deviation = _spread("std", deviation_of)


def no_index():
    return np.int64(-0x8000000000000000), np.int64(0x7FFFFFFFFFFFFFFF)


def better(acc, term):
    """The pair with the higher rank, of equals the one that comes first."""
    if term[0] > acc[0] or (term[0] == acc[0] and term[1] < acc[1]):
        return term
    return acc


def index_found(acc, count, divisor):
    return acc[1]


@cache
def arg_best(rank: Callable, name: str) -> GpuFold:
    """(rank, place) of the element of the highest rank, which is an integer."""

    def load(v, c):
        return np.int64(rank(v)), np.int64(c)

    return GpuFold(
        *(name, i64, 2, no_index, load, better, as_it_is, better, index_found), context=POSITION
    )
