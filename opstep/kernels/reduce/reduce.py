"""Reductions over axes: sums, products, extremes, statistics, norms, all and any.

`axes` lists the axes to reduce (default: all); with `keepdims`, they stay, with size 1. Sums of
floats are accumulated in f64, on the CPU along the last axes in blocks of 512 elements, which are
added in their own type; those of integers and bools in i64, which is also their result type.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce import folds
from opstep.kernels.reduce.cuda_reduction import reduce as gpu_reduce
from opstep.kernels.reduce.folds import Fold
from opstep.kernels.reduce.reduction import fold
from opstep.kernels.rules.axes import axes_of, volume
from opstep.kernels.rules.faults import over_axes, sums_and
from opstep.runtime.ir.faults import NO_FAULTS, Faults, Rule, infinite
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, boolean, i64


def reduced_axes(x, axes) -> tuple[int, ...]:
    """The axes to reduce, counted from the front; raises Mismatch where x lacks one."""
    return tuple(range(len(x.shape))) if axes is None else axes_of(axes, len(x.shape))


def reduced(x: TensorType, axes, keepdims: bool) -> TensorType:
    """x without the axes, or with size 1 there."""
    gone = set(reduced_axes(x, axes))
    if keepdims:
        return x.with_shape(1 if k in gone else d for k, d in enumerate(x.shape))
    return x.with_shape(d for k, d in enumerate(x.shape) if k not in gone)


def folded(x, axes):
    """How many elements make one result; symbolic where the shape is."""
    return volume([x.shape[k] for k in reduced_axes(x, axes)])


def numpy_axes(axes):
    return None if axes is None else tuple(axes)


class Reduction(Op):
    """Base: attributes axes and keepdims, the type kept. A subclass names its fold."""

    def infer(x, *, axes, keepdims, **attrs):
        return reduced(x, axes, keepdims)

    @classmethod
    def cpu(cls, x, y, *, axes, keepdims):
        return fold(cls.fold_of(x.dtype), x, y, reduced_axes(x, axes), folded(x, axes))

    @staticmethod
    def fold_of(dtype, gpu: bool = False) -> Fold:
        raise TypeError("a reduction names its fold")

    @classmethod
    def cuda(cls, x, y, *, axes, keepdims):
        how = cls.fold_of(x.dtype, gpu=True)
        launches = gpu_reduce(how, x, y, reduced_axes(x, axes), folded(x, axes))
        return launches or cls.cpu(x, y, axes=axes, keepdims=keepdims)

    def flops(x, **attrs):
        return x.size


def with_ones(g, value, x, axes, keepdims):
    """`value`, a result of reducing x, in the shape that keepdims=true would have given it."""
    shape = reduced(x.type, axes, True).shape
    return value if keepdims or value.shape == shape else g.reshape(value, shape=shape)


def number_of(g, x, axes, dtype):
    """How many elements were folded: a number, or the value of `extent` where dims are symbolic."""
    n = folded(x, axes)
    if isinstance(n, int):
        return float(n)
    return g.extent(of=[x.shape[k] for k in reduced_axes(x, axes)], dtype=dtype)


class sum(Reduction):
    """The sum, in i64 for integers and bools; 0 if there are no elements."""

    signature = "sum(x: T, *, axes: ints = none, keepdims: bool = false)"
    formula = "x[0] + x[1] + ..."
    source = "torch.sum, ONNX ReduceSum"
    faults = sums_and(over_axes)
    fold_of = staticmethod(folds.total)

    def infer(x, *, axes, keepdims):
        y = reduced(x, axes, keepdims)
        return y if x.dtype.is_float else y.with_dtype(i64)

    def oracle(x, *, axes, keepdims):
        return np.sum(x, axis=numpy_axes(axes), keepdims=keepdims)

    def grad(g, operands, results, grads, *, axes, keepdims):
        (x,), (gy,) = operands, grads
        return (g.broadcast(with_ones(g, gy, x, axes, keepdims), shape=x.shape),)


class mean(Reduction):
    """The arithmetic mean; NaN if there are no elements."""

    signature = "mean(x: F, *, axes: ints = none, keepdims: bool = false)"
    formula = "sum(x) / count"
    source = "torch.mean, ONNX ReduceMean"
    faults = sums_and(over_axes, Rule("0 / 0: the mean of no elements", lambda x, **_: x.size == 0))
    fold_of = staticmethod(folds.average)

    def oracle(x, *, axes, keepdims):
        with np.errstate(all="ignore"):
            total = np.sum(x, axis=numpy_axes(axes), keepdims=keepdims)
            return np.divide(total, float(folded(x, axes)))

    def grad(g, operands, results, grads, *, axes, keepdims):
        (x,), (gy,) = operands, grads
        share = g.div(with_ones(g, gy, x, axes, keepdims), number_of(g, x, axes, x.dtype))
        return (g.broadcast(share, shape=x.shape),)


class prod(Reduction):
    """The product, in i64 for integers; 1 if there are no elements."""

    signature = "prod(x: T, *, axes: ints = none, keepdims: bool = false)"
    formula = "x[0] * x[1] * ..."
    source = "torch.prod, ONNX ReduceProd"
    faults = Faults(
        over_axes, Rule("0 times infinity", lambda x, **_: bool((x == 0).any()) & infinite(x))
    )
    fold_of = staticmethod(folds.product)
    infer = sum.infer

    def oracle(x, *, axes, keepdims):
        return np.prod(x, axis=numpy_axes(axes), keepdims=keepdims)

    def grad(g, operands, results, grads, *, axes, keepdims):
        """Axis by axis; the product of all others is what comes before times what comes after."""
        (x,), (gy,) = operands, grads
        stages = [x]
        for axis in reduced_axes(x, axes):
            stages.append(g.prod(stages[-1], axes=[axis], keepdims=True))
        gradient = with_ones(g, gy, x, axes, keepdims)
        for axis, stage in zip(reduced_axes(x, axes)[::-1], stages[-2::-1], strict=True):
            before = g.cumprod(stage, axis=axis, exclusive=True)
            after = g.cumprod(stage, axis=axis, exclusive=True, reverse=True)
            gradient = g.mul(g.mul(before, after), gradient)
        return (gradient,)


class _Extreme(Reduction):
    """max and min. Equal extremes share the gradient evenly."""

    faults = NO_FAULTS

    def infer(x, *, axes, keepdims):
        if folded(x, axes) == 0 and 0 not in reduced(x, axes, keepdims).shape:
            raise Mismatch(f"{x} has no elements along the axes to reduce", "axes")
        return reduced(x, axes, keepdims)

    def grad(g, operands, results, grads, *, axes, keepdims):
        (x,), (y,), (gy,) = operands, results, grads
        hit = g.equal(x, with_ones(g, y, x, axes, keepdims))
        hit = g.cast(hit, dtype=x.dtype)
        share = g.div(with_ones(g, gy, x, axes, keepdims), g.sum(hit, axes=axes, keepdims=True))
        return (g.mul(hit, share),)


def _extreme(of, x, axes, keepdims):
    """NumPy refuses axes of no elements also where the result has none."""
    how = {"axis": numpy_axes(axes), "keepdims": keepdims}
    nothing = np.sum(x, dtype=x.dtype, **how) if x.size == 0 else None
    return of(x, **how) if nothing is None or nothing.size else nothing


class max(_Extreme):
    """The largest element; NaN if there is one."""

    signature = "max(x: N, *, axes: ints = none, keepdims: bool = false)"
    source = "torch.amax, ONNX ReduceMax"
    fold_of = staticmethod(folds.largest)

    def oracle(x, *, axes, keepdims):
        return _extreme(np.max, x, axes, keepdims)


class min(_Extreme):
    """The smallest element; NaN if there is one."""

    signature = "min(x: N, *, axes: ints = none, keepdims: bool = false)"
    source = "torch.amin, ONNX ReduceMin"
    fold_of = staticmethod(folds.smallest)

    def oracle(x, *, axes, keepdims):
        return _extreme(np.min, x, axes, keepdims)


class any(Reduction):
    """Whether any element is true (not 0); false if there are none."""

    signature = "any(x: T, *, axes: ints = none, keepdims: bool = false)"
    source = "torch.any"
    grad = None
    fold_of = staticmethod(folds.some)

    def infer(x, *, axes, keepdims):
        return reduced(x, axes, keepdims).with_dtype(boolean)

    def oracle(x, *, axes, keepdims):
        return np.any(x, axis=numpy_axes(axes), keepdims=keepdims)


class all(Reduction):
    """Whether all elements are true (not 0); true if there are none."""

    signature = "all(x: T, *, axes: ints = none, keepdims: bool = false)"
    source = "torch.all"
    grad = None
    fold_of = staticmethod(folds.every)
    infer = any.infer

    def oracle(x, *, axes, keepdims):
        return np.all(x, axis=numpy_axes(axes), keepdims=keepdims)
