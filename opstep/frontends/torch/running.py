"""The gradient of running products as one op in AOTAutograd's graphs, where PyTorch would have some
thirty that look for zeros and divide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

from opstep.frontends.torch.body import Body
from opstep.frontends.torch.rules.registry import rule

Tensor = torch.Tensor
_of_torch = torch.ops.aten.cumprod_backward.default


@torch.library.custom_op("opstep::cumprod_backward", mutates_args=())
def cumprod_backward(grad: Tensor, x: Tensor, axis: int) -> Tensor:
    """As PyTorch runs it, where a graph falls back to it."""
    return _of_torch(grad, x, axis, x.cumprod(axis)).clone()


@cumprod_backward.register_fake
def _(grad, x, axis):
    return torch.empty_like(x)


@contextmanager
def whole_products() -> Iterator[None]:
    """While the block lasts, the gradient is traced as `opstep::cumprod_backward`, which needs no
    result of the forward.
    """
    key = DispatchKey.CompositeImplicitAutograd
    known = _of_torch.py_kernels.get(key)
    _of_torch.py_kernels[key] = lambda grad, x, axis, _: cumprod_backward(grad, x, axis)
    _of_torch._dispatch_cache.clear()
    try:
        yield
    finally:
        _of_torch.py_kernels.pop(key, None)
        if known is not None:
            _of_torch.py_kernels[key] = known
        _of_torch._dispatch_cache.clear()


@rule("opstep::cumprod_backward.default")
def _cumprod_backward(b: Body, grad, x, axis):
    return b.cumprod_grad(x, grad, axis=axis) if x.type.rank else b.identity(grad)
