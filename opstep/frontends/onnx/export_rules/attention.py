"""Attention by its formula: ONNX's own came later, and gives NaN to a row that sees nothing."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule, wide
from opstep.kernels.rows.attention import gradients, scale_of, weights_of, widened


def _scale(b, scale, q):
    return scale if scale is not None else scale_of(None, *b.ints(q.shape[-1:]))


@rule("scaled_dot_product_attention")
@wide
def _attention(b, t, q, k, v, mask, causal, scale, enable_gqa):
    if enable_gqa:
        k, v = widened(b, q, k), widened(b, q, v)
    return b.matmul(weights_of(b, b.mul(q, _scale(b, scale, q)), k, mask, causal), v)


@rule("scaled_dot_product_attention_grad")
@wide
def _attention_grad(b, t, q, k, v, gy, mask, causal, scale, enable_gqa):
    attrs = {"causal": causal, "scale": _scale(b, scale, q), "enable_gqa": enable_gqa}
    return gradients(b, q, k, v, gy, mask, False, **attrs)[:3]
