"""Normalisation of rows by their own statistics: layer_norm, rms_norm, group_norm, and gradients.

Variances are computed from the distances to the mean, in a second pass over a row that is still in
the cache.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from opstep.kernels.rules.axes import volume, want_shape
from opstep.kernels.rules.faults import LAYER_NORM, RMS_NORM, grouped, of_sample
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.faults import Faults, all_elements
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.transforms.backward import pull_back

LONG = 8192  # elements of a row: a GPU's threads hold no more of it and of all its gradients


class RowNorm(Op):
    """Base of layer_norm and rms_norm: a row is what the last axes, of `shape`, hold."""

    inplace = (0,)

    def infer(x, *params, shape, epsilon):
        _check_rows(x, params, shape, epsilon)
        return x

    def flops(x, *params, shape, epsilon):
        return 8 * x.size


class RowNormGrad(RowNorm, RowComposite):
    """Base of gradients of these."""

    inplace = ()

    def infer(x, gy, scale, *, shape, epsilon):
        _check_rows(x, (scale,), shape, epsilon, first=2)
        want_shape(gy, x, 1)
        return x


class layer_norm(RowNorm, RowComposite):
    """Normalises each row (the last axes, of `shape`) to mean 0 and variance 1, then applies scale
    and bias.

    scale and bias have the shape `shape`.
    """

    signature = "layer_norm(x: F, scale: F?, bias: F?, *, shape: dims, epsilon: float = 1e-5)"
    formula = "(x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias"
    source = (
        "torch.nn.functional.layer_norm, ONNX LayerNormalization; "
        "Ba, Kiros and Hinton 2016, arXiv:1607.06450"
    )
    faults = LAYER_NORM

    def define(g, x, scale, bias, *, shape, epsilon):
        return layer_norm_graph(g, x, scale, bias, shape, epsilon)[0]

    def grad(g, operands, results, grads, *, shape, epsilon):
        x, scale, bias = operands
        attrs = {"shape": shape, "epsilon": epsilon}
        n = volume(shape)
        if scale is None or (type(n) is int and n > LONG):
            gx = g.layer_norm_grad(x, grads[0], scale, **attrs)
            g_scale = None
            if scale is not None:
                g_scale = g.sum_to(g.mul(grads[0], g.layer_norm(x, **attrs)), scale)
            return g.to_dtype(gx, x.dtype), g_scale, g.sum_to(grads[0], bias)
        gx, g_scale, g_bias = g.layer_norm_affine_grad(x, grads[0], scale, **attrs)
        return g.to_dtype(gx, x.dtype), g_scale, None if bias is None else g_bias


class layer_norm_grad(RowNormGrad):
    """The gradient of layer_norm with respect to x."""

    signature = "layer_norm_grad(x: F, gy: F, scale: F?, *, shape: dims, epsilon: float = 1e-5)"
    source = "ATen native_layer_norm_backward"
    faults = LAYER_NORM

    def define(g, x, gy, scale, *, shape, epsilon):
        d = gy if scale is None else g.mul(gy, scale)
        away, _, inverse = statistics_of_rows(g, x, shape, epsilon)
        return gradient_of_rows(g, away, inverse, d, shape)


class layer_norm_affine_grad(RowNormGrad):
    """The gradients of layer_norm with respect to x, scale and bias: the latter are sums over rows.

    A few rows are summed at a time, then those sums in f64: the bits depend on the shape alone.
    """

    signature = (
        "layer_norm_affine_grad(x: F, gy: F, scale: F, *, shape: dims, epsilon: float = 1e-5)"
    )
    source = "ATen native_layer_norm_backward"
    results = ("gx", "g_scale", "g_bias")
    exact_on = ()

    def infer(x, gy, scale, *, shape, epsilon):
        return RowNormGrad.infer(x, gy, scale, shape=shape, epsilon=epsilon), scale, scale

    def define(g, x, gy, scale, *, shape, epsilon):
        away, _, inverse = statistics_of_rows(g, x, shape, epsilon)
        gx = gradient_of_rows(g, away, inverse, g.mul(gy, scale), shape)
        return gx, g.sum_to(g.mul(gy, g.mul(away, inverse)), scale), g.sum_to(gy, scale)

    def flops(x, *others, shape, epsilon):
        return 12 * x.size


def gradient_of_rows(g, away, inverse, d, shape):
    """The gradient by x, of that by the result without scale and bias."""
    mean = mean_of_rows(g, shape)
    slope = g.mul(mean(g.mul(d, away)), g.square(inverse))
    return g.mul(g.sub(g.sub(d, mean(d)), g.mul(away, slope)), inverse)


def mean_of_rows(g, shape):
    """The mean of each row; 0 of no elements."""
    of = g.sum if 0 in shape else g.mean
    return partial(of, axes=[*range(-len(shape), 0)], keepdims=True)


def statistics_of_rows(g, x, shape, epsilon):
    """The distance of x from the mean of its row, that mean, and the inverse deviation."""
    mean = mean_of_rows(g, shape)
    centre = mean(x)
    away = g.sub(x, centre)
    return away, centre, g.rsqrt(g.add(mean(g.square(away)), epsilon))


def layer_norm_graph(g, x, scale, bias, shape, epsilon):
    """layer_norm's result, the mean and the inverse deviation of each row."""
    away, *statistics = statistics_of_rows(g, x, shape, epsilon)
    y = g.mul(away, statistics[1])
    y = y if scale is None else g.mul(y, scale)
    return y if bias is None else g.add(y, bias), *statistics


