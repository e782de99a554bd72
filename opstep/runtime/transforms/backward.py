"""The way back: rules of ops applied to what was written, last statement first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from opstep.runtime.ir.diagnostics import Note
from opstep.runtime.ir.graph import NOWHERE, Source, Statement
from opstep.runtime.ir.types import DependsOnType
from opstep.runtime.transforms.builder import Builder, TapeEntry, Var

NOT_FOR_ALL_TYPES = "cast to a type first, or write one in place of T"
MOST_NOTES = 8  # lines of the way that a message shows


class GradientError(Exception):
    """A graph that has no gradient: `statement`, of `source`, stands in the way."""

    def __init__(
        self, message: str, statement: Statement | None = None, hint: str = "",
        source: Source | None = None, notes: Sequence[Note] = (),
    ):  # fmt: skip
        super().__init__(message)
        self.statement = statement
        self.hint = hint
        self.source = source
        self.notes = tuple(notes)


def accumulate(builder: Builder, gradients: dict[str, Var], x: Var, gradient: Var) -> None:
    previous = gradients.get(x.name)
    gradients[x.name] = gradient if previous is None else builder.add(previous, gradient)


def backward(
    builder: Builder,
    tape: Sequence[TapeEntry],
    gradients: dict[str, Var],
    active: AbstractSet[str] | None = None,
) -> None:
    """Applies the rules in reverse; `gradients` maps a value's name to its gradient so far. Values
    that are not `active` get none.
    """
    for number in reversed(range(len(tape))):
        taped = tape[number]
        incoming = tuple([gradients.get(r.name) for r in taped.results])
        if not any(incoming):
            continue
        if taped.rule is None:
            if any(isinstance(o, Var) and o.dtype.is_float for o in taped.operands):
                raise _no_gradient(tape, number, gradients, active)
            continue
        builder.at, builder.active = taped.at and taped.at.of_derivative(), active
        builder.derived_from = taped.derived_from and taped.derived_from._replace(backward=True)
        if active is not None:
            builder.prefix = f"d_{taped.results[0].name}"
        try:
            _step_back(builder, taped, gradients, incoming, active)
        except DependsOnType as error:
            raise _not_for_all_types(taped, error) from None


def _step_back(
    builder: Builder, taped: TapeEntry, gradients: dict[str, Var], incoming: tuple,
    active: AbstractSet[str] | None,
) -> None:  # fmt: skip
    """Applies one rule, which sees operands as the op does, promoted."""
    seen = [
        builder.to_dtype(o, t.dtype) if t else o
        for o, t in zip(taped.operands, taped.computed, strict=True)
    ]
    outgoing = taped.rule(builder, seen, taped.results, incoming, **taped.attrs)
    for x, gradient in zip(taped.operands, outgoing, strict=True):
        if gradient is None or not isinstance(x, Var) or not x.dtype.is_float:
            continue
        if active is None or x.name in active:
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


# --- what stands in the way -----------------------------------------------------------------------


def _no_gradient(
    tape: Sequence[TapeEntry], number: int, gradients: dict[str, Var],
    active: AbstractSet[str] | None,
) -> GradientError:  # fmt: skip
    """The error at an op without a rule; the notes show the way from what the derivative is by, and
    on to the loss.
    """
    taped = tape[number]
    before = _way_from(tape[:number], taped, active)
    behind = _way_to(tape[number + 1 :], taped, gradients)
    notes = [_note("the way there", one) for one in before]
    notes += [_note("and on to the loss", one) for one in behind]
    message = f"{taped.op.name} has no gradient"
    names = [o.name for o in (before or [taped])[0].operands if _is_active(o, active)]
    if active is not None and names:
        message += f", and is on the way from {names[0]} to the loss"
    source = taped.derived_from.source if taped.derived_from else None
    hint = "" if active is None else "y = stop_gradient(x) takes a value as a constant"
    shown = [n for n in notes if n]
    if len(shown) > MOST_NOTES:
        shown[MOST_NOTES // 2 : -MOST_NOTES // 2] = []
    return GradientError(message, taped.statement, hint, source, shown)


def _not_for_all_types(taped: TapeEntry, error: DependsOnType) -> GradientError:
    """The error at an op of a generic graph whose derivative is not one text."""
    statement, source, _ = taped.derived_from or (None, None, True)
    message = f"the gradient of {taped.op.name} is not one for all types: {error}"
    return GradientError(message, statement, NOT_FOR_ALL_TYPES, source)


def _is_active(operand: Any, active: AbstractSet[str] | None) -> bool:
    return isinstance(operand, Var) and (active is None or operand.name in active)


def _way_from(
    tape: Sequence[TapeEntry], end: TapeEntry, active: AbstractSet[str] | None
) -> list[TapeEntry]:
    """What computed an operand of `end`, before that what computed an operand of it, and so on."""
    way = [end]
    for taped in reversed(tape):
        names = {o.name for o in way[-1].operands if _is_active(o, active)}
        if any(r.name in names for r in taped.results):
            way.append(taped)
    return way[:0:-1]


def _way_to(
    tape: Sequence[TapeEntry], begin: TapeEntry, gradients: dict[str, Var]
) -> list[TapeEntry]:
    """What a result of `begin` is applied to on the way to the loss, and so on."""
    way = [begin]
    for taped in tape:
        names = {r.name for r in way[-1].results}
        used = any(isinstance(o, Var) and o.name in names for o in taped.operands)
        if used and any(r.name in gradients for r in taped.results):
            way.append(taped)
    return way[1:]


def _note(message: str, taped: TapeEntry) -> Note | None:
    statement, source = taped.statement, None
    if taped.derived_from is not None:
        statement, source = taped.derived_from.statement, taped.derived_from.source
    if source is None or statement.span == NOWHERE:
        return None
    return Note(message, statement.span, source)
