"""Running maxima and minima with their places, and running logarithms of sums of exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.math.fastmath import exp, log1p
from opstep.kernels.reduce import folds
from opstep.kernels.reduce.scan import Scan
from opstep.kernels.reduce.scans import Running
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.device.builtin import pick
from opstep.runtime.device.source import by_dtype
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.types import DType, f64, i64


class RunningExtreme(Scan):
    """Base; a subclass gives `beats` and `accumulate`."""

    results = ("values", "indices")

    def infer(x, *, axis):
        axis_of(axis, x.rank)
        return x, x.with_dtype(i64)

    @classmethod
    def oracle(cls, x, *, axis):
        values = cls.accumulate(x, axis=axis)
        places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - axis % x.ndim - 1))
        new = (x == values) | np.isnan(x)
        return values, np.maximum.accumulate(np.where(new, places, 0), axis=axis)

    @classmethod
    def steps(cls, operands, results, *, axis):
        yield extremes(cls.beats, operands[0].dtype), operands, results, False

    def grad(g, operands, results, grads, *, axis):
        if grads[0] is None:
            return (None,)
        x = operands[0]
        gx = g.gather_elements_grad(grads[0], results[1], shape=x.shape, axis=axis)
        return (g.to_dtype(gx, x.dtype),)


def at_least(new, old):
    return new >= old


def at_most(new, old):
    return new <= old


class cummax(RunningExtreme):
    """The largest element so far along an axis, and where the last such one is; NaN from the first
    NaN on.
    """

    signature = "cummax(x: N, *, axis: int)"
    source = "torch.cummax"
    faults = NO_FAULTS
    beats = staticmethod(at_least)
    accumulate = staticmethod(np.maximum.accumulate)


class cummin(RunningExtreme):
    """The smallest element so far along an axis, and where the last such one is; NaN from the first
    NaN on.
    """

    signature = "cummin(x: N, *, axis: int)"
    source = "torch.cummin"
    faults = NO_FAULTS
    beats = staticmethod(at_most)
    accumulate = staticmethod(np.minimum.accumulate)


class logcumsumexp(Scan):
    """The logarithm of the sum of exponentials so far along an axis, without overflow."""

    signature = "logcumsumexp(x: F, *, axis: int)"
    formula = "y[i] = ln(e**x[0] + ... + e**x[i])"
    source = "torch.logcumsumexp"
    faults = NO_FAULTS

    def infer(x, *, axis):
        axis_of(axis, x.rank)
        return x

    def oracle(x, *, axis):
        return np.logaddexp.accumulate(x, axis=axis)

    @staticmethod
    def steps(operands, results, *, axis):
        state = operands[0].dtype, f64
        run = Running(state, _no_exponentials, _one_exponential, _rescaled, _logarithm)
        yield run, operands, results, False

    def flops(x, *, axis):
        return 4 * x.size

    def grad(g, operands, results, grads, *, axis):
        """The sum over k >= i of gy[k] * e**(x[i] - y[k]), of positive and negative gy apart."""
        (x,), (y,), (gy,) = operands, results, grads

        def passed_back(part):
            present = g.greater(part, 0.0)
            size = g.where(present, g.log(g.where(present, part, 1.0)), -math.inf)
            flipped = g.flip(g.sub(size, y), axes=[axis])
            sums = g.flip(g.logcumsumexp(flipped, axis=axis), axes=[axis])
            return g.exp(g.add(sums, x))

        return (g.sub(passed_back(gy), passed_back(g.neg(gy))),)


# --- running folds --------------------------------------------------------------------------------


@cache
def extremes(beats: Callable, dtype: DType) -> Running:
    """States are (value, place)."""
    beaten = -(1 << 63) if beats is at_least else (1 << 63) - 1
    nothing = folds.least if beats is at_least else folds.most

    def start():
        value = nothing()
        return value, np.int64(0)

    def start_of_integers():
        return np.int64(beaten), np.int64(0)

    def load(v, other, place):
        return v, np.int64(place)

    def combine(old, new):
        if new[0] != new[0] or (old[0] == old[0] and beats(new[0], old[0])):
            return new
        return old

    def finish(v, other, before, after):
        return after

    first = start if dtype.is_float else start_of_integers
    return Running((dtype if dtype.is_float else i64, i64), first, load, combine, finish)


# States are (m, sum of e**(x - m)), the sum in f64.


def _no_exponentials():
    top = -1e999  # by itself: literals within tuples do not take the kernel's dtype
    return top, np.float64(0)


def _one_exponential(v, other, place):
    return v, np.float64(1)


def _rescaled(a, b):
    gap = pick(a[0] != b[0], a[0] - b[0], 0.0)
    share = np.float64(exp(-np.abs(gap)))
    total = pick(gap >= 0.0, a[1] + b[1] * share, a[1] * share + b[1])
    return pick(gap >= 0.0, a[0], b[0]), total


def _log_of_single(total):
    return log1p(np.float32(total - np.float64(1)))


@by_dtype(f32=_log_of_single)
def _log_of(total):
    return log1p(total - np.float64(1))


def _logarithm(v, other, before, after):
    return after[0] + _log_of(after[1])
