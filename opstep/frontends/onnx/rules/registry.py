"""The table of rules: what a node becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from opstep.runtime.ir.types import DType

ALL = range(1000)
MICROSOFT = "com.microsoft"


class Same(float):
    """A tensor whose elements are all this number."""

    def __new__(cls, number: float, dtype: DType):
        made = super().__new__(cls, number)
        made.dtype = dtype
        return made

    dtype: DType


class Rule(NamedTuple):
    """`since`: the first version of the operators that it is for. `known`: places of the inputs
    that are needed at import: shapes, axes; the rule gets their elements. `numbers`: scalars that
    are known come as Python's numbers. `same`: places of scales and zero points, which come as
    `Same` where all elements are known to be one number.
    """

    function: Callable[..., Any]
    since: int
    known: Collection[int]
    numbers: bool
    attrs: frozenset[str] | None  # None where it takes any
    signature: inspect.Signature
    same: Collection[int] = ()

    def fits(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the rule takes such inputs and attributes."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True


RULES: dict[tuple[str, str], list[Rule]] = {}  # by domain and name, the newest first


def rule(
    *ops: str,
    since: int = 1,
    known: Collection[int] = (),
    numbers: bool = False,
    domain: str = "",
    same: Collection[int] = (),
    before: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for ONNX operators: ``@rule("Reshape", since=5, known=[1])``. `before`:
    what the inputs behind the first are called in versions before, where they are attributes.

    It is called as ``f(body, *inputs, **attributes)``; tensors are `Var`, inputs that are left out
    None. It gives a `Var` or a `Known`, or a tuple of them, one for each result. Raises
    `Untranslatable` for what has no counterpart.
    """

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        add(ops, function, since, known, numbers, domain, same)
        if before:
            add(ops, _by_attributes(function, before), numbers=numbers, domain=domain)
        return function

    return registered


def _by_attributes(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    def translated(b: Any, x: Any, **attrs: Any) -> Any:
        return function(b, x, *(attrs.pop(n, None) for n in names), **attrs)

    return translated


def add(
    ops: Collection[str], function: Callable[..., Any], since: int = 1,
    known: Collection[int] = (), numbers: bool = False, domain: str = "",
    same: Collection[int] = (),
) -> None:  # fmt: skip
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    made = Rule(function, since, known, numbers, None if takes_any else names, signature, same)
    for op in ops:
        versions = RULES.setdefault((domain, op), [])
        versions.append(made)
        versions.sort(key=lambda r: -r.since)


def rule_for(domain: str, op: str, version: int) -> Rule | None:
    """The one for that version of the operators."""
    return next((r for r in RULES.get((domain, op), ()) if r.since <= version), None)