def group_norm_graph(g, x, scale, bias, groups, epsilon):
    """group_norm's result, the mean and the inverse deviation of each group."""
    each, plane = x.shape[1] // groups, volume(x.shape[2:])
    rows = g.reshape(x, shape=(x.shape[0], groups, each, plane))
    scale, bias = (p and g.reshape(p, shape=(groups, each, 1)) for p in (scale, bias))
    away, centre, inverse = statistics_of_rows(g, rows, (each, plane), epsilon)
    y = g.mul(away, inverse if scale is None else g.mul(inverse, scale))
    y = y if bias is None else g.add(y, bias)
    numbers = [g.reshape(v, shape=(x.shape[0], groups)) for v in (centre, inverse)]
    return g.reshape(y, shape=x.shape), *numbers


def quotients_of_rows(x, scale, bias, axes, epsilon):
    """The numbers of `layer_norm_graph` for oracles: of a row without spread, a quotient says more
    than the graph's product with an inverse.
    """
    n = max(1, prod(x.shape[k] for k in axes))
    centre = x.sum(axes, keepdims=True) / n
    away = x - centre
    var = (away * away).sum(axes, keepdims=True) / n + epsilon
    return _scaled(away / np.sqrt(var), scale, bias), centre, var**-0.5


def quotients_of_groups(x, scale, bias, groups, epsilon):
    """Those of `group_norm_graph`."""
    rows = x.reshape(x.shape[0], groups, prod(x.shape[1:]) // groups)
    y, *numbers = quotients_of_rows(rows, None, None, (2,), epsilon)
    wide = (p if p is None else p.reshape(-1, *(1,) * (x.ndim - 2)) for p in (scale, bias))
    return _scaled(y.reshape(x.shape), *wide), *(v[..., 0] for v in numbers)


class rms_norm(RowNorm, RowComposite):
    """Each row (the last axes, of `shape`) divided by its root mean square, then scaled."""

    signature = "rms_norm(x: F, scale: F?, *, shape: dims, epsilon: float = 1e-5)"
    formula = "x / sqrt(mean(x * x) + epsilon) * scale"
    source = (
        "torch.nn.functional.rms_norm, ONNX RMSNormalization; "
        "Zhang and Sennrich 2019, arXiv:1910.07467"
    )
    faults = RMS_NORM

    def define(g, x, scale, *, shape, epsilon):
        mean = mean_of_rows(g, shape)
        y = g.mul(x, g.rsqrt(g.add(mean(g.square(x)), epsilon)))
        return y if scale is None else g.mul(y, scale)

    def grad(g, operands, results, grads, *, shape, epsilon):
        x, scale = operands
        gy = grads[0]
        gx = g.rms_norm_grad(x, gy, scale, shape=shape, epsilon=epsilon)
        g_scale = None
        if scale is not None:
            plain = g.rms_norm(x, shape=shape, epsilon=epsilon)
            g_scale = g.sum_to(g.mul(gy, plain), scale)
        return g.to_dtype(gx, x.dtype), g_scale


class rms_norm_grad(RowNormGrad):
    """The gradient of rms_norm with respect to x."""

    signature = "rms_norm_grad(x: F, gy: F, scale: F?, *, shape: dims, epsilon: float = 1e-5)"
    faults = RMS_NORM

    def define(g, x, gy, scale, *, shape, epsilon):
        mean = mean_of_rows(g, shape)
        d = gy if scale is None else g.mul(gy, scale)
        inverse = g.rsqrt(g.add(mean(g.square(x)), epsilon))
        slope = g.mul(mean(g.mul(d, x)), g.square(inverse))
        return g.mul(g.sub(d, g.mul(x, slope)), inverse)


class group_norm(RowComposite):
    """Normalises each of the `groups` of channels (axis 1) of each sample to mean 0 and variance 1.

    x: [N, C, …]; scale and bias: [C]. With as many groups as channels, this is instance
    normalisation.
    """

    signature = "group_norm(x: F, scale: F?, bias: F?, *, groups: int, epsilon: float = 1e-5)"
    formula = "(x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias"
    source = (
        "torch.nn.functional.group_norm, ONNX GroupNormalization and InstanceNormalization; "
        "Wu and He 2018, arXiv:1803.08494"
    )
    faults = Faults(
        grouped,
        *LAYER_NORM.rules[1:],
        value=lambda site, parts: of_sample(group_norm.oracle, site, parts),
    )
    inplace = (0,)

    def infer(x, scale, bias, *, groups, epsilon):
        if x.rank < 2:
            raise Mismatch(f"{x} has no channels: axis 1 is missing", 0)
        if groups < 1 or (type(x.shape[1]) is int and x.shape[1] % groups):
            raise Mismatch(f"{x.shape[1]} channels do not make {groups} equal groups", "groups")
        for k, p in ((1, scale), (2, bias)):
            if p is not None and p.shape != (x.shape[1],):
                raise Mismatch(f"{p} does not fit the {x.shape[1]} channels of {x}", k)
        _check_epsilon(epsilon)
        return x

    def oracle(x, scale=None, bias=None, *, groups, epsilon):
        return quotients_of_groups(x, scale, bias, groups, epsilon)[0]

    def define(g, x, scale, bias, *, groups, epsilon):
        y, *_ = group_norm_graph(g, x, scale, bias, groups, epsilon)
        return y

    def flops(x, *params, groups, epsilon):
        return 8 * x.size

    def grad(g, operands, results, grads, *, groups, epsilon):
        def formula(x, scale, bias):
            row = x.shape[1] // groups * volume(x.shape[2:])
            rows = g.reshape(x, shape=(x.shape[0], groups, row))
            y = g.reshape(g.layer_norm(rows, shape=(row,), epsilon=epsilon), shape=x.shape)
            wide = (x.shape[1], *(1,) * (x.type.rank - 2))
            y = y if scale is None else g.mul(y, g.reshape(scale, shape=wide))
            return y if bias is None else g.add(y, g.reshape(bias, shape=wide))

        return pull_back(g, formula, operands, grads)


class WithStatistics(RowComposite):
    """Base of ops that also give the mean of each row and what it was multiplied with, as PyTorch's
    native norms do. y has the bits that the op `alone` gives.
    """

    alone: ClassVar[type[Op]]
    results = ("y", "mean", "rstd")
    faults = Faults(all_elements, *LAYER_NORM.rules[1:])

    def flops(x, *params, **attrs):
        return 12 * x.size

    @classmethod
    def grad(cls, g, operands, results, grads, **attrs):
        if grads[1] is None and grads[2] is None:
            return cls.alone.grad(g, operands, results[:1], grads[:1], **attrs)
        return super().grad(g, operands, results, grads, **attrs)


class layer_norm_with_statistics(WithStatistics):
    """layer_norm, and the mean and 1/sqrt(variance + epsilon) of each row.

    These have x's shape with 1 for the axes of a row. For f16 and bf16 they are f32.
    """

    signature = (
        "layer_norm_with_statistics(x: F, scale: F?, bias: F?, *, shape: dims,"
        " epsilon: float = 1e-5)"
    )
    source = "ATen native_layer_norm"
    alone = layer_norm

    def infer(x, scale, bias, *, shape, epsilon):
        y = layer_norm.infer(x, scale, bias, shape=shape, epsilon=epsilon)
        statistic = _statistic(x, (*x.shape[: x.rank - len(shape)], *(1,) * len(shape)))
        return y, statistic, statistic

    def oracle(x, scale=None, bias=None, *, shape, epsilon):
        axes = tuple(range(x.ndim - len(shape), x.ndim))
        return quotients_of_rows(x, scale, bias, axes, epsilon)

    def define(g, x, scale, bias, *, shape, epsilon):
        return layer_norm_graph(g, x, scale, bias, shape, epsilon)


class group_norm_with_statistics(WithStatistics):
    """group_norm, and the mean and 1/sqrt(variance + epsilon) of each group of each sample.

    These are [N, groups]. For f16 and bf16 they are f32.
    """

    signature = (
        "group_norm_with_statistics(x: F, scale: F?, bias: F?, *, groups: int,"
        " epsilon: float = 1e-5)"
    )
    source = "ATen native_group_norm"
    alone = group_norm

    def infer(x, scale, bias, *, groups, epsilon):
        y = group_norm.infer(x, scale, bias, groups=groups, epsilon=epsilon)
        statistic = _statistic(x, (x.shape[0], groups))
        return y, statistic, statistic

    def oracle(x, scale=None, bias=None, *, groups, epsilon):
        return quotients_of_groups(x, scale, bias, groups, epsilon)

    def define(g, x, scale, bias, *, groups, epsilon):
        return group_norm_graph(g, x, scale, bias, groups, epsilon)


def _statistic(x: TensorType, shape) -> TensorType:
    return TensorType(f32 if x.dtype.is_half else x.dtype, tuple(shape))


def _check_rows(x: TensorType, params, shape, epsilon: float, first: int = 1) -> None:
    rank = len(shape)
    if rank == 0:
        raise Mismatch("shape=[] leaves rows of one element", "shape", hint="name x's last dims")
    if x.shape[x.rank - min(rank, x.rank) :] != tuple(shape) or rank > x.rank:
        text = f"[{', '.join(map(str, shape))}]"
        raise Mismatch(f"{x} does not end in {text}", "shape", hint="name its last dims")
    for k, p in enumerate(params, first):
        if p is not None and p.shape != tuple(shape):
            raise Mismatch(f"{p} does not fit rows of {TensorType(x.dtype, tuple(shape))}", k)
    _check_epsilon(epsilon)


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0.0:
        raise Mismatch(f"epsilon={epsilon} is below 0", "epsilon")


def _scaled(y, scale, bias):
    y = y if scale is None else y * scale
    return y if bias is None else y + bias
