"""Definitions by other ops where PyTorch has none: what it computes in one kernel. Each takes what
the op takes, and gives what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten
DEFINITIONS: dict[Any, Callable[..., Any]] = {}


def definition(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        DEFINITIONS[op] = function
        return function

    return registered


# --- transformers in eval mode --------------------------------------------------------------------


@definition(aten._native_multi_head_attention.default)
def multi_head_attention(
    query, key, value, size, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_weights=True, mask_type=None,
):  # fmt: skip
    """With the weights, or an empty tensor."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (
        functional.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in parts
    )
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None:
        if mask_type == 1:  # which keys are padding
            mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask.bool(), -torch.inf)
    weights = scores.softmax(-1)
    y = functional.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return y, query.new_empty(0)
    return y, weights.mean(1) if average_weights else weights


@definition(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    x, size, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
    norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1,
    ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
):  # fmt: skip
    def attended(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(
            x, x, x, size, heads, *weights, mask, need_weights=False, mask_type=mask_type
        )[0]

    def widened(x: Tensor) -> Tensor:
        x = functional.linear(x, ffn_weight_1, ffn_bias_1)
        x = functional.gelu(x) if use_gelu else functional.relu(x)
        return functional.linear(x, ffn_weight_2, ffn_bias_2)

    norms = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))
    for part, (weight, bias) in zip((attended, widened), norms, strict=True):
        if norm_first:
            x = x + part(functional.layer_norm(x, [size], weight, bias, eps))
        else:
            x = functional.layer_norm(x + part(x), [size], weight, bias, eps)
    return x


# --- gradients ------------------------------------------------------------------------------------


@definition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(gw, v, g, norms, axis):
    axes = [k for k in range(v.dim()) if k != axis % v.dim()]
    norms = norms.to(g.dtype)
    along = (gw * v).sum(axes, keepdim=True) / norms
    return g / norms * (gw - v * along / norms), along


def _adaptive_max_pool_backward(n: int) -> Callable[..., Tensor]:
    def backward(gy, x, places):
        """The indices are those of elements within a channel."""
        gx = torch.zeros_like(x).flatten(-n)
        return gx.scatter_add(-1, places.flatten(-n), gy.flatten(-n)).view_as(x)

    return backward


DEFINITIONS[aten.adaptive_max_pool2d_backward.default] = _adaptive_max_pool_backward(2)
DEFINITIONS[aten.adaptive_max_pool3d_backward.default] = _adaptive_max_pool_backward(3)


# --- random numbers -------------------------------------------------------------------------------


@definition(aten.multinomial.default)
def multinomial(x, count, replacement=False, *, generator=None):
    """As PyTorch draws without replacement: the first of events of those rates."""
    if replacement and count != 1:
        return NotImplemented
    times = aten.exponential.default(torch.empty_like(x), generator=generator)
    return (x / times).topk(count, -1)[1] if count != 1 else (x / times).argmax(-1, keepdim=True)


@definition(aten.rrelu_with_noise_functional.default)
def rrelu(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None):
    if training:
        return NotImplemented
    return functional.leaky_relu(x, (lower + upper) / 2), noise


# --- quantisation that is learned -----------------------------------------------------------------


def _quantised(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """x rounded to multiples of the scale, and which elements are within the range."""
    steps = (x * (1 / scale)).round() + zero
    return (steps.clamp(low, high) - zero) * scale, (steps >= low) & (steps <= high)


@definition(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize(x, scale, zero, low, high):
    return _quantised(x, torch.full((), scale, dtype=x.dtype), zero, low, high)


@definition(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_by_tensors(x, scale, zero, enabled, low, high):
    y, mask = _quantised(x, scale, zero, low, high)
    is_on = enabled != 0
    return torch.where(is_on, y, x), mask | ~is_on


@definition(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_channels(x, scale, zero, axis, low, high):
    shape = [-1 if k == axis else 1 for k in range(x.dim())]
    return _quantised(x, scale.view(shape), zero.view(shape), low, high)


# --- resizing with a filter -----------------------------------------------------------------------


def _filtered(
    x: Tensor, axis: int, size: int, corners: bool, scale, kernel, reach: float
) -> Tensor:
    """Along one axis: a product with a matrix that has the kernel's weights in its rows."""
    length = x.shape[axis]
    if corners:
        step = (length - 1) / (size - 1) if size > 1 else 0.0
    else:
        step = 1 / scale if scale else length / size
    wide = max(step, 1.0)
    centers = (torch.arange(size, dtype=x.dtype)[:, None] + 0.5) * step
    places = torch.arange(length, dtype=x.dtype)
    first = (centers - reach * wide + 0.5).trunc().clamp(min=0)
    last = (centers + reach * wide + 0.5).trunc().clamp(max=length)
    weights = kernel((places - centers + 0.5) / wide)
    weights = torch.where((places >= first) & (places < last), weights, 0)
    weights = weights / weights.sum(1, keepdim=True)
    return (x.transpose(axis, -1) @ weights.mT).transpose(axis, -1)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _antialiased(kernel: Callable[[Tensor], Tensor], reach: float) -> Callable[..., Tensor]:
    def resized(x, size, corners, scale_h=None, scale_w=None):
        if not x.is_floating_point():
            return NotImplemented
        wide = x if x.dtype is torch.float64 else x.float()
        wide = _filtered(wide, -1, size[1], corners, scale_w, kernel, reach)
        return _filtered(wide, -2, size[0], corners, scale_h, kernel, reach).to(x.dtype)

    return resized


DEFINITIONS[aten._upsample_bilinear2d_aa.default] = _antialiased(_triangle, 1.0)
DEFINITIONS[aten._upsample_bicubic2d_aa.default] = _antialiased(_cubic, 2.0)
