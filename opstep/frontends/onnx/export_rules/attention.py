"""Attention by its formula: ONNX's own came later, and gives NaN to a row that sees nothing."""

from __future__ import annotations

from math import inf

from opstep.frontends.onnx.export_rules import rule, wide
from opstep.frontends.onnx.export_rules.products import swapped
from opstep.kernels.rows.attention import scale_of
from opstep.runtime.ir.types import boolean


def _repeated(b, x, heads):
    """Heads of keys or values, each for several successive heads of queries."""
    own = x.shape[-3]
    if own == heads:
        return x
    times = heads // own
    spread = b.broadcast(b.unsqueeze(x, axes=[-3]), shape=[*x.shape[:-2], times, *x.shape[-2:]])
    return b.shaped(spread, (*x.shape[:-3], heads, *x.shape[-2:]))


def _scale(b, scale, q):
    return scale if scale is not None else scale_of(None, *b.ints(q.shape[-1:]))


def _weights(b, q, k, mask, causal, scale):
    scores = b.mul(b.matmul(q, swapped(b, k)), scale)
    if mask is not None and mask.dtype is boolean:
        scores = b.where(mask, scores, -inf)
    elif mask is not None:
        scores = b.add(scores, mask)
    if causal:
        seen = b.tril(b.ones(shape=scores.shape[-2:], dtype=boolean))
        scores = b.where(seen, scores, -inf)
    weights = b.softmax(scores, axis=-1)
    if mask is None:
        return weights
    nothing = b.equal(b.max(scores, axes=[-1], keepdims=True), -inf)
    return b.where(nothing, 0.0, weights)


@rule("scaled_dot_product_attention")
@wide
def _attention(b, t, q, k, v, mask, causal, scale, enable_gqa):
    if enable_gqa:
        k, v = (_repeated(b, x, q.shape[-3]) for x in (k, v))
    return b.matmul(_weights(b, q, k, mask, causal, _scale(b, scale, q)), v)


@rule("scaled_dot_product_attention_grad")
@wide
def _attention_grad(b, t, q, k, v, gy, mask, causal, scale, enable_gqa):
    keys, values = k, v
    if enable_gqa:
        keys, values = (_repeated(b, x, q.shape[-3]) for x in (k, v))
    factor = _scale(b, scale, q)
    weights = _weights(b, q, keys, mask, causal, factor)
    by_weights = b.matmul(gy, swapped(b, values))
    by_scores = b.mul(b.softmax_grad(weights, by_weights, axis=-1), factor)
    gk = b.matmul(swapped(b, by_scores), q)
    gv = b.matmul(swapped(b, weights), gy)
    if enable_gqa:
        gk, gv = (_narrowed(b, g, x.shape) for g, x in ((gk, k), (gv, v)))
    return b.matmul(by_scores, keys), gk, gv


def _narrowed(b, g, shape):
    times = g.shape[-3] // shape[-3]
    apart = b.shaped(g, (*shape[:-3], shape[-3], times, *shape[-2:]))
    return b.sum(apart, axes=[-3])
