"""Indices of extremes: argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.reduce.cuda_reduction import reduce
from opstep.kernels.reduce.folds import arg_best, high_key, low_key
from opstep.kernels.rules.axes import around, axis_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f32, i32, i64


def rank_up(v):
    """An integer that orders like v: NaN above all, and 0 equal to -0."""
    return high_key(v + 0.0)


def rank_down(v):
    """An integer that orders against v: NaN above all."""
    return ~low_key(v + 0.0)


@cache
def first_in_rows(rank: Callable, name: str) -> Callable:
    """Units are rows: the highest rank, then the first element that has it."""

    def highest(x, n):
        best = rank(x[0])
        for j in range(1, n):
            r = rank(x[j])
            best = r if r > best else best
        return best

    def kernel(x, y, n, lo, hi):
        for row in range(lo, hi):
            here = offset(x, row * n)
            best = highest(here, n)
            j = 0
            while j < n - 1 and rank(here[j]) != best:
                j += 1
            y[row] = j

    kernel.__name__ = name
    return kernel


@cache
def first_in_columns(rank: Callable, name: str) -> Callable:
    """Units are tiles of neighbouring results, whose own elements are `inner` apart."""

    def kernel(x, y, bests, wheres, n, inner, width, lo, hi, lane):
        best = offset(bests, lane * width)
        where = offset(wheres, lane * width)
        across = (inner + width - 1) // width
        for unit in range(lo, hi):
            outer = unit // across
            column = (unit - outer * across) * width
            w = min(width, inner - column)
            for j in range(w):
                best[j] = rank(x[outer * n * inner + column + j])
                where[j] = 0
            for row in range(1, n):
                i = (outer * n + row) * inner + column
                for j in range(w):
                    r = rank(x[i + j])
                    where[j] = row if r > best[j] else where[j]
                    best[j] = r if r > best[j] else best[j]
            for j in range(w):
                y[outer * inner + column + j] = where[j]

    kernel.__name__ = name
    return kernel


TILE = 256


class ArgReduction(Op):
    """Base; a subclass gives `rank`."""

    grad = None

    def infer(x, *, axis, keepdims):
        if axis is None:
            if x.size == 0:
                raise Mismatch(f"{x} has no elements", 0)
            return x.with_shape((1,) * x.rank if keepdims else ()).with_dtype(i64)
        axis = axis_of(axis, x.rank)
        if x.shape[axis] == 0:
            raise Mismatch(f"{x} has no elements along axis {axis}", "axis")
        rest = (1,) if keepdims else ()
        return x.with_shape((*x.shape[:axis], *rest, *x.shape[axis + 1 :])).with_dtype(i64)

    @classmethod
    def cpu(cls, x, y, *, axis, keepdims):
        outer, n, inner = (1, x.size, 1) if axis is None else around(x.shape, axis % x.rank)
        grain = max(1, 32768 // max(1, n * min(inner, TILE)))
        if inner == 1:
            kernel = first_in_rows(cls.rank, cls.name)
            return Launch(kernel, x, y, n, units=outer, grain=grain)
        bests = Scratch(i32 if x.dtype is f32 else i64, TILE, per_lane=True)
        wheres = Scratch(i64, TILE, per_lane=True)
        kernel = first_in_columns(cls.rank, cls.name)
        units = outer * -(-inner // TILE)
        return Launch(kernel, x, y, bests, wheres, n, inner, TILE, units=units, grain=grain)

    @classmethod
    def cuda(cls, x, y, *, axis, keepdims):
        axes = range(x.rank) if axis is None else (axis % x.rank,)
        launches = reduce(arg_best(cls.rank, cls.name), x, y, tuple(axes))
        return launches or cls.cpu(x, y, axis=axis, keepdims=keepdims)

    def flops(x, **attrs):
        return x.size


class argmax(ArgReduction):
    """The index of the largest element (the first, if there are several), or of the first NaN.

    Without an axis, the index into the flattened tensor.
    """

    signature = "argmax(x: N, *, axis: int = none, keepdims: bool = false)"
    source = "torch.argmax, ONNX ArgMax"
    rank = staticmethod(rank_up)

    def oracle(x, *, axis, keepdims):
        return np.argmax(x, axis=axis, keepdims=keepdims)


class argmin(ArgReduction):
    """The index of the smallest element (the first, if there are several), or of the first NaN.

    Without an axis, the index into the flattened tensor.
    """

    signature = "argmin(x: N, *, axis: int = none, keepdims: bool = false)"
    source = "torch.argmin, ONNX ArgMin"
    rank = staticmethod(rank_down)

    def oracle(x, *, axis, keepdims):
        return np.argmin(x, axis=axis, keepdims=keepdims)
