"""Operators in NumPy's f64 that ONNX's reference has not: those of ONNX Runtime's own domain, and a
few that it has not in all versions or for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.frontends.onnx.quantising import along, dequantised

BETTER = ("DequantizeLinear", "GatherElements")  # than ONNX's
SPELLED: dict[str, Callable[..., Any]] = {}


def spelled(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def of(f: Callable[..., Any]) -> Callable[..., Any]:
        SPELLED[op] = f
        return f

    return of


_erf = np.vectorize(math.erf, otypes=[np.float64])


@spelled("Gelu")
def gelu(x):
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


@spelled("BiasGelu")
def bias_gelu(x, bias):
    return gelu(x + bias)


@spelled("FastGelu")
def fast_gelu(x, bias=None):
    x = x if bias is None else x + bias
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@spelled("QuickGelu")
def quick_gelu(x, *, alpha=1.702):
    return x / (1 + np.exp(-alpha * x))


@spelled("BiasAdd")
def bias_add(x, bias, skip):
    return x + bias + skip


@spelled("BiasSplitGelu")
def bias_split_gelu(x, bias):
    first, second = np.split(x + bias, 2, -1)
    return first * gelu(second)


def _turned(x: np.ndarray, turn: int) -> np.ndarray:
    return np.swapaxes(x, -1, -2) if turn else x


@spelled("FusedMatMul")
def fused_matmul(x, y, *, alpha=1.0, transA=0, transB=0):
    return alpha * (_turned(x, transA) @ _turned(y, transB))


@spelled("SimplifiedLayerNormalization")
def simplified_layer_normalization(x, scale, *, epsilon=1e-5, axis=-1, stash_type=1):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


@spelled("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(x, skip, scale, bias=None, *, epsilon=1e-5):
    total = x + skip + (0.0 if bias is None else bias)
    return simplified_layer_normalization(total, scale, epsilon=epsilon), None, None, total


@spelled("SkipLayerNormalization")
def skip_layer_normalization(x, skip, scale, shift=None, bias=None, *, epsilon=1e-12):
    total = x + skip + (0.0 if bias is None else bias)
    away = total - total.mean(-1, keepdims=True)
    y = simplified_layer_normalization(away, scale, epsilon=epsilon)
    return y + (0.0 if shift is None else shift), None, None, total


@spelled("MatMulIntegerToFloat")
def matmul_integer_to_float(x, y, x_scale, y_scale, x_zero=None, y_zero=None, bias=None):
    product = dequantised(x, x_scale, x_zero, -2) @ dequantised(y, y_scale, y_zero, -1)
    return product if bias is None else product + bias


@spelled("DequantizeLinear")
def dequantize_linear(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0):
    return dequantised(x, scale, zero, axis, block_size)


@spelled("GatherElements")
def gather_elements(x, index, *, axis=0):
    axis %= x.ndim
    part = x[tuple(slice(None if k == axis else n) for k, n in enumerate(index.shape))]
    return np.take_along_axis(part, index, axis)


@spelled("QGemm")
def qgemm(x, x_scale, x_zero, w, w_scale, w_zero, bias=None, *_, alpha=1.0, transA=0, transB=0):
    left = _turned(dequantised(x, x_scale, x_zero), transA)
    y = left @ _turned(dequantised(w, w_scale, w_zero, 0 if transB else 1), transB)
    return alpha * (y if bias is None else y + along(bias * x_scale * w_scale, y, 1))


@spelled("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(x, y, y_scale, y_zero=None, bias=None):
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = np.float64(np.float32((high - low) / 255))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    left = np.clip(np.rint(x / scale) + zero, 0, 255)
    return matmul_integer_to_float(left, y, scale, y_scale, zero, y_zero, bias)


@spelled("Attention")
def attention(
    x, weight, bias=None, mask=None, past=None, added=None, *, num_heads, unidirectional=0,
    qkv_hidden_sizes=None, scale=None, mask_filter_value=-10000.0,
):  # fmt: skip
    joined = x @ weight + (0.0 if bias is None else bias)
    each = weight.shape[1] // 3
    sizes = qkv_hidden_sizes or [each] * 3
    q, k, v = np.split(joined, np.cumsum(sizes)[:2], -1)
    return multi_head_attention(
        q, k, v, None, mask, added, num_heads=num_heads, scale=scale,
        unidirectional=unidirectional, mask_filter_value=mask_filter_value,
    )  # fmt: skip


@spelled("MultiHeadAttention")
def multi_head_attention(
    q, k, v, bias=None, mask=None, added=None, *, num_heads, scale=None, unidirectional=0,
    mask_filter_value=-10000.0,
):  # fmt: skip
    if bias is not None:
        parts = np.split(bias, np.cumsum([q.shape[-1], k.shape[-1]]))
        q, k, v = (t + p for t, p in zip((q, k, v), parts, strict=True))
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).swapaxes(1, 2) for t in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if mask is not None:
        mask = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
        scores = scores + np.where(mask != 0, 0.0, mask_filter_value)
    scores = scores if added is None else scores + added
    if unidirectional:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    seen = np.exp(scores - scores.max(-1, keepdims=True))
    y = (seen / seen.sum(-1, keepdims=True)) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
