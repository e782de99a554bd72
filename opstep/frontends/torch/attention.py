"""Attention as one op in AOTAutograd's graphs, and one in its backward, where PyTorch would have
the ops that it consists of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.autocast_mode import is_autocast_available
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from opstep.frontends.replacing import replaced
from opstep.frontends.torch.body import Body
from opstep.frontends.torch.rules.layers import attention as attention_rule
from opstep.frontends.torch.rules.registry import rule
from opstep.frontends.torch.single import single
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import f32

Tensor = torch.Tensor


_attention_of_torch = functional.scaled_dot_product_attention


class SingleAttention(TorchFunctionMode):
    """While it is entered, attention is traced as `opstep::attention`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _attention_of_torch:
            return _traced(*args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:  # no mode sees what it calls
            # Other threads get the same results from it.
            with replaced(functional, "scaled_dot_product_attention", lambda _: _traced):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _traced(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    kind = query.device.type
    if dropout_p:  # random numbers are PyTorch's: it masks the weights with them
        return _attention_of_torch(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (t.to(dtype) for t in (query, key, value))
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    gqa = enable_gqa and key.shape[-3] != query.shape[-3]
    return torch.ops.opstep.attention(query, key, value, attn_mask, is_causal, scale, gqa)


# --- as an op of PyTorch's ---


def _attended(q, k, v, mask, causal, scale, gqa) -> Tensor:
    return _attention_of_torch(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=gqa)


def _shape(q, k, v, mask, causal, scale, gqa) -> Tensor:
    heads = (t.shape[:-3] if gqa else t.shape[:-2] for t in (q, k, v))
    batch = torch.broadcast_shapes(*heads)
    shape = (*batch, *(q.shape[-3:-2] if gqa else ()), q.shape[-2], v.shape[-1])
    if len(shape) == 4 and q.device.type == "cpu" and q.shape == shape:
        return torch.empty_like(q)  # laid out as PyTorch's kernels do
    if len(shape) != 4 or q.device.type == "cpu":
        return q.new_empty(shape)
    return torch.empty_permuted(shape, (0, 2, 1, 3), dtype=q.dtype, device=q.device)


attention = single(
    "attention", "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, bool gqa",
    _attended, _shape,
)  # fmt: skip


# --- as ops of ours ---


@rule("opstep::attention.default")
def _attention(b: Body, q, k, v, mask, causal, scale, gqa):
    return attention_rule(b, q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


@rule("opstep::attention_backward.default")
def _attention_backward(b: Body, grad, wanted, q, k, v, mask, causal, scale, gqa):
    attrs = {"causal": causal, "scale": scale, "enable_gqa": gqa}
    axes, masked = -3 if gqa else -2, 3 in wanted
    if not masked and q.shape[:axes] == k.shape[:axes] == v.shape[:axes]:
        found = b.scaled_dot_product_attention_grad(q, k, v, grad, mask, **attrs)
        return [found[k] for k in wanted]
    if q.dtype.itemsize == 2:  # each of the ops it is composed of would round
        q, k, v, grad = (b.to(t, f32) for t in (q, k, v, grad))
        mask = b.to(mask, f32) if masked else mask
    op = OPS["scaled_dot_product_attention"]
    found = op.grad(b, (q, k, v, mask), (), (grad,), **attrs)  # pyright: ignore
    return [found[k] for k in wanted]
