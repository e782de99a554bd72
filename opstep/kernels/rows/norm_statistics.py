"""layer_norm and group_norm that also give the mean of each row and what it was multiplied with, as
PyTorch's native_layer_norm and native_group_norm do. y has the same bits as without them.
"""

from __future__ import annotations

from opstep.kernels.rows.norm import (
    group_norm,
    group_norm_graph,
    layer_norm,
    layer_norm_graph,
    quotients_of_groups,
    quotients_of_rows,
)
from opstep.kernels.rules.axes import volume
from opstep.kernels.rules.faults import LAYER_NORM
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.faults import Faults, all_elements
from opstep.runtime.ir.types import TensorType, f32


class layer_norm_with_statistics(RowComposite):
    """layer_norm, and the mean and 1/sqrt(variance + epsilon) of each row.

    These have x's shape with 1 for the axes of a row. For f16 and bf16 they are f32.
    """

    signature = (
        "layer_norm_with_statistics(x: F, scale: F?, bias: F?, *, shape: dims,"
        " epsilon: float = 1e-5)"
    )
    source = "ATen native_layer_norm"
    results = ("y", "mean", "rstd")
    faults = Faults(all_elements, *LAYER_NORM.rules[1:])

    def infer(x, scale, bias, *, shape, epsilon):
        y = layer_norm.infer(x, scale, bias, shape=shape, epsilon=epsilon)
        statistic = _statistic(x, (*x.shape[: x.rank - len(shape)], *(1,) * len(shape)))
        return y, statistic, statistic

    def oracle(x, scale=None, bias=None, *, shape, epsilon):
        axes = tuple(range(x.ndim - len(shape), x.ndim))
        return quotients_of_rows(x, scale, bias, axes, epsilon)

    def define(g, x, scale, bias, *, shape, epsilon):
        return layer_norm_graph(g, x, scale, bias, shape, epsilon)

    def flops(x, *params, shape, epsilon):
        return 12 * x.size

    def grad(g, operands, results, grads, *, shape, epsilon):
        x, _, mean, rstd = operands[0], *results
        gradients = [None] * 3
        if grads[0] is not None:
            attrs = {"shape": shape, "epsilon": epsilon}
            gradients = list(layer_norm.grad(g, operands, results[:1], grads[:1], **attrs))
        gx = _by_statistics(g, x, mean, rstd, *grads[1:], volume(shape))
        return g.to_dtype(_sum(g, gradients[0], gx), x.dtype), *gradients[1:]


class group_norm_with_statistics(RowComposite):
    """group_norm, and the mean and 1/sqrt(variance + epsilon) of each group of each sample.

    These are [N, groups]. For f16 and bf16 they are f32.
    """

    signature = (
        "group_norm_with_statistics(x: F, scale: F?, bias: F?, *, groups: int,"
        " epsilon: float = 1e-5)"
    )
    source = "ATen native_group_norm"
    results = ("y", "mean", "rstd")
    faults = Faults(all_elements, *LAYER_NORM.rules[1:])

    def infer(x, scale, bias, *, groups, epsilon):
        y = group_norm.infer(x, scale, bias, groups=groups, epsilon=epsilon)
        statistic = _statistic(x, (x.shape[0], groups))
        return y, statistic, statistic

    def oracle(x, scale=None, bias=None, *, groups, epsilon):
        return quotients_of_groups(x, scale, bias, groups, epsilon)

    def define(g, x, scale, bias, *, groups, epsilon):
        return group_norm_graph(g, x, scale, bias, groups, epsilon)

    def flops(x, *params, groups, epsilon):
        return 12 * x.size

    def grad(g, operands, results, grads, *, groups, epsilon):
        x, _, mean, rstd = operands[0], *results
        gradients = [None] * 3
        if grads[0] is not None:
            attrs = {"groups": groups, "epsilon": epsilon}
            gradients = list(group_norm.grad(g, operands, results[:1], grads[:1], **attrs))
        n = x.shape[1] // groups * volume(x.shape[2:])
        rows = g.reshape(x, shape=(x.shape[0], groups, n))
        wide = [None if v is None else g.unsqueeze(v, axes=[2]) for v in (mean, rstd, *grads[1:])]
        gx = _by_statistics(g, rows, *wide, n)
        gx = None if gx is None else g.reshape(gx, shape=x.shape)
        return g.to_dtype(_sum(g, gradients[0], gx), x.dtype), *gradients[1:]


def _statistic(x: TensorType, shape) -> TensorType:
    return TensorType(f32 if x.dtype.is_half else x.dtype, tuple(shape))


def _sum(g, a, b):
    if a is None or b is None:
        return a if b is None else b
    return g.add(a, b)


def _by_statistics(g, x, mean, rstd, g_mean, g_rstd, n):
    """The gradient by x of the mean and of the inverse deviation of its rows of n elements."""
    if g_mean is None and g_rstd is None:
        return None
    count = float(n) if type(n) is int else g.extent(of=[n], dtype=mean.dtype)
    gx = None
    if g_rstd is not None:
        cubed = g.mul(g.mul(rstd, rstd), g.mul(rstd, g_rstd))
        gx = g.neg(g.mul(g.div(cubed, count), g.sub(x, mean)))
    if g_mean is not None:
        gx = _sum(g, gx, g.broadcast(g.div(g_mean, count), shape=x.shape))
    return gx
