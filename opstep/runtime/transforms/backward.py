"""The way back: rules of ops applied to what was written, last statement first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opstep.runtime.ir.graph import Statement
from opstep.runtime.transforms.builder import Builder, TapeEntry, Var


class GradientError(Exception):
    """A graph that has no gradient: `statement` is the one that stands in the way."""

    def __init__(self, message: str, statement: Statement | None = None, hint: str = ""):
        super().__init__(message)
        self.statement = statement
        self.hint = hint


def accumulate(builder: Builder, gradients: dict[str, Var], x: Var, gradient: Var) -> None:
    previous = gradients.get(x.name)
    gradients[x.name] = gradient if previous is None else builder.add(previous, gradient)


def backward(builder: Builder, tape: Sequence[TapeEntry], gradients: dict[str, Var]) -> None:
    """Applies the rules in reverse; `gradients` maps a value's name to its gradient so far."""
    for taped in reversed(tape):
        incoming = tuple(gradients.get(r.name) for r in taped.results)
        if not any(incoming):
            continue
        if taped.op.grad is None:
            if any(isinstance(o, Var) and o.dtype.is_float for o in taped.operands):
                raise GradientError(f"{taped.op.name} has no gradient", taped.statement)
            continue
        builder.at = taped.statement.at
        builder.derived_from = taped.derived_from and taped.derived_from._replace(backward=True)
        # a rule sees operands as the op does, promoted
        seen = [
            builder.to_dtype(o, t.dtype) if t else o
            for o, t in zip(taped.operands, taped.computed, strict=True)
        ]
        outgoing = taped.op.grad(builder, seen, taped.results, incoming, **taped.attrs)
        for x, gradient in zip(taped.operands, outgoing, strict=True):
            if gradient is not None and isinstance(x, Var) and x.dtype.is_float:
                accumulate(builder, gradients, x, builder.to_dtype(gradient, x.dtype))


def pull_back(
    g: Builder, formula: Callable[..., Any], operands: Sequence, incoming: Sequence[Var | None]
) -> tuple[Var | None, ...]:
    """The gradient by each operand of what ``written(*operands)`` writes with ops that have one;
    `incoming` are those by its results. A rule for ops that others can express.
    """
    tape: list[TapeEntry] = []
    outer, g.tape = g.tape, tape
    results = formula(*operands)
    g.tape = None
    gradients: dict[str, Var] = {}
    for result, gradient in zip(
        results if isinstance(results, tuple) and not isinstance(results, Var) else (results,),
        incoming,
        strict=True,
    ):
        if gradient is not None:
            accumulate(g, gradients, result, gradient)
    backward(g, tape, gradients)
    g.tape = outer
    # an operand that is given twice has one gradient
    return tuple(gradients.pop(o.name, None) if isinstance(o, Var) else None for o in operands)
