"""The table of rules: what an ATen op becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from torch._ops import HigherOrderOperator

from opstep.frontends.torch.errors import Refused
from opstep.runtime.ir.types import f32
from opstep.runtime.transforms.builder import Var

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
NORMS = {  # which also scale halves by f32
    "layer_norm.default", "native_layer_norm.default", "group_norm.default",
    "native_group_norm.default", "batch_norm.default", "native_batch_norm.default",
    "_native_batch_norm_legit_functional.default", "_native_batch_norm_legit_no_training.default",
    "_native_batch_norm_legit.no_stats",
}  # fmt: skip
ALIKE = NORMS | {  # of one type: PyTorch's kernels convert none, where its shape rules take all
    "linear.default", "matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default",
    "_cdist_forward.default", "grid_sampler.default", "grid_sampler_2d.default", "product", "layer",
}  # fmt: skip


def rule(*overloads: str) -> Callable[[Rule], Rule]:
    """Registers a function for ATen overloads: ``@rule("add.Tensor", "add.Scalar")``; names of
    other libraries have theirs before them (``"torchvision::nms.default"``).

    It is called as ``f(body, *args, **kwargs)`` with ATen's own arguments, whose tensors are `Var`
    and whose sizes are dims. It gives a `Var`, a tuple of them, one for each result, or None for an
    op that has no result. Raises `Untranslatable` for arguments that have no counterpart.
    """

    def registered(function: Rule) -> Rule:
        for name in overloads:
            RULES[name] = function
        return function

    return registered


def key_of(target: Any) -> str:
    """An op's name in the table, a Python function's is its own; "" for what is no op."""
    if not hasattr(target, "_schema"):
        if isinstance(target, HigherOrderOperator):
            return target.name()
        return target.__name__ if isinstance(target, FunctionType) else ""
    name = target._schema.name.removeprefix("aten::")
    return f"{name}.{target._overloadname}"


def check_alike(key: str, operands: Iterable[Any]) -> None:
    """Raises `Refused` for element types that PyTorch's kernels do not take together."""
    found = [v.dtype for v in operands if isinstance(v, Var)] if key in ALIKE else []
    if found:
        taken = {found[0], f32} if key in NORMS and found[0].is_half else {found[0]}
        for dtype in found:
            if dtype not in taken:
                raise Refused(f"operands of {found[0]} and {dtype}")
