"""Reductions that are graphs of others: variances, norms, logarithms of sums of exponentials."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.reduce.reduce import (
    folded,
    number_of,
    reduced,
    with_ones,
)
from opstep.kernels.rules.faults import over_axes
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.faults import Faults, Rule, infinite
from opstep.runtime.ir.op import Mismatch


class OverAxes(RowComposite):
    """Base."""

    faults = Faults(over_axes)

    def infer(x, *, axes, keepdims, **attrs):
        return reduced(x, axes, keepdims)


class Spread(OverAxes):
    """Base of var and std."""

    faults = Faults(
        over_axes,
        Rule(
            "0 / 0: the variance of one element",
            lambda x, *, correction, **_: x.size == 1 and correction == 1,
        ),
        Rule(
            "0 / 0: no more elements than the correction takes away",
            lambda x, *, correction, **_: x.size <= correction,
        ),
        Rule("an infinity among the elements: inf - inf", lambda x, **_: infinite(x)),
    )

    def flops(x, **attrs):
        return x.size * 4


class var(Spread):
    """The variance: the sum of squared distances from the mean, divided by count - correction."""

    signature = "var(x: F, *, axes: ints = none, keepdims: bool = false, correction: int = 1)"
    formula = "sum((x - mean(x))**2) / (count - correction)"
    source = "torch.var"

    def define(g, x, *, axes, keepdims, correction):
        return _variance(g, x, axes, keepdims, correction)

    def grad(g, operands, results, grads, *, axes, keepdims, correction):
        (x,), (gy,) = operands, grads
        distance = g.sub(x, g.mean(x, axes=axes, keepdims=True))
        divisor = _less(g, number_of(g, x, axes, x.dtype), correction)
        share = g.div(g.mul(with_ones(g, gy, x, axes, keepdims), 2.0), divisor)
        return (g.mul(distance, share),)


class std(Spread):
    """The standard deviation: the square root of `var`. Where it is 0, so is its gradient."""

    signature = "std(x: F, *, axes: ints = none, keepdims: bool = false, correction: int = 1)"
    formula = "sqrt(sum((x - mean(x))**2) / (count - correction))"
    source = "torch.std"

    def define(g, x, *, axes, keepdims, correction):
        return g.sqrt(_variance(g, x, axes, keepdims, correction))

    def grad(g, operands, results, grads, *, axes, keepdims, correction):
        (y,), (gy,) = results, grads
        by_var = g.where(g.equal(y, 0.0), 0.0, g.div(g.mul(gy, 0.5), y))
        attrs = {"axes": axes, "keepdims": keepdims, "correction": correction}
        return var.grad(g, operands, results, (by_var,), **attrs)


def _variance(g, x, axes, keepdims, correction):
    away = g.sub(x, g.mean(x, axes=axes, keepdims=True))
    squares = g.sum(g.square(away), axes=axes, keepdims=keepdims)
    return g.div(squares, _less(g, number_of(g, x, axes, squares.dtype), correction))


def _less(g, count, correction: int):
    """count - correction, not below 0."""
    if isinstance(count, float):
        return count - correction if count > correction else 0.0
    return g.maximum(g.sub(count, float(correction)), 0.0)


class logsumexp(OverAxes):
    """The logarithm of the sum of exponentials, without overflow; -inf if there are no elements."""

    signature = "logsumexp(x: F, *, axes: ints = none, keepdims: bool = false)"
    formula = "m + ln(sum(e**(x - m))), m = max(x)"
    source = "torch.logsumexp, ONNX ReduceLogSumExp"
    faults = Faults(
        over_axes,
        Rule("log of 0: all elements are -inf", lambda x, **_: bool((x == -np.inf).all())),
    )

    def define(g, x, *, axes, keepdims):
        """What is taken away is finite: inf - inf is NaN."""
        if folded(x, axes) == 0:
            return g.log(g.sum(x, axes=axes, keepdims=keepdims))
        most = float(np.finfo(x.dtype.numpy).max)
        top = g.clip(g.max(x, axes=axes, keepdims=True), low=-most, high=most)
        total = g.sum(g.exp(g.sub(x, top)), axes=axes, keepdims=True)
        y = g.add(g.log(total), top)
        return y if keepdims else g.reshape(y, shape=reduced(x.type, axes, False).shape)

    def grad(g, operands, results, grads, *, axes, keepdims):
        (x,), (y,), (gy,) = operands, results, grads
        share = g.exp(g.sub(x, with_ones(g, y, x, axes, keepdims)))
        return (g.mul(share, with_ones(g, gy, x, axes, keepdims)),)

    def flops(x, **attrs):
        return x.size * 4


class norm(OverAxes):
    """The vector norm: p is 1 (sum of magnitudes), 2 (Euclidean) or inf (largest magnitude)."""

    signature = "norm(x: F, *, p: float = 2.0, axes: ints = none, keepdims: bool = false)"
    formula = "sum(|x|**p) ** (1/p)"
    source = "torch.linalg.vector_norm, ONNX ReduceL1 and ReduceL2"

    def infer(x, *, p, axes, keepdims):
        if p not in (1.0, 2.0, math.inf):
            raise Mismatch("p is 1, 2 or inf", "p")
        return reduced(x, axes, keepdims)

    def define(g, x, *, p, axes, keepdims):
        how = {"axes": axes, "keepdims": keepdims}
        if p == 2:
            return g.sqrt(g.sum(g.square(x), **how))
        size = g.abs(x)
        return g.max(size, **how) if p == math.inf and folded(x, axes) else g.sum(size, **how)

    def flops(x, **attrs):
        return 2 * x.size

    def grad(g, operands, results, grads, *, p, axes, keepdims):
        (x,), (y,), (gy,) = operands, results, grads
        y, gy = (with_ones(g, v, x, axes, keepdims) for v in (y, gy))
        if p == 1:
            return (g.mul(g.sign(x), gy),)
        if p == 2:
            return (g.where(g.equal(y, 0.0), 0.0, g.mul(g.div(x, y), gy)),)
        hit = g.cast(g.equal(g.abs(x), y), dtype=x.dtype)
        share = g.div(gy, g.sum(hit, axes=axes, keepdims=True))
        return (g.mul(g.mul(hit, g.sign(x)), share),)
