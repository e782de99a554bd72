"""Definitions by other ops where PyTorch has none, or one that says something else than its kernel
does: what it computes in one kernel. Each takes what the op takes, and gives what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath
from torch._prims_common import get_computation_dtype
from torch.nn import functional

import opstep.frontends.torch.attention  # noqa: F401 - registers the op

aten = torch.ops.aten
COMPOSITIONS: dict[Any, Callable[..., Any]] = {}


def definition(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITIONS[op] = function
        return function

    return registered


# --- transformers in eval mode --------------------------------------------------------------------


@definition(aten._native_multi_head_attention.default)
def multi_head_attention(
    query, key, value, size, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_weights=True, mask_type=None,
):  # fmt: skip
    """With the weights, or an empty tensor."""
    if query is key and key is value:
        qkv = functional.linear(query, qkv_weight, qkv_bias).unflatten(-1, (3, heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        q, k, v = (
            functional.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)
            for x, w, b in parts
        )
    if mask is None and not need_weights:
        y = torch.ops.opstep.attention(q, k, v, None, False, None, False)
        return functional.linear(y.transpose(1, 2).flatten(2), proj_weight, proj_bias), (
            query.new_empty(0)
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

# PyTorch's definitions of these pass on a gradient where x is NaN; its kernels give NaN, or 0.


@definition(aten.elu_backward.default)
@pw_cast_for_opmath
def elu_backward(gy, alpha, scale, input_scale, is_result, x):
    below = x + alpha * scale if is_result else alpha * scale * (x.clamp(max=0) * input_scale).exp()
    return torch.where(x > 0, gy * scale, gy * input_scale * below)


@definition(aten.hardswish_backward.default)
@pw_cast_for_opmath
def hardswish_backward(gy, x):
    return torch.where(x <= -3, 0, torch.where(x >= 3, gy, gy * (x / 3 + 0.5)))


@definition(aten.hardtanh_backward.default)
@pw_cast_for_opmath
def hardtanh_backward(gy, x, low, high):
    return torch.where((x > low) & (x < high), gy, 0)


@definition(aten.smooth_l1_loss_backward.default)
@pw_cast_for_opmath
def smooth_l1_loss_backward(gy, x, target, reduction, beta):
    away = x - target
    slope = torch.where(away.abs() >= beta, away.sign(), away / beta)
    return gy * slope / (away.numel() if reduction == 1 else 1)


def _gated(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The halves of x along an axis, and the gate that the second one is, in the type computed in.

    PyTorch's definitions convert x before they halve it: a pass over memory.
    """
    value, gate = (half.to(get_computation_dtype(x.dtype)) for half in x.chunk(2, axis))
    return value, gate.sigmoid()


@definition(aten.glu.default)
def glu(x, axis=-1):
    value, gate = _gated(x, axis)
    return (value * gate).to(x.dtype)


@definition(aten.glu_backward.default)
def glu_backward(gy, x, axis):
    value, gate = _gated(x, axis)
    by_gate = (1 - gate) * gate * value * gy
    return torch.cat([(gate * gy).to(x.dtype), by_gate.to(x.dtype)], axis)


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


COMPOSITIONS[aten.adaptive_max_pool2d_backward.default] = _adaptive_max_pool_backward(2)
COMPOSITIONS[aten.adaptive_max_pool3d_backward.default] = _adaptive_max_pool_backward(3)


@definition(aten._cdist_backward.default)
def cdist_backward(gy, x, other, p, distances):
    """By the first operand; 0 where two rows are equal."""
    away = x[..., :, None, :] - other[..., None, :, :]
    distances = distances[..., None]
    apart = distances != 0
    scale = torch.where(apart, distances, 1)
    if p == 0:
        return torch.zeros_like(x)
    sign = torch.where(away.isnan(), away, away.sign())
    if p == torch.inf:
        slope = torch.where(away.abs() < distances, 0, sign)
    else:
        slope = sign * (away.abs() / scale) ** (p - 1)
    return torch.where(apart, slope * gy[..., None], 0).sum(-2)


@definition(aten.masked_scatter_backward.default)
def masked_scatter_backward(gy, mask, sizes):
    """By the source, whose first elements went in order to where the mask is true."""
    count = math.prod(sizes)
    taken = mask.expand_as(gy).flatten()
    places = (taken.cumsum(0) - 1).clamp(min=0)
    gradient = torch.where(taken, gy.flatten(), 0)
    return gy.new_zeros(count + 1).index_add(0, places, gradient)[:count].view(sizes)


# --- bags of rows ---------------------------------------------------------------------------------


@definition(aten._embedding_bag.default)
def embedding_bag_max(
    weight, index, offsets, scale_by_freq=False, mode=0, sparse=False, weights=None,
    include_last_offset=False, padding=-1,
):  # fmt: skip
    """With the row that each element is from."""
    if mode != 2:
        return NotImplemented
    bags, count = offsets.shape[0] - include_last_offset, index.shape[0]
    bag_of = _bags(index, offsets[:bags])
    counted = index != padding
    sizes = offsets.new_zeros(bags).index_add(0, bag_of, counted.to(offsets.dtype))
    rows = torch.where(counted[:, None], weight[index], -torch.inf)
    to = bag_of[:, None].expand_as(rows)
    y = rows.new_full((bags, rows.shape[1]), -torch.inf).scatter_reduce(0, to, rows, "amax")
    places = torch.arange(count, device=index.device)[:, None]
    places = torch.where((rows == y[bag_of]) & counted[:, None], places, count - 1)
    first = places.new_full(y.shape, count - 1).scatter_reduce(0, to, places, "amin")
    return torch.where(sizes[:, None] > 0, y, 0), bag_of, sizes, index[first]


