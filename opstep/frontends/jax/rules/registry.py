"""The table of rules: what a primitive becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# Parameters that say how a primitive is computed, not what.
IGNORED = {
    "sharding", "out_sharding", "precision", "accuracy", "indices_are_sorted", "unique_indices",
    "preferred_element_type", "weak_type", "axis_name", "window_sharding",
}  # fmt: skip


class Rule(NamedTuple):
    """`numbers`: scalars that are known come as Python's numbers. `spreads`: operands need not be
    broadcast. `values`: unsigned integers come, and go, as wider ones.
    """

    function: Callable[..., Any]
    numbers: bool
    spreads: bool
    values: bool
    params: frozenset[str] | None  # None where it takes any


RULES: dict[str, Rule] = {}


def rule(
    *primitives: str, numbers: bool = False, spreads: bool = False, values: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for primitives: ``@rule("transpose")``.

    It is called as ``f(body, *operands, **parameters)`` with tensors (`Var`), and gives a `Var`, or
    a tuple of them. Raises `Untranslatable` for what has no counterpart.
    """

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in primitives:
            add(name, function, numbers, spreads, values)
        return function

    return registered


def add(
    primitive: str, function: Callable[..., Any], numbers: bool = False, spreads: bool = False,
    values: bool = False,
) -> None:  # fmt: skip
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    RULES[primitive] = Rule(function, numbers, spreads, values, None if takes_any else names)
