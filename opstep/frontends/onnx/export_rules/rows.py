"""Softmax and normalisation, and their gradients."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule, wide
from opstep.kernels.rows.norm import group_norm, layer_norm
from opstep.runtime.ir.types import f64


@rule("softmax")
def _softmax(b, t, x, axis):
    return b.onnx("Softmax", x, out=t, axis=axis)


@rule("log_softmax")
def _log_softmax(b, t, x, axis):
    return b.onnx("LogSoftmax", x, out=t, axis=axis)


# --- rows by their own statistics ---


def _mean(b, x, axes):
    return b.mean(x, axes=axes, keepdims=True)


def _inner(x, shape):
    rank = x.type.rank
    return list(range(rank - len(shape), rank))


def _standard(b, x, axes, epsilon):
    """x without its mean and by its deviation; the mean, and one by the deviation."""
    mean = _mean(b, x, axes)
    away = b.sub(x, mean)
    inverse = b.rsqrt(b.add(_mean(b, b.square(away), axes), epsilon))
    return b.mul(away, inverse), mean, inverse


def _scaled(b, y, scale, bias):
    y = y if scale is None else b.mul(y, scale)
    return y if bias is None else b.add(y, bias)


@rule("layer_norm")
def _layer_norm(b, t, x, scale, bias, shape, epsilon):
    if t.dtype is f64:  # ONNX's own has statistics in f32
        return layer_norm.define(b, x, scale, bias, shape=shape, epsilon=epsilon)
    if scale is None:
        scale = b.ones(shape=shape, dtype=t.dtype)
    return b.onnx("LayerNormalization", x, scale, bias, out=t, axis=-len(shape), epsilon=epsilon)


@rule("layer_norm_affine_grad")
@wide
def _layer_norm_affine_grad(b, t, x, gy, scale, shape, epsilon):
    axes = _inner(x, shape)
    h, _, _ = _standard(b, x, axes, epsilon)
    gx = b.layer_norm_grad(x, gy, scale, shape=shape, epsilon=epsilon)
    rows = list(range(axes[0])) if axes else list(range(x.type.rank))
    if not rows:
        return gx, b.mul(gy, h), gy
    return gx, b.sum(b.mul(gy, h), axes=rows), b.sum(gy, axes=rows)


# --- channels ---


def _channels(b, p, rank):
    return None if p is None else b.shaped(p, (p.shape[0], *[1] * (rank - 2)))


@rule("group_norm")
def _group_norm(b, t, x, scale, bias, groups, epsilon):
    if t.dtype is f64:
        return group_norm.define(b, x, scale, bias, groups=groups, epsilon=epsilon)
    if 0 in x.shape:
        return x
    channels = [x.shape[1]]
    scale = b.ones(shape=channels, dtype=t.dtype) if scale is None else scale
    bias = b.zeros(shape=channels, dtype=t.dtype) if bias is None else bias
    return b.onnx("GroupNormalization", x, scale, bias, out=t, num_groups=groups, epsilon=epsilon)


@rule("batch_norm")
def _batch_norm(b, t, x, scale, bias, mean, var, epsilon):
    if t.dtype is f64:  # ONNX's epsilon is f32
        rank = x.type.rank
        factor = b.mul(b.rsqrt(b.add(var, epsilon)), scale)
        away = b.sub(x, _channels(b, mean, rank))
        return b.add(b.mul(away, _channels(b, factor, rank)), _channels(b, bias, rank))
    return b.onnx("BatchNormalization", x, scale, bias, mean, var, out=t, epsilon=epsilon)


def _others(x):
    return [k for k in range(x.type.rank) if k != 1]


@rule("batch_norm_train")
@wide
def _batch_norm_train(b, t, x, scale, bias, epsilon):
    rank = x.type.rank
    mean = b.mean(x, axes=_others(x), keepdims=True)
    away = b.sub(x, mean)
    var = b.mean(b.square(away), axes=_others(x), keepdims=True)
    y = b.mul(away, b.rsqrt(b.add(var, epsilon)))
    y = _scaled(b, y, _channels(b, scale, rank), _channels(b, bias, rank))
    return y, b.shaped(mean, t[1].shape), b.shaped(var, t[2].shape)


@rule("batch_norm_grad")
@wide
def _batch_norm_grad(b, t, x, scale, gy, mean, var, g_mean, g_var, epsilon):
    rank, others = x.type.rank, _others(x)

    def channels(p):
        return _channels(b, b.to(p, t[0].dtype), rank)

    inverse = channels(b.rsqrt(b.add(var, epsilon)))
    away = b.sub(x, channels(mean))
    h = b.mul(away, inverse)
    g_bias, g_scale = b.sum(gy, axes=others), b.sum(b.mul(gy, h), axes=others)
    count = b.cast(b.extent(of=[x.shape[k] for k in others]), dtype=t[0].dtype)
    passed = b.div(b.add(channels(g_bias), b.mul(h, channels(g_scale))), count)
    gx = b.mul(b.mul(b.sub(gy, passed), inverse), channels(scale))
    if g_mean is not None:
        gx = b.add(gx, b.div(channels(g_mean), count))
    if g_var is not None:
        gx = b.add(gx, b.div(b.mul(b.mul(away, 2.0), channels(g_var)), count))
    return gx, g_scale, g_bias
