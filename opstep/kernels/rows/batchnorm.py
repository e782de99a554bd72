"""Batch normalisation over channels (axis 1): with fixed statistics, with those of the batch, and
its gradient.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.loops import looped
from opstep.kernels.reduce.reduce import number_of
from opstep.kernels.rules.axes import want_shape
from opstep.kernels.rules.faults import BATCH_NORM, BATCH_NORM_TRAIN
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.device.launch import Arg, Held
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.transforms.backward import pull_back


class batch_norm(Op):
    """Normalises each channel of x with fixed statistics: the form for inference.

    x: [N, C, …]; scale, bias, mean, var: [C].
    """

    signature = "batch_norm(x: F, scale: F, bias: F, mean: F, var: F, *, epsilon: float = 1e-5)"
    formula = "(x - mean) / sqrt(var + epsilon) * scale + bias"
    source = (
        "torch.nn.functional.batch_norm, ONNX BatchNormalization; "
        "Ioffe and Szegedy 2015, arXiv:1502.03167"
    )
    inplace = (0,)
    traits = Traits(as_stored=True)
    faults = BATCH_NORM
    per_channel = (1, 2, 3, 4)

    def element(x, scale, bias, mean, var, *, epsilon):
        return None if x.rank == 2 else (normalised, [epsilon])  # no plane to share a root

    def infer(x, scale, bias, mean, var, *, epsilon):
        _check(x, (scale, bias, mean, var), epsilon)
        return x

    def oracle(x, scale, bias, mean, var, *, epsilon):
        scale, bias, mean, var = (_along_channels(p, x.ndim) for p in (scale, bias, mean, var))
        return (x - mean) / np.sqrt(var + epsilon) * scale + bias

    def cpu(*args, epsilon):
        return _launches(looped, *args, epsilon)

    def cuda(*args, epsilon):
        launches = _launches(elementwise, *args, epsilon)
        return launches if all(launches) else batch_norm.cpu(*args, epsilon=epsilon)

    def flops(x, *others, epsilon):
        return 3 * x.size

    def grad(g, operands, results, grads, *, epsilon):
        def formula(x, scale, bias, mean, var):
            wide = partial(_wide, g, x)
            factor = g.mul(scale, g.rsqrt(g.add(var, epsilon)))
            return g.add(g.mul(g.sub(x, wide(mean)), wide(factor)), wide(bias))

        return pull_back(g, formula, operands, grads)


class batch_norm_train(RowComposite):
    """Normalises each channel of x with its mean and variance over the batch: the form for
    training.

    Returns y, and the mean and (biased) variance of each channel. Update running statistics with
    ``<-`` (PyTorch uses the unbiased variance for them: times n/(n - 1)). For f16 and bf16, the
    statistics are f32.
    """

    signature = "batch_norm_train(x: F, scale: F, bias: F, *, epsilon: float = 1e-5)"
    formula = "(x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias"
    source = (
        "torch.nn.functional.batch_norm(training=True), ONNX BatchNormalization(training_mode=1); "
        "Ioffe and Szegedy 2015, arXiv:1502.03167"
    )
    results = ("y", "mean", "var")
    faults = BATCH_NORM_TRAIN

    def infer(x, scale, bias, *, epsilon):
        _check(x, (scale, bias), epsilon)
        statistic = TensorType(f32 if x.dtype.is_half else x.dtype, (x.shape[1],))
        return x, statistic, statistic

    def define(g, x, scale, bias, *, epsilon):
        """`rest` is what a large mean lost when it was rounded."""
        mean = partial(g.mean, axes=_others(x), keepdims=True)
        centre = mean(x)
        away = g.sub(x, centre)
        rest, squares = mean(away), mean(g.square(away))
        var = g.sub(squares, g.square(rest))
        factor = g.mul(g.rsqrt(g.add(var, epsilon)), _wide(g, x, scale))
        y = g.add(g.mul(g.sub(away, rest), factor), _wide(g, x, bias))
        return y, *(g.reshape(v, shape=scale.shape) for v in (centre, var))

    def flops(x, *others, epsilon):
        return 8 * x.size

    def grad(g, operands, results, grads, *, epsilon):
        x, scale, _ = operands
        y, mean, var = results
        gy = g.zeros_like(y) if grads[0] is None else grads[0]
        further = ()
        if grads[1] is not None or grads[2] is not None:
            further = (
                g.zeros_like(p) if gp is None else gp
                for gp, p in zip(grads[1:], (mean, var), strict=True)
            )
        args = (x, scale, gy, mean, var, *further)
        found = g.batch_norm_grad(*args, epsilon=epsilon)
        return tuple(g.to_dtype(v, o.dtype) for v, o in zip(found, operands, strict=True))


class batch_norm_grad(RowComposite):
    """The gradients of batch_norm_train with respect to x, scale and bias, from those with respect
    to y, mean and var.
    """

    signature = (
        "batch_norm_grad(x: F, scale: F, gy: F, mean: F2, var: F2, g_mean: F2?, g_var: F2?, *,"
        " epsilon: float = 1e-5)"
    )
    source = "ATen native_batch_norm_backward"
    results = ("gx", "g_scale", "g_bias")

    def infer(x, scale, gy, mean, var, g_mean, g_var, *, epsilon):
        _check(x, (scale,), epsilon)
        want_shape(gy, x, 2)
        for at, p in enumerate((mean, var, g_mean, g_var), 3):
            if p is not None:
                want_shape(p, scale, at)
        if (g_mean is None) != (g_var is None):
            raise Mismatch("the gradients by mean and by var go together", 5)
        return x, scale, scale

    def define(g, x, scale, gy, mean, var, g_mean, g_var, *, epsilon):
        """gx is a*gy + b*(x - mean) + c, of three numbers a channel."""
        others, wide = _others(x), partial(_wide, g, x)
        n = number_of(g, x, others, gy.dtype)
        inverse = wide(g.rsqrt(g.add(var, epsilon)))
        away = g.sub(x, wide(mean))
        dot = g.sum(g.mul(gy, away), axes=others, keepdims=True)
        total = g.sum(gy, axes=others, keepdims=True)
        slope = g.mul(inverse, wide(scale))
        b = g.div(g.neg(g.mul(g.mul(slope, g.square(inverse)), dot)), n)
        c = g.div(g.neg(g.mul(slope, total)), n)
        if g_mean is not None:
            b = g.add(b, g.div(g.mul(wide(g_var), 2.0), n))
            c = g.add(c, g.div(wide(g_mean), n))
        gx = g.add(g.mul(slope, gy), g.add(g.mul(b, away), c))
        return gx, *(g.reshape(v, shape=scale.shape) for v in (g.mul(dot, inverse), total))

    def flops(x, *others, epsilon):
        return 11 * x.size


def _check(x: TensorType, params: tuple[TensorType, ...], epsilon: float) -> None:
    if x.rank < 2:
        raise Mismatch(f"{x} has no channels: axis 1 is missing", 0)
    for k, p in enumerate(params, 1):
        if p.shape != (x.shape[1],):
            raise Mismatch(
                f"{p} does not fit: {x} has {x.shape[1]} channels",
                k,
                hint=f"one number a channel is wanted: [{x.shape[1]}]",
            )
    if not epsilon >= 0.0:
        raise Mismatch(f"epsilon={epsilon} is below 0", "epsilon")


def _others(x) -> list[int]:
    """The axes but that of the channels."""
    return [k for k in range(x.type.rank) if k != 1]


def _wide(g, x, p):
    """One number a channel, as it broadcasts to x."""
    return g.reshape(p, shape=(x.shape[1], *(1,) * (x.type.rank - 2)))


def _along_channels(p, rank: int):
    return p.reshape((-1,) + (1,) * (rank - 2))


def _launches(loop, x: Arg, scale, bias, mean, var, y, epsilon: float) -> list:
    """By `loop`. Without planes, a factor of each channel is computed once, for all samples."""
    if x.rank == 2:
        factor = Held(f32 if x.dtype.is_half else x.dtype, scale.shape)
        first = loop(factor_of, "channel_factors", (scale, var), factor, [epsilon])
        return [first, loop(moved, "batch_norm", (x, mean, factor, bias), y)]
    shape = (x.shape[1], *(1,) * (x.rank - 2))
    params = [Arg(TensorType(p.dtype, shape), p.slot, p.stored) for p in (scale, bias, mean, var)]
    return [loop(normalised, "batch_norm", (x, *params), y, [epsilon])]


def factor_of(scale, var, epsilon):
    return scale / math.sqrt(var + epsilon)


def moved(x, mean, factor, bias):
    return (x - mean) * factor + bias


def normalised(x, scale, bias, mean, var, epsilon):
    return moved(x, mean, factor_of(scale, var, epsilon), bias)