@definition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    gy, index, offsets, bag_of, sizes, largest, count, scale_by_freq, mode, sparse, weights,
    padding=-1,
):  # fmt: skip
    if scale_by_freq or sparse:
        return NotImplemented
    zeros = gy.new_zeros(count, gy.shape[1])
    if mode == 2:
        return zeros.scatter_add(0, largest.clamp(min=0), torch.where(sizes[:, None] > 0, gy, 0))
    if not bag_of.shape[0]:  # not counted in the forward
        bag_of = _bags(index, offsets)
    gradient = gy[bag_of]
    if weights is not None:
        gradient = gradient * weights[:, None]
    if mode == 1:
        gradient = gradient / sizes[bag_of].clamp(min=1)[:, None]
    gradient = torch.where((index == padding)[:, None], 0, gradient)
    return zeros.index_add(0, index, gradient)


@definition(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(gy, weight, index, offsets, bag_of, mode, padding=-1):
    if not bag_of.shape[0]:
        bag_of = _bags(index, offsets)
    return torch.where(index == padding, 0, (gy[bag_of] * weight[index]).sum(1))


def _bags(index: Tensor, offsets: Tensor) -> Tensor:
    """Which bag each index is in."""
    places = torch.arange(index.shape[0], dtype=offsets.dtype, device=index.device)
    return torch.searchsorted(offsets, places, right=True) - 1


# --- random numbers -------------------------------------------------------------------------------


@definition(aten.multinomial.default)
def multinomial(x, count, replacement=False, *, generator=None):
    """As PyTorch draws without replacement: the first of events of those rates."""
    if (
        (replacement and count != 1)
        or not 0 < count <= x.shape[-1] <= 1 << 24
        or not x.is_floating_point()
    ):
        return NotImplemented
    rates = (x >= 0) & (x < torch.inf), x.sum(-1) > 0
    for right, what in zip(
        rates, ("a probability is no number from 0 on", "all are 0"), strict=True
    ):
        aten._assert_async.msg(right.all(), f"multinomial: {what}")
    times = aten.exponential.default(torch.empty_like(x), generator=generator)
    return (x / times).topk(count, -1)[1] if count != 1 else (x / times).argmax(-1, keepdim=True)


@definition(aten.bernoulli.default)
@definition(aten.bernoulli.Tensor)
def bernoulli(x, p=None, *, generator=None):
    """PyTorch's own definition draws f32 for probabilities of f64, too."""
    in_place, p = p is not None, x if p is None else p
    aten._assert_async.msg(((p >= 0) & (p <= 1)).all(), "bernoulli: a probability is not in 0..1")
    dtype = p.dtype if p.dtype is torch.float64 else torch.float32
    ordered = x if in_place else torch.empty(x.shape, device=x.device)  # as memory is filled
    return (torch.rand_like(ordered, dtype=dtype) < p).to(x.dtype)


@definition(aten.normal.Tensor_Tensor)
@definition(aten.normal.Tensor_float)
@definition(aten.normal.float_Tensor)
def normal(mean, std: Any = 1.0, *, generator=None):
    if isinstance(std, Tensor):
        aten._assert_async.msg((std >= 0).all(), "normal: a deviation is below 0")
    given = [t for t in (mean, std) if isinstance(t, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in given))
    return torch.randn(shape, dtype=given[0].dtype, device=given[0].device) * std + mean


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


class _Filter(NamedTuple):
    """`weight` of a distance; 0 beyond `reach`."""

    weight: Callable[[Tensor], Tensor]
    reach: float

    def matrix(self, length: int, size: int, corners: bool, scale: float | None, like: Tensor):
        """From an axis of that length to one of that size: its weights are rows of it."""
        if corners:
            step = (length - 1) / (size - 1) if size > 1 else 0.0
        else:
            step = 1 / scale if scale else length / size
        wide = max(step, 1.0)
        dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
        centers = (torch.arange(size, dtype=dtype, device=like.device)[:, None] + 0.5) * step
        places = torch.arange(length, dtype=dtype, device=like.device)
        first = (centers - self.reach * wide + 0.5).trunc().clamp(min=0)
        last = (centers + self.reach * wide + 0.5).trunc().clamp(max=length)
        weights = self.weight((places - centers + 0.5) / wide)
        weights = torch.where((places >= first) & (places < last), weights, 0)
        return weights / weights.sum(1, keepdim=True)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _antialiased(kernel: _Filter) -> Callable[..., Tensor]:
    def resized(x, size, corners, *scales):
        if not x.is_floating_point():
            return NotImplemented
        rows, columns = (
            kernel.matrix(n, m, corners, s, x)
            for n, m, s in zip(x.shape[-2:], size, scales or (None, None), strict=True)
        )
        return (rows @ x.to(rows.dtype) @ columns.mT).to(x.dtype)

    return resized


def _antialiased_backward(kernel: _Filter) -> Callable[..., Tensor]:
    def backward(gy, size, input_size, corners, *scales):
        rows, columns = (
            kernel.matrix(n, m, corners, s, gy)
            for n, m, s in zip(input_size[-2:], size, scales or (None, None), strict=True)
        )
        return (rows.mT @ gy.to(rows.dtype) @ columns).to(gy.dtype)

    return backward


for _op, _gradient, _kernel in (
    (aten._upsample_bilinear2d_aa, aten._upsample_bilinear2d_aa_backward, _Filter(_triangle, 1)),
    (aten._upsample_bicubic2d_aa, aten._upsample_bicubic2d_aa_backward, _Filter(_cubic, 2)),
):
    COMPOSITIONS[_op.default] = _antialiased(_kernel)
    COMPOSITIONS[_gradient.default] = _antialiased_backward(_kernel)
