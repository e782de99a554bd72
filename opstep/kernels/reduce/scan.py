"""Cumulative sums and products along an axis.

`exclusive` excludes the element itself, so the first result is 0 (1 for products). `reverse` starts
from the end. Floats are accumulated in f64; integers and bools give i64, as in PyTorch.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce import cuda_scan, folds, scans
from opstep.kernels.reduce.scans import Running, running
from opstep.kernels.rules.axes import around, axis_of, want_shape
from opstep.kernels.rules.faults import along_axis, sums_and
from opstep.runtime.device.launch import Scratch
from opstep.runtime.ir.faults import Faults, Rule, infinite
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import boolean, f64, i64
from opstep.runtime.transforms.backward import pull_back


class Scan(Op):
    """Base; a subclass names its fold, or gives its steps: those of ``steps(operands, results,
    **attrs)`` are a running fold, its operands and results, and whether it begins at the end.
    """

    @classmethod
    def steps(cls, operands, results, *, axis, exclusive, reverse):
        yield running(cls.fold_of(operands[0].dtype), exclusive), operands, results, reverse

    @classmethod
    def cpu(cls, *args, **attrs):
        return _launches(cls, scans.scan, args, attrs)

    @classmethod
    def cuda(cls, *args, **attrs):
        return _launches(cls, cuda_scan.scan, args, attrs) if args[0].size else []

    def flops(x, **attrs):
        return x.size


def _launches(op, scan, args, attrs):
    count, shape = len(op.operands), args[0].shape
    where = around(shape, attrs["axis"] % len(shape))
    return [
        launch
        for run, operands, results, reverse in op.steps(args[:count], args[count:], **attrs)
        for launch in scan(run, operands, results, where, reverse)
    ]


class Total(Scan):
    """Base of sums and products."""

    def infer(x, *, axis, exclusive, reverse):
        axis_of(axis, x.rank)
        return x if x.dtype.is_float else x.with_dtype(i64)


def _scanned(accumulate, neutral, x, axis, exclusive, reverse):
    x = np.flip(x, axis) if reverse else x
    y = accumulate(x, axis=axis, dtype=np.float64 if x.dtype.kind == "f" else np.int64)
    if exclusive and y.size:
        y = np.roll(y, 1, axis)
        first = [slice(None)] * y.ndim
        first[axis] = slice(0, 1)
        y[tuple(first)] = neutral
    return np.flip(y, axis) if reverse else y


class cumsum(Total):
    """Cumulative sums along an axis."""

    signature = "cumsum(x: T, *, axis: int, exclusive: bool = false, reverse: bool = false)"
    formula = "y[i] = x[0] + ... + x[i]"
    source = "torch.cumsum, ONNX CumSum"
    faults = sums_and(along_axis)
    fold_of = staticmethod(folds.total)

    def oracle(x, *, axis, exclusive, reverse):
        return _scanned(np.cumsum, 0, x, axis, exclusive, reverse)

    def grad(g, operands, results, grads, *, axis, exclusive, reverse):
        return (g.cumsum(grads[0], axis=axis, exclusive=exclusive, reverse=not reverse),)


class cumprod(Total):
    """Cumulative products along an axis."""

    signature = "cumprod(x: T, *, axis: int, exclusive: bool = false, reverse: bool = false)"
    formula = "y[i] = x[0] * ... * x[i]"
    source = "torch.cumprod"
    faults = Faults(
        along_axis, Rule("0 times infinity", lambda x, **_: bool((x == 0).any()) & infinite(x))
    )
    fold_of = staticmethod(folds.product)

    def oracle(x, *, axis, exclusive, reverse):
        return _scanned(np.cumprod, 1, x, axis, exclusive, reverse)

    def grad(g, operands, results, grads, *, axis, exclusive, reverse):
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
        return (g.cumprod_grad(operands[0], grads[0], **attrs),)


class cumprod_grad(Scan):
    """The gradient of cumprod with respect to x, computed without division, so zeros are safe.

    Its own gradient needs memory for each pair of elements along the axis.
    """

    signature = (
        "cumprod_grad(x: F, gy: F, *, axis: int, exclusive: bool = false, reverse: bool = false)"
    )
    formula = "gx[i] = prod(x[:i]) * s[i], s[i] = gy[i] + x[i+1]*s[i+1]"
    source = "the product rule, collected from the end"

    def infer(x, gy, *, axis, exclusive, reverse):
        axis_of(axis, x.rank)
        want_shape(gy, x, 1)
        return x

    def oracle(x, gy, *, axis, exclusive, reverse):
        if reverse:
            x, gy = np.flip(x, axis), np.flip(gy, axis)
        x, gy = np.moveaxis(x, axis, -1), np.moveaxis(gy, axis, -1)
        n, gx = x.shape[-1], np.zeros_like(x)
        for i in range(n):
            others = np.concatenate([x[..., :i], np.ones_like(x[..., :1]), x[..., i + 1 :]], -1)
            products = np.cumprod(others, axis=-1)
            if exclusive:
                products = np.roll(products, 1, -1)
            from_i = i + 1 if exclusive else i
            gx[..., i] = np.sum(products[..., from_i:] * gy[..., from_i:], axis=-1)
        gx = np.moveaxis(gx, -1, axis)
        return np.flip(gx, axis) if reverse else gx

    @staticmethod
    def steps(operands, results, *, axis, exclusive, reverse):
        """From the end what is passed back, then the products before each."""
        x, _ = operands
        passed = Scratch(f64, x.size)
        yield _passed_back(exclusive), operands, (passed,), not reverse
        yield _products_before, (x, passed), results, reverse

    def flops(x, gy, **attrs):
        return x.size * 4

    def grad(g, operands, results, grads, *, axis, exclusive, reverse):
        def formula(x, gy):
            rank = x.type.rank
            a = axis_of(axis, rank)
            n, order = x.shape[a], [k for k in range(rank) if k != a]
            last = [*order, a]
            back = sorted(range(rank), key=last.__getitem__)
            # [..., i, k]: the product up to k without element i, where result k has that in it
            rows = [g.unsqueeze(g.transpose(v, perm=last), axes=[rank - 1]) for v in (x, gy)]
            itself = g.eye(shape=(n, n), dtype=boolean)
            others = g.where(itself, 1.0, rows[0])
            products = g.cumprod(others, axis=rank, exclusive=exclusive, reverse=reverse)
            keep = g.tril if reverse else g.triu
            beside = int(exclusive) * (-1 if reverse else 1)
            used = keep(g.mul(products, rows[1]), diagonal=beside)
            return g.transpose(g.sum(used, axes=[rank], keepdims=False), perm=back)

        return pull_back(g, formula, operands, grads)


# --- the gradient of products: a state (m, c) is the map from t to m * t + c --------------


def _unchanged():
    return np.float64(1), np.float64(0)


def _then(first, second):
    return first[0] * second[0], second[0] * first[1] + second[1]


def _with_own(x, gy, place):
    factor = np.float64(x)
    return factor, factor * np.float64(gy)


def _from_own_on(x, gy, before, after):
    return before[1] + np.float64(gy)


def _without_own(x, gy, place):
    return np.float64(x) if place > 0 else np.float64(0), np.float64(gy)  # the first meets no other


def _behind_own(x, gy, before, after):
    return before[1]


def _passed_back(exclusive: bool) -> Running:
    """From an element's results, summed with what follows them in their products; the operands are
    x and gy, from the end.
    """
    parts = (_without_own, _then, _behind_own) if exclusive else (_with_own, _then, _from_own_on)
    return Running((f64, f64), _unchanged, *parts)


def _factor(x, passed, place):
    return np.float64(x)


def _times_before(x, passed, before, after):
    return before * passed


_products_before = Running((f64,), folds.one, _factor, folds.times, _times_before)
