"""Operators of ONNX Runtime (``com.microsoft``) that its optimiser and its exporters write."""

from __future__ import annotations

from typing import Any

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.layers import gemm, rms_norm, rotated, split_heads
from opstep.frontends.onnx.rules.pointwise import ACTIVATIONS, scaled_swish
from opstep.frontends.onnx.rules.registry import MICROSOFT, add, rule
from opstep.frontends.onnx.rules.spatial import conv
from opstep.runtime.ir.types import i64

rule("SimplifiedLayerNormalization", domain=MICROSOFT)(rms_norm)
for _name, _rule in {
    "Gelu": ACTIVATIONS["Gelu"],
    "BiasGelu": lambda b, x, bias: b.gelu(b.add(x, bias)),
    "QuickGelu": lambda b, x, *, alpha=1.702: scaled_swish(b, x, alpha),
    "BiasAdd": lambda b, x, bias, skip: b.add(b.add(x, bias), skip),
}.items():
    add([_name], _rule, domain=MICROSOFT)


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(b: Body, x, y, *, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    if transBatchA or transBatchB:
        raise Untranslatable("a product whose batches are transposed")
    found = b.matmul(x, y, transpose_a=bool(transA), transpose_b=bool(transB))
    return found if alpha == 1 else b.mul(found, alpha)


def _activated(b: Body, x: Var, name: str, params: Any, alpha: Any = None) -> Var:
    first = (params or [alpha])[0]
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return getattr(b, name.lower())(x)
        case "LeakyRelu":
            return b.leaky_relu(x, slope=0.01 if first is None else first)
        case "Clip":
            return b.clip(x, low=params[0], high=params[1])
        case "HardSigmoid":
            return b.hard_sigmoid(x, alpha=params[0], beta=params[1])
    raise Untranslatable(f"the activation {name}")


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(b: Body, x, y, c=None, *, activation="", activation_alpha=None, **how):
    return _activated(b, gemm(b, x, y, c, **how), activation, None, activation_alpha)


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(
    b: Body, x, w, bias=None, added=None, *, activation="", activation_params=None, **window
):
    y = conv(b, x, w, bias, **window)
    y = y if added is None else b.add(y, added)
    return _activated(b, y, activation, activation_params)


@rule("FastGelu", domain=MICROSOFT)
def fast_gelu(b: Body, x, bias=None):
    return b.gelu(x if bias is None else b.add(x, bias), approximate="tanh")


@rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(b: Body, x, bias):
    first, second = b.split(b.add(x, bias), sections=2, axis=x.type.rank - 1)
    return b.mul(first, b.gelu(second))


def _skipped(b: Body, x: Var, skip: Var, bias: Var | None) -> Var:
    total = b.add(x, skip)
    return total if bias is None else b.add(total, bias)


@rule("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(b: Body, x, skip, scale, shift=None, bias=None, *, epsilon=1e-12):
    total = _skipped(b, x, skip, bias)
    how = {"shape": [x.shape[-1]], "epsilon": epsilon}
    return b.layer_norm(total, scale, shift, **how), None, None, total


@rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(b: Body, x, skip, scale, bias=None, *, epsilon=1e-5):
    total = _skipped(b, x, skip, bias)
    return b.rms_norm(total, scale, shape=[x.shape[-1]], epsilon=epsilon), None, None, total


@rule("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    b: Body, x, positions, cos, sin, *, interleaved=0, num_heads=0, rotary_embedding_dim=0,
    scale=1.0, is_packed_batching=0,
):  # fmt: skip
    """Heads stand in the last axis, or before the sequence."""
    if is_packed_batching:
        raise Untranslatable("packed batches")
    size = rotary_embedding_dim or 2 * cos.shape[-1]
    heads = num_heads or (x.shape[-1] // size if x.type.rank == 3 else 0)
    if positions.type.rank == 1:  # of the first one
        length = x.shape[1] if x.type.rank == 3 else x.shape[2]
        steps = b.iota(shape=[x.shape[0], length], axis=1)
        positions = b.add(steps, b.to(b.reshape(positions, shape=[1, 1]), i64))
    return rotated(b, x, cos, sin, positions, interleaved, heads, rotary_embedding_dim)


@rule("Attention", domain=MICROSOFT)
def attention(
    b: Body, x, weight, bias=None, mask=None, past=None, added=None, *, num_heads,
    unidirectional=0, qkv_hidden_sizes=None, scale=None, mask_filter_value=-10000.0,
    do_rotary=0, rotary_embedding_dim=0, past_present_share_buffer=0,
):  # fmt: skip
    """Projections to queries, keys and values, and attention among them."""
    if past is not None or do_rotary or b.wants(1):
        raise Untranslatable("attention with a past")
    joined = b.matmul(x, weight)
    joined = joined if bias is None else b.add(joined, bias)
    each = weight.shape[1] // 3
    q, k, v = b.split(joined, sizes=qkv_hidden_sizes or [each] * 3, axis=2)
    return _attended(b, q, k, v, num_heads, mask, added, unidirectional, scale, mask_filter_value)


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    b: Body, q, k=None, v=None, bias=None, mask=None, added=None, past_k=None, past_v=None, *,
    num_heads, scale=None, unidirectional=0, mask_filter_value=-10000.0,
):  # fmt: skip
    if k is None or v is None or past_k is not None or b.wants(1):
        raise Untranslatable("attention with packed operands or a past")
    if bias is not None:
        sizes = [q.shape[-1], k.shape[-1], v.shape[-1]]
        parts = b.split(bias, sizes=sizes, axis=0)
        q, k, v = (b.add(t, p) for t, p in zip((q, k, v), parts, strict=True))
    return _attended(b, q, k, v, num_heads, mask, added, unidirectional, scale, mask_filter_value)


def _attended(
    b: Body, q: Var, k: Var, v: Var, heads: int, mask: Var | None, added: Var | None, causal: int,
    scale: float | None, masked: float,
) -> Var:  # fmt: skip
    n, length, _ = q.shape
    size = v.shape[-1]

    if mask is not None:
        if mask.type.rank not in (2, 3) or mask.shape[-1] != k.shape[1]:
            raise Untranslatable("a mask that is not [batch, keys]")
        axes = [1, 2] if mask.type.rank == 2 else [1]
        seen = b.unsqueeze(b.not_equal(mask, 0), axes=axes)
        zero = b.filled([], 0.0, q.dtype)
        more = b.where(seen, zero, masked)
        added = more if added is None else b.add(added, more)
    if causal and added is not None:
        raise Untranslatable("causal attention with a mask")
    how = {"causal": bool(causal), "scale": scale or None}
    q, k, v = (split_heads(b, x, heads) for x in (q, k, v))
    y = b.scaled_dot_product_attention(q, k, v, added, **how)
    return b.reshape(b.transpose(y, perm=[0, 2, 1, 3]), shape=[n, length, size])
