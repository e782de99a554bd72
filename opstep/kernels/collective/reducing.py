"""Reductions over a group of ranks: all_reduce, reduce_scatter.

The terms of an element are added in the order of the ranks, whoever adds them, so the bits depend
neither on the transport nor on which rank is first. Halves are added in f32 and rounded once. On
more than two GPUs sums of f32 and f64 are added in NCCL's order, the same in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from opstep.kernels.collective import gpus
from opstep.kernels.collective.base import Collective, parts_along, split_dim
from opstep.kernels.rules.faults import elementwise
from opstep.runtime.device.ranks import Ranks
from opstep.runtime.ir.faults import Faults
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import i32

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
_UFUNCS = {
    "sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip


def reduced(parts: Sequence[np.ndarray], reduction: str) -> np.ndarray:
    """The parts of all ranks as one, in their order."""
    dtype = parts[0].dtype
    wide = np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    total = np.array(parts[0], wide)  # of a scalar, too: `astype` may give a number
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            _UFUNCS[reduction](total, part.astype(wide, copy=False), out=total)
        if reduction == "mean":
            np.divide(total, np.array(len(parts), wide), out=total)
    return total.astype(dtype, copy=False)


def _check(x, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise Mismatch(f"reduction is one of {', '.join(REDUCTIONS)}", "reduction")
    if reduction == "mean" and not x.dtype.is_float:
        raise Mismatch(f"a mean of {x} is no integer", "reduction", "cast x to f32 first")


def _grad_of_extremes(g, x, y, gy, over):
    """Gradients of the largest or smallest elements, in equal parts where several are it."""
    held = g.to_dtype(g.equal(x, y), gy.dtype)
    return g.mul(gy, g.div(held, g.all_reduce(held, over=over)))


def _grad_of_product(g, x, gy, over):
    """`gy` times the product of what the other ranks have."""
    all_x = g.all_gather(g.reshape(x, shape=(1, *x.shape)), over=over)
    ones = (1,) * x.type.rank
    rows = g.reshape(g.iota(shape=[over.size], dtype=i32), shape=(over.size, *ones))
    others = g.where(g.equal(rows, g.rank(over=over)), 1.0, all_x)
    return g.mul(gy, g.prod(others, axes=[0], keepdims=False))


class all_reduce(Collective):
    """The sum of x over the ranks of a group, or another reduction: each of them gets it."""

    signature = 'all_reduce(x: N, *, over: axes = none, reduction: str = "sum")'
    formula = "y = x of rank 0 + x of rank 1 + ..."
    source = "torch.distributed.all_reduce"
    choices = {"reduction": REDUCTIONS}
    faults = Faults(elementwise)
    inplace = (0,)

    def infer(x, *, over, reduction):
        _check(x, reduction)
        return x

    def together(xs, *, over, reduction):
        return [reduced(xs, reduction)] * len(xs)

    def joined(ranks: Ranks, x, y, *, over, reduction):
        """Each rank reduces a part of the elements, and gives it to all."""
        flat = x.reshape(-1)
        ends = [flat.size * k // ranks.size for k in range(ranks.size + 1)]
        parts = [flat[a:b] for a, b in pairwise(ends)]
        mine = reduced(ranks.exchange(parts), reduction)
        np.concatenate(ranks.gather(mine, [p.size for p in parts]), out=y.reshape(-1))

    joined_on_gpus = gpus.all_reduced

    def grad(g, operands, results, grads, *, over, reduction):
        (x,), (y,), (gy,) = operands, results, grads
        if reduction in ("sum", "mean"):
            return (g.all_reduce(gy, over=over, reduction=reduction),)
        gy = g.all_reduce(gy, over=over)
        if reduction == "prod":
            return (_grad_of_product(g, x, gy, over),)
        return (_grad_of_extremes(g, x, y, gy, over),)

    def flops(x, *, over, reduction):
        return x.size * (over.size - 1)


class reduce_scatter(Collective):
    """The sum of x over the ranks of a group, or another reduction, of which each rank gets a part:
    the first one the first along `axis`, and so on.
    """

    signature = 'reduce_scatter(x: N, *, axis: int = 0, over: axes = none, reduction: str = "sum")'
    source = "torch.distributed.reduce_scatter_tensor"
    choices = {"reduction": REDUCTIONS}

    def infer(x, *, axis, over, reduction):
        _check(x, reduction)
        return split_dim(x, axis, over)

    def together(xs, *, axis, over, reduction):
        return parts_along(reduced(xs, reduction), axis, len(xs))

    def joined(ranks: Ranks, x, y, *, axis, over, reduction):
        y[...] = reduced(ranks.exchange(parts_along(x, axis, ranks.size)), reduction)

    joined_on_gpus = gpus.reduce_scattered

    def grad(g, operands, results, grads, *, axis, over, reduction):
        (x,), (y,), (gy,) = operands, results, grads
        gy = g.all_gather(gy, axis=axis, over=over)
        if reduction == "sum":
            return (gy,)
        if reduction == "mean":
            return (g.div(gy, float(over.size)),)
        if reduction == "prod":
            return (_grad_of_product(g, x, gy, over),)
        y = g.all_gather(y, axis=axis, over=over)
        return (_grad_of_extremes(g, x, y, gy, over),)

    def flops(x, *, axis, over, reduction):
        return x.size * (over.size - 1) // over.size
