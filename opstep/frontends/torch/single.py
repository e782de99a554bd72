"""Ops of PyTorch's that are one op of ours, and so is their gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

Tensor = torch.Tensor


def single(name: str, parameters: str, function: Callable[..., Tensor], shape: Any) -> Any:
    """Registers ``opstep::name``, which PyTorch runs by a function where a graph falls back to it,
    and ``opstep::name_backward``: what autograd makes of the function, as one op. That takes the
    gradient, the places of the arguments whose gradients are wanted, and the arguments.

    `parameters`: of the function, as PyTorch's schemas have them. `shape`: what it gives, of
    tensors without elements.
    """

    def run(*given: Any) -> Tensor:
        return function(*given).clone()

    def backward(grad: Tensor, wanted: list[int], *given: Any) -> list[Tensor]:
        autograd = torch._C.DispatchKey.AutogradFunctionality  # which is off within an op
        with torch._C._SetExcludeDispatchKeyGuard(autograd, False), torch.enable_grad():
            own = [a.detach().requires_grad_() if k in wanted else a for k, a in enumerate(given)]
            found = torch.autograd.grad(function(*own), [own[k] for k in wanted], grad)
        return [t.clone() for t in found]

    def shapes(grad: Tensor, wanted: list[int], *given: Any) -> list[Tensor]:
        return [given[k].new_empty(given[k].shape) for k in wanted]

    def saved(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.places = [k for k, a in enumerate(inputs) if isinstance(a, Tensor)]
        ctx.others = [None if k in ctx.places else a for k, a in enumerate(inputs)]
        ctx.save_for_backward(*(inputs[k] for k in ctx.places))

    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given = dict(enumerate(ctx.others)) | dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        wanted = [k for k in ctx.places if ctx.needs_input_grad[k]]
        found = dict(zip(wanted, gradient(grad, wanted, *given.values()), strict=True))
        return tuple(map(found.get, given))

    made: Any = torch.library.custom_op
    schemas = f"({parameters}) -> Tensor", f"(Tensor grad, int[] wanted, {parameters}) -> Tensor[]"
    op = made(f"opstep::{name}", run, mutates_args=(), schema=schemas[0])
    gradient = made(f"opstep::{name}_backward", backward, mutates_args=(), schema=schemas[1])
    op.register_fake(shape)
    gradient.register_fake(shapes)
    op.register_autograd(gradients, setup_context=saved)
    return op


@contextmanager
def other_kernels(table: Mapping[Any, Mapping[Any, Any]]) -> Iterator[None]:
    """While the block lasts, ops have these kernels in Python, by dispatch key; None: none."""
    _list_composite_ops()
    kept = {op: dict(op.py_kernels) for op in table}
    try:
        for op, kernels in table.items():
            there = {**kept[op], **kernels}
            _set_kernels(op, {key: kernel for key, kernel in there.items() if kernel is not None})
        yield
    finally:
        for op, kernels in kept.items():
            _set_kernels(op, kernels)


@cache
def _list_composite_ops() -> None:
    """PyTorch lists them once, by the kernels that ops have then, and exports rely on the list."""
    torch.export.default_decompositions()


def _set_kernels(op: Any, kernels: Mapping[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
