"""Ops that PyTorch composes of others and we have as one, in AOTAutograd's graphs: the gradient of
running products, of which there would be some thirty that look for zeros and divide, and RMS norm
with its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import unset_fake_temporarily

from opstep.frontends.torch.body import Body
from opstep.frontends.torch.rules.layers import rms_norm as rms_norm_rule
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.op import OPS

Tensor = torch.Tensor
aten = torch.ops.aten
_KEY = DispatchKey.CompositeImplicitAutograd


@contextmanager
def whole_ops() -> Iterator[None]:
    """While the block lasts, these ops are traced as ops of ours."""
    _default_epsilons()
    kept = {op: op.py_kernels.get(_KEY) for op in _WHOLE}
    for op, kernel in _WHOLE.items():
        op.py_kernels[_KEY] = kernel
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, known in kept.items():
            op.py_kernels.pop(_KEY, None)
            if known is not None:
                op.py_kernels[_KEY] = known
            op._dispatch_cache.clear()


# --- running products -----------------------------------------------------------------------------


@torch.library.custom_op("opstep::cumprod_backward", mutates_args=())
def cumprod_backward(grad: Tensor, x: Tensor, axis: int) -> Tensor:
    """As PyTorch runs it, where a graph falls back to it."""
    return aten.cumprod_backward.default(grad, x, axis, x.cumprod(axis)).clone()


@cumprod_backward.register_fake
def _(grad, x, axis):
    return torch.empty_like(x)


@rule("opstep::cumprod_backward.default")
def _cumprod_backward(b: Body, grad, x, axis):
    return b.cumprod_grad(x, grad, axis=axis) if x.type.rank else b.identity(grad)


# --- RMS norm -------------------------------------------------------------------------------------


@torch.library.custom_op("opstep::rms_norm", mutates_args=())
def rms_norm(x: Tensor, shape: Sequence[int], scale: Tensor | None, eps: float) -> Tensor:
    """As PyTorch runs it."""
    return torch.rms_norm(x, shape, scale, eps).clone()


@rms_norm.register_fake
def _(x, shape, scale, eps):
    return torch.empty_like(x)


@torch.library.custom_op("opstep::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], scale: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """By x and by the scale; the latter is empty without one."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, scale) if t is not None]
        y = torch.rms_norm(leaves[0], shape, *leaves[1:], eps=eps)
        found = torch.autograd.grad(y, leaves, grad)
    return found[0].clone(), found[1].clone() if scale is not None else x.new_empty(0)


@rms_norm_backward.register_fake
def _(grad, x, shape, scale, eps):
    return torch.empty_like(x), x.new_empty(0) if scale is None else torch.empty_like(scale)


def _keep(ctx, inputs, output) -> None:
    x, ctx.shape, scale, ctx.eps = inputs
    ctx.save_for_backward(x, scale)


def _pass_back(ctx, grad):
    x, scale = ctx.saved_tensors
    by_x, by_scale = rms_norm_backward(grad, x, ctx.shape, scale, ctx.eps)
    return by_x, None, None if scale is None else by_scale, None


rms_norm.register_autograd(_pass_back, setup_context=_keep)


@cache
def _default_epsilons() -> dict[torch.dtype, float]:
    """Those that PyTorch takes where none is given: for halves that of f32, in some releases."""
    found = {t: torch.finfo(t).eps for t in (torch.float64, torch.float32)}
    for dtype in (torch.bfloat16, torch.float16):
        x = 2.0**-7
        with unset_fake_temporarily():
            y = torch.rms_norm(torch.full((1,), x, dtype=dtype), (1,)).item()
        seen, known = (x / y) ** 2 - x**2, (torch.finfo(dtype).eps, found[torch.float32])
        found[dtype] = min(known, key=lambda eps, seen=seen: abs(eps - seen))
    return found


def _rms_norm(x: Tensor, shape: Sequence[int], scale: Tensor | None = None, eps=None) -> Tensor:
    """As one op, unless types differ."""
    if scale is not None and scale.dtype is not x.dtype:
        return aten.rms_norm.default._op_dk(_KEY, x, shape, scale, eps)
    return rms_norm(x, shape, scale, _default_epsilons()[x.dtype] if eps is None else eps)


rule("opstep::rms_norm.default")(rms_norm_rule)


@rule("opstep::rms_norm_backward.default")
def _rms_norm_backward(b: Body, grad, x, shape, scale, eps):
    attrs = {"shape": list(shape), "epsilon": float(eps)}
    by_x, by_scale = OPS["rms_norm"].grad(b, (x, scale), (), (grad,), **attrs)
    return by_x, b.full(shape=[0], value=0.0, dtype=x.dtype) if by_scale is None else by_scale


_WHOLE = {
    aten.cumprod_backward.default: lambda grad, x, axis, _: cumprod_backward(grad, x, axis),
    aten.rms_norm.default: _rms_norm,
}
