"""Norms, and logarithms of sums of exponentials: reductions that are graphs of others."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.reduce.reduce import folded, numpy_axes, reduced, reduced_axes, with_ones
from opstep.kernels.rules.relations import over_axes
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.faults import Faults, Rule
from opstep.runtime.ir.op import Mismatch


class logsumexp(RowComposite):
    """The logarithm of the sum of exponentials, without overflow; -inf if there are no elements."""

    signature = "logsumexp(x: F, *, axes: ints = none, keepdims: bool = false)"
    formula = "m + ln(sum(e**(x - m))), m = max(x)"
    source = "torch.logsumexp, ONNX ReduceLogSumExp"
    faults = Faults(
        over_axes,
        Rule("log of 0: all elements are -inf", lambda x, **_: bool((x == -np.inf).all())),
    )

    def infer(x, *, axes, keepdims):
        return reduced(x, axes, keepdims)

    def oracle(x, *, axes, keepdims):
        with np.errstate(all="ignore"):
            axis = numpy_axes(axes)
            top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
            top = np.where(np.isinf(top), 0.0, top)
            total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
            return total if keepdims else np.squeeze(total, axis=reduced_axes(x, axes))

    def define(g, x, *, axes, keepdims):
        """The maximum is no distance where it is infinite: inf - inf is NaN."""
        if folded(x, axes) == 0:
            return g.log(g.sum(x, axes=axes, keepdims=keepdims))
        top = g.max(x, axes=axes, keepdims=True)
        top = g.where(g.equal(g.abs(top), math.inf), 0.0, top)
        total = g.sum(g.exp(g.sub(x, top)), axes=axes, keepdims=True)
        y = g.add(g.log(total), top)
        return y if keepdims else g.reshape(y, shape=reduced(x.type, axes, False).shape)

    def grad(g, operands, results, grads, *, axes, keepdims):
        (x,), (y,), (gy,) = operands, results, grads
        share = g.exp(g.sub(x, with_ones(g, y, x, axes, keepdims)))
        return (g.mul(share, with_ones(g, gy, x, axes, keepdims)),)

    def flops(x, **attrs):
        return x.size * 4


class norm(RowComposite):
    """The vector norm: p is 1 (sum of magnitudes), 2 (Euclidean) or inf (largest magnitude)."""

    signature = "norm(x: F, *, p: float = 2.0, axes: ints = none, keepdims: bool = false)"
    formula = "sum(|x|**p) ** (1/p)"
    source = "torch.linalg.vector_norm, ONNX ReduceL1 and ReduceL2"
    faults = Faults(over_axes)

    def infer(x, *, p, axes, keepdims):
        if p not in (1.0, 2.0, math.inf):
            raise Mismatch("p is 1, 2 or inf", "p")
        return reduced(x, axes, keepdims)

    def oracle(x, *, p, axes, keepdims):
        axis, size = numpy_axes(axes), np.abs(x)
        if p == math.inf:
            return np.max(size, axis=axis, keepdims=keepdims, initial=0.0)
        if p == 1:
            return np.sum(size, axis=axis, keepdims=keepdims)
        return np.sqrt(np.sum(size * size, axis=axis, keepdims=keepdims))

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
