"""Batch normalisation over channels (axis 1): with fixed statistics, with those of the batch, and
its gradient.

Means and variances are computed in f64, plane by plane, and combined by the formula of Chan, Golub
and LeVeque, so a large mean does not reduce the accuracy of the variance or the results.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from opstep.kernels.rows import cuda_batchnorm as gpu
from opstep.kernels.rows.channels import (
    COLUMNS,
    channel_factors,
    column_statistics,
    normalise_channels,
    normalised,
    plane_statistics,
    put_channel,
)
from opstep.kernels.rows.cuda_moments import fits_32_bits
from opstep.kernels.rows.rows import centred_dot, row_sum
from opstep.kernels.rules.axes import around, want_shape
from opstep.kernels.rules.pitfalls import BATCH_NORM, BATCH_NORM_TRAIN
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch, thread_a_unit
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, f32, f64
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

    def cpu(x, scale, bias, mean, var, y, *, epsilon):
        channels = x.shape[1]
        factor = Scratch(x.dtype, channels)
        args = (channel_factors, scale, var, factor, epsilon)
        factors = Launch(*args, units=channels, cuda=thread_a_unit)
        return [factors, _normalise(x, mean, factor, bias, y)]

    def cuda(x, scale, bias, mean, var, y, *, epsilon):
        args = (x, scale, bias, mean, var, y)
        if x.size == 0 or not fits_32_bits(x):
            return batch_norm.cpu(*args, epsilon=epsilon)
        return gpu.inference(*args, around(x.shape, 1), epsilon)

    def flops(x, *others, epsilon):
        return 3 * x.size

    def grad(g, operands, results, grads, *, epsilon):
        x, scale, _, mean, var = operands
        gy = grads[0]
        others = [k for k in range(x.type.rank) if k != 1]
        wide = partial(_wide, g, x)
        inverse = g.rsqrt(g.add(var, epsilon))
        factor = g.mul(scale, inverse)
        g_bias = g.sum(gy, axes=others, keepdims=False)
        g_dot = g.sum(g.mul(gy, g.sub(x, wide(mean))), axes=others, keepdims=False)
        g_scale = g.mul(g_dot, inverse)
        g_mean = g.neg(g.mul(g_bias, factor))
        g_var = g.mul(g.mul(g.mul(g_scale, factor), inverse), -0.5)
        found = (g.mul(gy, wide(factor)), g_scale, g_bias, g_mean, g_var)
        return tuple(g.to_dtype(v, o.dtype) for v, o in zip(found, operands, strict=True))


class batch_norm_train(Op):
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

    def oracle(x, scale, bias, *, epsilon):
        others = tuple(k for k in range(x.ndim) if k != 1)
        if x.size == 0:
            nothing = np.full(x.shape[1], np.nan)
            return x.copy(), nothing, nothing
        mean, var = x.mean(others), x.var(others)
        y = batch_norm.oracle(x, scale, bias, mean, var, epsilon=epsilon)
        return y, mean, var

    def cpu(x, scale, bias, y, mean, var, *, epsilon):
        outer, channels, plane = around(x.shape, 1)
        factor, shift = Scratch(x.dtype, channels), Scratch(x.dtype, channels)
        args = (x, scale, bias, mean, var, factor, shift, outer, channels)
        if plane == 1:
            tiles = [Scratch(f64, COLUMNS, per_lane=True) for _ in range(2)]
            grain = max(COLUMNS, 32768 // max(outer, 1))
            first = Launch(column_statistics, *args, epsilon, *tiles, units=channels, grain=grain)
        else:
            grain = max(1, 32768 // max(outer * plane, 1))
            first = Launch(plane_statistics, *args, plane, epsilon, units=channels, grain=grain)
        return [first, _normalise(x, mean, factor, shift, y)]

    def cuda(x, scale, bias, y, mean, var, *, epsilon):
        args = (x, scale, bias, y, mean, var)
        if x.size == 0 or not fits_32_bits(x):
            return batch_norm_train.cpu(*args, epsilon=epsilon)
        return gpu.train(*args, around(x.shape, 1), epsilon, put_channel)

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


class batch_norm_grad(Op):
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

    def oracle(x, scale, gy, mean, var, g_mean=None, g_var=None, *, epsilon):
        others = tuple(k for k in range(x.ndim) if k != 1)
        n = x.size // max(x.shape[1], 1)
        inverse = _along_channels(1 / np.sqrt(var + epsilon), x.ndim)
        away = x - _along_channels(mean, x.ndim)
        g_bias, g_scale = gy.sum(others), (gy * away * inverse).sum(others)
        inner = (
            gy
            - (_along_channels(g_bias, x.ndim) + away * inverse * _along_channels(g_scale, x.ndim))
            / n
        )
        gx = inner * inverse * _along_channels(scale, x.ndim)
        if g_mean is not None:
            gx = (
                gx
                + (_along_channels(g_mean, x.ndim) + 2 * away * _along_channels(g_var, x.ndim)) / n
            )
        return gx, g_scale, g_bias

    def cpu(x, scale, gy, mean, var, g_mean, g_var, gx, g_scale, g_bias, *, epsilon):
        outer, channels, plane = around(x.shape, 1)
        abc = Scratch(x.dtype, 3 * channels)
        args = (x, gy, scale, mean, var, g_mean or mean, g_var or var, g_mean is not None)
        into = (g_scale, g_bias, abc, outer, channels)
        if plane == 1:
            tiles = [Scratch(f64, COLUMNS, per_lane=True) for _ in range(2)]
            grain = max(COLUMNS, 32768 // max(outer, 1))
            sums = Launch(
                column_gradients, *args, *into, epsilon, *tiles, units=channels, grain=grain
            )
        else:
            grain = max(1, 32768 // max(outer * plane, 1))
            sums = Launch(
                plane_gradients, *args, *into, plane, epsilon, units=channels, grain=grain
            )
        last = Launch(combine_gradients, x, gy, mean, abc, gx, channels, plane, units=x.size)
        return [sums, last]

    def cuda(x, scale, gy, mean, var, g_mean, g_var, gx, g_scale, g_bias, *, epsilon):
        into = (gx, g_scale, g_bias)
        if x.size == 0 or not fits_32_bits(x):
            args = (x, scale, gy, mean, var, g_mean, g_var)
            return batch_norm_grad.cpu(*args, *into, epsilon=epsilon)
        args = (g_mean or mean, g_var or var, g_mean is not None)
        shape = around(x.shape, 1)
        return gpu.gradients(
            x, scale, gy, mean, var, args, *into, shape, epsilon, gradients_of_channel
        )

    def grad(g, operands, results, grads, *, epsilon):
        def formula(x, scale, gy, mean, var, g_mean, g_var):
            others = [k for k in range(x.type.rank) if k != 1]
            count = g.extent(of=[x.shape[k] for k in others], dtype=x.dtype)
            wide = partial(_wide, g, x)
            inverse = g.rsqrt(g.add(var, epsilon))
            away = g.sub(x, wide(mean))
            plain = g.mul(away, wide(inverse))
            g_bias = g.sum(gy, axes=others, keepdims=False)
            g_scale = g.sum(g.mul(gy, plain), axes=others, keepdims=False)
            passed = g.add(wide(g_bias), g.mul(plain, wide(g_scale)))
            gx = g.mul(g.sub(gy, g.div(passed, count)), wide(g.mul(scale, inverse)))
            if g_mean is not None:
                of_statistics = g.add(wide(g_mean), g.mul(g.mul(away, 2.0), wide(g_var)))
                gx = g.add(gx, g.div(of_statistics, count))
            return gx, g_scale, g_bias

        return pull_back(g, formula, operands, grads)

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


def _wide(g, x, p):
    """One number a channel, as it broadcasts to x."""
    return g.reshape(p, shape=(x.shape[1], *(1,) * (x.type.rank - 2)))


def _along_channels(p, rank: int):
    return p.reshape((-1,) + (1,) * (rank - 2))


def _normalise(x: Arg, mean, factor: Scratch, bias, y) -> Launch:
    _, channels, plane = around(x.shape, 1)
    args = (normalise_channels, x, mean, factor, bias, y, channels, plane)
    return Launch(*args, units=x.size, cuda=thread_a_unit)


# --- kernels --------------------------------------------------------------------------------------


def gradients_of_channel(
    c, n, dot, total, scale, var, g_mean, g_var, has_g, g_scale, g_bias, abc, channels, epsilon
):
    """From a channel's sums of gy * (x - mean) and of gy: its results, and what makes gx.

    gx = a*gy + b*(x - mean) + c; `abc` holds a, then b, then c of all channels.
    """
    inverse = 1.0 / math.sqrt(np.float64(var[c]) + epsilon)
    slope = scale[c] * inverse
    g_scale[c] = dot * inverse
    g_bias[c] = total
    b = -slope * inverse * inverse * dot / n
    constant = -slope * total / n
    if has_g:
        b += 2.0 * g_var[c] / n
        constant += np.float64(g_mean[c]) / n
    abc[c] = slope
    abc[channels + c] = b
    abc[2 * channels + c] = constant


def plane_gradients(
    x,
    gy,
    scale,
    mean,
    var,
    g_mean,
    g_var,
    has_g,
    g_scale,
    g_bias,
    abc,
    outer,
    channels,
    plane,
    epsilon,
    lo,
    hi,
):
    """Units are channels."""
    for c in range(lo, hi):
        dot = np.float64(0.0)
        total = np.float64(0.0)
        for n in range(outer):
            start = (n * channels + c) * plane
            dot += centred_dot(offset(gy, start), offset(x, start), mean[c], plane)
            total += row_sum(offset(gy, start), plane)
        gradients_of_channel(
            c,
            outer * plane,
            dot,
            total,
            scale,
            var,
            g_mean,
            g_var,
            has_g,
            g_scale,
            g_bias,
            abc,
            channels,
            epsilon,
        )


def column_gradients(
    x,
    gy,
    scale,
    mean,
    var,
    g_mean,
    g_var,
    has_g,
    g_scale,
    g_bias,
    abc,
    outer,
    channels,
    epsilon,
    dots,
    totals,
    lo,
    hi,
    lane,
):
    """As `plane_gradients`, for planes of one element."""
    dot = offset(dots, lane * COLUMNS)
    total = offset(totals, lane * COLUMNS)
    for first in range(lo, hi, COLUMNS):
        count = min(COLUMNS, hi - first)
        for k in range(count):
            dot[k] = 0.0
            total[k] = 0.0
        for n in range(outer):
            row = offset(x, n * channels + first)
            incoming = offset(gy, n * channels + first)
            for k in range(count):
                total[k] += incoming[k]
                dot[k] += incoming[k] * (row[k] - mean[first + k])
        for k in range(count):
            gradients_of_channel(
                first + k,
                outer,
                dot[k],
                total[k],
                scale,
                var,
                g_mean,
                g_var,
                has_g,
                g_scale,
                g_bias,
                abc,
                channels,
                epsilon,
            )


def combine_gradients(x, gy, mean, abc, gx, channels, plane, lo, hi):
    """Units are elements."""
    b = offset(abc, channels)
    e = offset(abc, 2 * channels)
    i = lo
    while i < hi:
        c = i // plane % channels
        if plane == 1:
            count = min(channels - c, hi - i)
            for k in range(count):
                away = x[i + k] - mean[c + k]
                gx[i + k] = abc[c + k] * gy[i + k] + (b[c + k] * away + e[c + k])
        else:
            count = min(plane - i % plane, hi - i)
            centre, slope, by_distance, constant = mean[c], abc[c], b[c], e[c]
            for k in range(i, i + count):
                gx[k] = slope * gy[k] + (by_distance * (x[k] - centre) + constant)
        i += count
