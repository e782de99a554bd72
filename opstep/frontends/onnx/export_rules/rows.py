"""Softmax and normalisation, and their gradients."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import RULES, node, rule
from opstep.kernels.rows.norm import group_norm, layer_norm
from opstep.runtime.ir.types import f64

RULES["softmax"] = node("Softmax", axis="axis")
RULES["log_softmax"] = node("LogSoftmax", axis="axis")


@rule("layer_norm")
def _layer_norm(b, t, x, scale, bias, shape, epsilon):
    if t.dtype is f64:  # ONNX's own has statistics in f32
        return layer_norm.define(b, x, scale, bias, shape=shape, epsilon=epsilon)
    if scale is None:
        scale = b.ones(shape=shape, dtype=t.dtype)
    return b.onnx("LayerNormalization", x, scale, bias, out=t, axis=-len(shape), epsilon=epsilon)


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
