"""Copies: ops that only move elements, and those of a plan's own (`plan.viewing`)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from opstep.runtime.ir.op import AttrSpec, OperandSpec, Traits
from opstep.runtime.ir.strided import Places, Strided, Untellable
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.plan.plan import Step


class moved(PlanOp):
    """The elements of `x` that a `Strided` names; `kernels.move.layout` says how."""

    name = "moved"
    operands = (OperandSpec("x", "T", "T", False, False),)
    attrs = (AttrSpec("start", "int", True, None), AttrSpec("strides", "ints", True, None))
    traits = Traits(moves=True)


class shown(PlanOp):
    """`x` under another shape: what a copy of it would be, which is not made."""

    name = "shown"
    operands = (OperandSpec("x", "T", "T", False, False),)
    traits = Traits(moves=True, reinterprets=True)


def without_idle_moves(flat: Flat) -> Flat:
    """The same without copies that have the elements of their operand in its order, as transposes
    have where all axes but one are of length 1: they are their operand.
    """
    fixed = {flat.homes[v] for v in flat.outputs}
    homes: dict[int, int] = {}  # of such results, and those of what they are
    steps, costs = flat.steps.copy(), flat.costs.copy()
    for k, step in enumerate(flat.steps[: len(flat.steps) - flat.commits]):
        if is_idle(flat, step) and may_be_shown(flat, step, fixed):
            home = flat.homes[step.operands[0] or 0]
            homes[flat.homes[step.results[0]]] = homes.get(home, home)
            steps[k] = replace(step, op=shown, attrs={}, members=(step,))
            costs[k] = 1
    if not homes:
        return flat
    kinds = flat.kinds.copy()
    for home in homes:
        kinds[home] = "none"
    kept = [homes.get(home, home) for home in flat.homes]
    return replace(flat, steps=steps, costs=costs, homes=kept, kinds=kinds)


def is_idle(
    flat: Flat, step: Step, source: Strided | None = None, order: Sequence[int] | None = None
) -> bool:
    """Whether a step is a copy that gives the elements of its operand as they lie in memory: where
    `source` says, or row by row. `order`: the axes of the result, as that is to lie in memory.
    """
    told = step.op is moved or step.op.shows is not None
    if not told or len(step.operands) != 1 or len(step.results) != 1:
        return False
    x, y = (flat.types[v] for v in (step.operands[0], *step.results) if v is not None)
    if y.dtype is not x.dtype or y.size != x.size:
        return False
    shape: Any = x.shape
    given: Any = y.shape
    size: Any = x.size
    shows: Any = step.op.shows
    try:
        if step.op is moved:
            places = Places.of(Strided(step.attrs["start"], given, step.attrs["strides"]))
        else:
            (places,) = shows(Places.of(source or Strided.whole(shape)), **step.attrs)
        places = places.permuted(order) if order else places
        return places.reshaped((size,)).strided() == Strided.whole((size,))
    except Untellable:
        return False


def may_be_shown(flat: Flat, step: Step, fixed: Container[int]) -> bool:
    """Whether the result of such a copy may be its operand. `fixed`: homes of the caller's."""
    source = flat.homes[step.operands[0] or 0]
    return flat.kinds[source] in ("temp", "input") and flat.homes[step.results[0]] not in fixed


def moves(step: Step) -> bool:
    """Whether a step does nothing but to show elements of one operand in another way."""
    return (step.op.traits.reinterprets or step.op.shows is not None) and len(step.operands) == 1
