"""The table of rules: what an ATen op becomes."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._ops import HigherOrderOperator

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


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
