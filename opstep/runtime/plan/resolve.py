"""Concrete types: symbols are bound to numbers, and each op is resolved again with those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opstep.runtime.ir.calls import substitute
from opstep.runtime.ir.control import Control
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.effects import is_shared
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import Mismatch, Op, Resolved, resolve
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application
from opstep.runtime.plan.cost import estimate


class Rule(NamedTuple):
    """An op on concrete types: what all steps of one `Application` and one binding share."""

    op: type[Op]
    operands: tuple[TensorType | None, ...]  # after promotion
    results: tuple[tuple[TensorType, int], ...]  # with their bytes
    attrs: dict[str, Any]
    cost: int
    absent: int  # optional operands that are not given
    is_shared: bool  # with other ranks
    kind: str  # "kernel", "view" (a reinterpretation) or "control"


def new_rule(
    application: Application,
    types: Sequence[TensorType | int | float],
    symbols: Mapping[str, int],
    graphs: Callable[[str], Graph],
) -> Rule:
    """The rule of an op for operands of these types (literals as numbers). Raises `Mismatch`."""
    op = application.op
    assert op is not None
    attrs = {name: concrete(value, symbols) for name, value in application.attrs.items()}
    try:
        if issubclass(op, Control):
            resolved = op.resolve_call(types, attrs, graphs)
        elif op.traits.foreign:
            results = (substitute(t, symbols) for t in application.resolved.results)
            resolved = Resolved(tuple(types), tuple(results))  # pyright: ignore[reportArgumentType]
        else:
            resolved = resolve(op, types, attrs)
    except ZeroDivisionError:
        raise Mismatch("a dim of the result is divided by zero") from None
    return Rule(
        op,
        resolved.operands,
        tuple((t, nbytes(t)) for t in resolved.results),
        attrs,
        estimate(op, resolved.operands, resolved.results, attrs),
        len(resolved.operands) - len(types),
        is_shared(op, attrs),
        "control" if op.traits.host else "view" if op.traits.reinterprets else "kernel",
    )


def nbytes(t: TensorType) -> int:
    """Bytes of a concrete type."""
    size = t.nbytes
    if not isinstance(size, int):
        raise Mismatch(f"{t} has no size before its symbols are bound")
    if any(d < 0 for d in t.shape):  # pyright: ignore[reportOperatorIssue] - numbers, as size is
        raise Mismatch(f"the result would be {t}, and no dim can be negative")
    if not t.fits:
        raise Mismatch(f"a tensor of type {t} does not fit into any memory")
    return size


def concrete(value, symbols: Mapping[str, int]):
    """An attribute's value with its symbols replaced by numbers."""
    if type(value) is tuple:
        return tuple(concrete(v, symbols) for v in value)
    if isinstance(value, DType):
        return value.bound(symbols)
    if not isinstance(value, Expr):
        return value
    try:
        result = evaluate(value, dict(symbols))
    except ZeroDivisionError:
        raise Mismatch(f"{value} divides by zero", hint=_sizes(value, symbols)) from None
    if isinstance(result, Expr):
        raise Mismatch(f"the size {min(result.symbols())} is not known: no input has it as a dim")
    return result


def _sizes(dim: Expr, symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{s} is {symbols[s]}" for s in sorted(dim.symbols()) if s in symbols)
