"""Distances between rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from opstep.kernels.math.fastmath import pow  # noqa: A004
from opstep.kernels.matmul.products import batch_offset
from opstep.kernels.pointwise.broadcast import broadcast_shape, broadcast_strides
from opstep.kernels.reduce.runs import RUN, sum_of_terms
from opstep.kernels.rows import cuda_distance as gpu
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType


class cdist(Op):
    """The distance of each row of a from each row of b, in the p-norm.

    a [..., P, M], b [..., R, M]; y [..., P, R]; leading axes broadcast. `p` may be 0 (how many
    elements differ) and inf. The gradient at distance 0 is 0.
    """

    signature = "cdist(a: F, b: F, *, p: float = 2.0)"
    formula = "(sum over k of |a[i, k] - b[j, k]| ** p) ** (1/p)"
    source = "torch.cdist"

    def infer(a, b, *, p):
        if not p >= 0.0:
            raise Mismatch(f"there is no norm with p={p}", "p")
        for at, t in enumerate((a, b)):
            if t.rank < 2:
                raise Mismatch(f"{t} is not a matrix", at)
        if a.shape[-1] != b.shape[-1]:
            raise Mismatch(f"rows of {a} and {b} are not of one length", 1)
        return a.with_shape((*_batch(a, b), a.shape[-2], b.shape[-2]))

    def oracle(a, b, *, p):
        away = np.abs(a[..., :, None, :] - b[..., None, :, :])
        if p == 0:
            return np.where(np.isnan(away), away, away != 0).sum(-1)
        if p == math.inf:
            return away.max(-1, initial=0)
        return np.sum(away**p, -1) ** (1 / p)

    def cpu(a, b, y, *, p):
        shape = _batch(a, b)
        strides = [tuple(broadcast_strides(t.shape[:-2], len(shape))) for t in (a, b)]
        rows, others, n = a.shape[-2], b.shape[-2], a.shape[-1]
        kind = p if p in (0.0, 1.0, 2.0, math.inf) else -1.0
        args = (a, b, y, shape, *strides, len(shape), rows, others, n, p)
        grain = max(1, 8192 // max(1, others * n))
        units = y.size // others if others else 0
        how = (_TERMS.get(kind, _away), kind == math.inf, _ROOTS.get(kind, _as_it_is))
        tiles = partial(gpu.distances, a, b, y, shape, strides, p, *how)
        return Launch(distances(kind), *args, units=units, grain=grain, cuda=tiles)

    def flops(a, b, *, p):
        size = 3 * b.shape[-2]
        for d in (*_batch(a, b), *a.shape[-2:]):
            size = size * d
        return size

    def grad(g, operands, results, grads, *, p):
        (a, b), (y,), (gy,) = operands, results, grads
        if p == 0.0:
            return g.zeros_like(a), g.zeros_like(b)
        away = g.sub(g.unsqueeze(a, axes=[-2]), g.unsqueeze(b, axes=[-3]))
        size, wide = g.abs(away), g.unsqueeze(y, axes=[-1])
        apart = g.not_equal(wide, 0.0)
        scale, gy = g.where(apart, wide, 1.0), g.unsqueeze(gy, axes=[-1])
        if p == math.inf:
            by_away = g.mul(g.where(g.less(size, wide), 0.0, g.sign(away)), gy)
        elif p == 2.0:
            by_away = g.div(g.mul(away, gy), scale)
        else:
            share = g.pow(g.div(g.where(g.greater(size, 0.0), size, 1.0), scale), p - 1.0)
            by_away = g.mul(g.mul(g.sign(away), share), gy)
        by_away = g.where(apart, by_away, 0.0)
        by_a, by_b = g.sum(by_away, axes=[-2]), g.neg(g.sum(by_away, axes=[-3]))
        return g.sum_to(by_a, a), g.sum_to(by_b, b)


def _batch(a, b) -> tuple:
    parts = [TensorType(t.dtype, tuple(t.shape[:-2])) for t in (a, b)]
    return broadcast_shape(*parts)


def _differs(x, other, c):
    away = x - other
    return away if away != away or away == 0.0 else 1.0


def _away(x, other, c):
    return abs(x - other)


def _square(x, other, c):
    return (x - other) * (x - other)


def _power(x, other, c):
    return pow(abs(x - other), c)


def _as_it_is(total, p):
    return total


def _square_root(total, p):
    return math.sqrt(total)


def _inverse_power(total, p):
    return math.pow(total, np.float64(1) / p)


_ROOTS: dict[float, Callable] = {2.0: _square_root, -1.0: _inverse_power}
_TERMS: dict[float, Callable] = {0.0: _differs, 1.0: _away, 2.0: _square, -1.0: _power}


@cache
def distances(kind: float) -> Callable:
    """`kind`: 0, 1, 2, inf, or -1 for any other p."""
    if kind == math.inf:
        return largest_distances
    add = sum_of_terms(_TERMS[kind])
    root = _ROOTS.get(kind, _as_it_is)

    def distances(a, b, y, shape, a_strides, b_strides, rank, rows, others, n, p, lo, hi):
        """Units are rows of a; terms are added in blocks, and these in f64."""
        for unit in range(lo, hi):
            batch = unit // rows
            i = unit - batch * rows
            row = offset(a, (batch_offset(batch, rank, shape, a_strides) * rows + i) * n)
            base = batch_offset(batch, rank, shape, b_strides) * others
            for j in range(others):
                other = offset(b, (base + j) * n)
                total = np.float64(0)
                for k in range(0, n, RUN):
                    total += add(offset(row, k), offset(other, k), p, min(RUN, n - k))
                y[unit * others + j] = root(total, p)

    distances.__name__ = f"distances_{'power' if kind < 0 else int(kind)}"
    return distances


def largest_distances(a, b, y, shape, a_strides, b_strides, rank, rows, others, n, p, lo, hi):
    for unit in range(lo, hi):
        batch = unit // rows
        i = unit - batch * rows
        row = offset(a, (batch_offset(batch, rank, shape, a_strides) * rows + i) * n)
        base = batch_offset(batch, rank, shape, b_strides) * others
        for j in range(others):
            other = offset(b, (base + j) * n)
            top = 0.0
            for k in range(n):
                away = abs(row[k] - other[k])
                top = away if away > top or away != away else top
            y[unit * others + j] = top
