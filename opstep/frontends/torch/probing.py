"""Calls that PyTorch refuses for their element types.

Its shape functions, which graphs are traced with, accept more types than its kernels do: a product
of f32 and i64, an average pool of integers. So a call of such types is tried, on ones, and on zeros
in place of integers that may be indices: some kernels look at none before they take its element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from opstep.frontends.torch.dims import DTYPES, hinted
from opstep.frontends.torch.errors import TYPES, Refused, cause

_OF_TYPES = re.compile(
    r"not implemented for '|dtype|scalar type|output type|[Ii]nput type|[Bb]ool|[Ii]nteger"
    r"|a long tensor|ZeroDivisionError"
)
_LARGEST = 1 << 22  # elements of a call that is tried


def check_types(node: fx.Node) -> None:
    """Raises `Refused`."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    why = why_refused(node.target, args, kwargs)
    if why:
        raise Refused(f"{TYPES}: {why}")


def why_refused(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """PyTorch's words for the element types of a call, of tensors without elements; "" where it
    takes them. Calls whose operands are all of one float type are not tried, but for indices.
    """
    tensors = _tensors((args, kwargs))
    types = {t.dtype for t in tensors}
    if not isinstance(op, torch._ops.OpOverload) or not tensors:
        return ""
    is_of_one = len(types) == 1 and next(iter(types)).is_floating_point
    if is_of_one and not any(map(_is_index, op._schema.arguments)):
        return ""
    try:
        with _disable_current_modes(), torch.no_grad():  # where tensors are only traced
            if _can_be_tried(op, tensors, args, kwargs):
                _tried(op, args, kwargs, "cpu")
    except Exception as error:  # of any class: only what is said of types matters here
        return cause(error) if _OF_TYPES.search(str(error)) else ""
    return ""


def _is_index(argument: Any) -> bool:
    """Whether its tensors are of integers."""
    return argument.name in ("index", "indices", "sorter") and "Tensor" in str(argument.type)


def _can_be_tried(op: Any, tensors: Sequence[Any], args: Any, kwargs: Any) -> bool:
    if op.namespace != "aten" or op._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags or "_backward" in op._schema.name:
        return False
    if any(t.device.type != "cpu" or t.dtype not in DTYPES for t in tensors):
        return False
    try:
        made = _tried(op, args, kwargs, "meta")
    except Exception:  # of any class: its shapes are not known
        return False
    return sum(t.numel() for t in made) <= _LARGEST


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def _tried(op: Any, args: Any, kwargs: Any, device: str) -> list[torch.Tensor]:
    """The tensors of a call, and those that it gives; they are of a single element where shapes do
    not matter.
    """
    is_pointwise = torch.Tag.pointwise in op.tags or "floor_divide" in op.name()  # has no tag

    def given(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return hinted(value)
        shape = [1] * value.dim() if is_pointwise else list(map(hinted, value.shape))
        one = int(is_pointwise or value.is_floating_point())
        return torch.full((), one, dtype=value.dtype, device=device).expand(shape)

    args, kwargs = pytree.tree_map(given, (args, kwargs))
    return _tensors((args, kwargs, op(*args, **kwargs)))
