"""Calls that PyTorch refuses for their element types.

Its shape functions, which graphs are traced with, accept more types than its kernels do: a product
of f32 and i64, an average pool of integers. So a call of such types is tried, on ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from opstep.frontends.torch.dims import DTYPES, hinted
from opstep.frontends.torch.errors import TYPES, Refused, cause

_OF_TYPES = re.compile(
    r"not implemented for '|dtype|scalar type|output type|[Ii]nput type|[Bb]ool|[Ii]nteger"
)
_LARGEST = 1 << 22  # elements of a call that is tried


def check_types(node: fx.Node) -> None:
    """Raises `Refused`. Calls whose operands are all of one float type are not tried."""
    tensors = [v for n in node.all_input_nodes for v in _tensors(n.meta.get("val"))]
    types = {t.dtype for t in tensors}
    if len(types) == 1 and next(iter(types)).is_floating_point:
        return
    if tensors and _can_be_tried(node, tensors):
        op: Any = node.target
        is_pointwise = torch.Tag.pointwise in op.tags
        try:
            with _disable_current_modes(), torch.no_grad():  # where tensors are only traced
                op(*_ones(node.args, is_pointwise), **_ones(node.kwargs, is_pointwise))
        except Exception as error:  # of any class: only what is said of types matters here
            if _OF_TYPES.search(str(error)):
                raise Refused(f"{TYPES}: {cause(error)}") from None


def _can_be_tried(node: fx.Node, tensors: Sequence[torch.Tensor]) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return False
    made = [*tensors, *_tensors(node.meta.get("val"))]
    if torch.Tag.nondeterministic_seeded in op.tags or op._schema.is_mutable:
        return False
    if any(t.device.type != "cpu" or t.dtype not in DTYPES for t in made):
        return False
    sizes = [hinted(n) for t in made for n in t.shape]
    return None not in sizes and sum(map(_count, made)) <= _LARGEST


def _count(t: torch.Tensor) -> int:
    return torch.Size(map(hinted, t.shape)).numel()


def _tensors(value: Any) -> list[torch.Tensor]:
    listed = value if isinstance(value, list | tuple) else [value]
    return [v for v in listed if isinstance(v, torch.Tensor)]


def _ones(argument: Any, is_pointwise: bool) -> Any:
    """An argument with ones for tensors, of a single element where shapes do not matter."""

    def given(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [given(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return hinted(value)
        shape = [1] * value.dim() if is_pointwise else list(map(hinted, value.shape))
        return torch.ones((), dtype=value.dtype).expand(shape)

    return fx.map_arg(argument, lambda n: given(n.meta.get("val")))
