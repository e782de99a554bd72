"""Ops that PyTorch composes of others and we have as one, in AOTAutograd's graphs: the gradient of
running products, of which there would be some thirty that look for zeros and divide, periodic
padding, which would be copies into slices, and norms of rows with their gradients: as these find
the statistics of a row again, the forward keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import unset_fake_temporarily

from opstep.frontends.torch.body import Body
from opstep.frontends.torch.rules import layers, layout
from opstep.frontends.torch.rules.registry import rule
from opstep.frontends.torch.single import other_kernels, single
from opstep.runtime.ir.op import OPS

Tensor = torch.Tensor
aten = torch.ops.aten
_KEY = DispatchKey.CompositeImplicitAutograd


def whole_ops() -> AbstractContextManager[None]:
    """While the block lasts, these ops are traced as ops of ours."""
    _default_epsilons()
    return other_kernels({op: {_KEY: kernel} for op, kernel in _WHOLE.items()})


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


# --- norms ---


def _like(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


layer_norm = single(
    "layer_norm", "Tensor x, SymInt[] shape, Tensor? scale, Tensor? bias, float eps",
    torch.layer_norm, _like,
)  # fmt: skip
rms_norm = single(
    "rms_norm", "Tensor x, SymInt[] shape, Tensor? scale, float eps", torch.rms_norm, _like
)
rule("opstep::layer_norm.default")(layers.layer_norm)
rule("opstep::rms_norm.default")(layers.rms_norm)


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


def _layer_norm(
    x: Tensor, shape: Sequence[int], scale: Any = None, bias: Any = None, eps=1e-5, *_: Any
) -> Tensor:
    """Likewise."""
    if any(p is not None and p.dtype is not x.dtype for p in (scale, bias)):
        return aten.layer_norm.default._op_dk(_KEY, x, shape, scale, bias, eps)
    return layer_norm(x, shape, scale, bias, eps)


@rule("opstep::layer_norm_backward.default")
def _layer_norm_backward(b: Body, grad, wanted, x, shape, scale, bias, eps):
    attrs = {"shape": list(shape), "epsilon": float(eps)}
    if scale is None or 2 not in wanted:
        found = {0: b.layer_norm_grad(x, grad, scale, **attrs)} if 0 in wanted else {}
        found |= {3: b.sum_to(grad, bias)} if 3 in wanted else {}
    else:
        found = dict(zip((0, 2, 3), b.layer_norm_affine_grad(x, grad, scale, **attrs), strict=True))
    return [found[k] for k in wanted]


@rule("opstep::rms_norm_backward.default")
def _rms_norm_backward(b: Body, grad, wanted, x, shape, scale, eps):
    attrs = {"shape": list(shape), "epsilon": float(eps)}
    found = OPS["rms_norm"].grad(b, (x, scale), (), (grad,), **attrs)
    return [dict(zip((0, 2), found, strict=True))[k] for k in wanted]


# --- periodic padding ---


def _grown(x: Tensor, pads: Sequence[int]) -> Tensor:
    return torch.empty_like(aten.constant_pad_nd(x, pads))


pad_circular = single("pad_circular", "Tensor x, SymInt[] pads", aten._pad_circular, _grown)


@rule("opstep::pad_circular.default")
def _pad_circular(b: Body, x, pads):
    return layout.pad(b, x, pads, "circular")


@rule("opstep::pad_circular_backward.default")
def _pad_circular_backward(b: Body, grad, wanted, x, pads):
    return [layout.pad_backward(b, grad, x, pads, "circular") for _ in wanted]


_WHOLE = {
    aten.cumprod_backward.default: lambda grad, x, axis, _: cumprod_backward(grad, x, axis),
    aten._pad_circular.default: pad_circular,
    aten.rms_norm.default: _rms_norm,
    aten.layer_norm.default: _layer_norm,
}
