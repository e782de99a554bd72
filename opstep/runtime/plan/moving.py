"""One copy where ops that only move elements follow each other.

A transpose of a part of a tensor is made of that tensor at once, if nobody else reads the part:
attention's heads are such, and images whose channels go last. It is one step, `moved`, at the place
of the last of them. Reshapes between them are no copies; where strides cannot tell what one gives,
nothing is joined through it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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


class Origin(NamedTuple):
    """What a value is: elements of another value, which these steps have moved."""

    base: int
    view: Strided
    steps: tuple[Step, ...]


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


def with_joined_moves(flat: Flat) -> Flat:
    """The same with such copies joined."""
    begin = len(flat.steps) - flat.commits
    origins = origins_of(flat, begin)
    joined = {k for k, step in enumerate(flat.steps[:begin]) if _is_joined(flat, step, origins)}
    if joined:  # where all that one would skip is made for others, too, nothing is gained
        needed = _needed(flat, joined, origins)
        joined = {k for k in joined if _skips(flat.steps[k], origins, needed)}
    if not joined:
        return flat
    needed = _needed(flat, joined, origins)
    steps: list[Step] = []
    costs: list[int] = []
    kinds = flat.kinds.copy()
    for k, (step, cost) in enumerate(zip(flat.steps, flat.costs, strict=True)):
        if k in joined:
            made = [_moved(flat, step, v, origins[v]) for v in step.results if v in needed]
            steps += made
            costs += [max(1, cost // len(step.results))] * len(made)
            for v in step.results:
                if v not in needed:
                    kinds[flat.homes[v]] = "none"
        elif moves(step) and k < begin and not any(v in needed for v in step.results):
            if not step.op.traits.reinterprets:
                for v in step.results:
                    kinds[flat.homes[v]] = "none"
        else:
            steps.append(step)
            costs.append(cost)
    return replace(flat, steps=steps, costs=costs, kinds=kinds)


def moves(step: Step) -> bool:
    """Whether a step does nothing but to show elements of one operand in another way."""
    return (step.op.traits.reinterprets or step.op.shows is not None) and len(step.operands) == 1


def origins_of(flat: Flat, begin: int) -> dict[int, Origin]:
    """Of values that are made by moving elements of another, as far as strides can tell."""
    found: dict[int, tuple[int, Places, tuple[Step, ...]]] = {}
    for step in flat.steps[:begin]:
        source = step.operands[0] if step.operands else None
        if source is None or not moves(step):
            continue
        t: Any = flat.types[source]  # concrete
        base, places, steps = found.get(source) or (source, Places.whole(t.shape), ())
        if flat.kinds[flat.homes[base]] not in ("temp", "input"):
            continue
        try:
            views = _shown(flat, step, places)
        except Untellable:
            continue
        for v, view in zip(step.results, views, strict=True):
            if flat.types[v].dtype is t.dtype:
                found[v] = base, view, (*steps, step)
    strided = ((v, base, places.strided(), steps) for v, (base, places, steps) in found.items())
    return {v: Origin(base, view, steps) for v, base, view, steps in strided if view is not None}


def _shown(flat: Flat, step: Step, places: Places) -> Sequence[Places]:
    """What the results of a step are that moves elements which are at these places."""
    if step.op.traits.reinterprets:
        shape: Any = flat.types[step.results[0]].shape
        return [places.reshaped(shape)]
    return step.op.shows(places, **step.attrs)


def _is_joined(flat: Flat, step: Step, origins: dict[int, Origin]) -> bool:
    """Whether a step copies what another one has copied."""
    moves = bool(step.results) and all(v in origins for v in step.results)
    if step.op.traits.reinterprets or not moves:
        return False
    before = origins[step.results[0]].steps[:-1]
    return any(not s.op.traits.reinterprets for s in before)


def _needed(flat: Flat, joined: set[int], origins: dict[int, Origin]) -> set[int]:
    """Values that have to be in memory."""
    needed = set(flat.outputs)
    begin = len(flat.steps) - flat.commits
    for k in reversed(range(len(flat.steps))):
        step = flat.steps[k]
        wanted = [v for v in step.results if v in needed]
        if k in joined:
            needed.update(origins[v].base for v in wanted)
        elif wanted or k >= begin or not moves(step):
            needed.update(v for v in (*step.operands, *step.touched) if v is not None)
    return needed


def _skips(step: Step, origins: dict[int, Origin], needed: set[int]) -> bool:
    before = origins[step.results[0]].steps[:-1]
    copies = (s for s in before if not s.op.traits.reinterprets)
    return any(not any(v in needed for v in s.results) for s in copies)


def _moved(flat: Flat, step: Step, result: int, origin: Origin) -> Step:
    view = origin.view
    return Step(
        moved, (origin.base,), (result,), (flat.types[origin.base],),
        {"start": view.start, "strides": view.strides}, step.frame, step.statement,
        members=origin.steps,
    )  # fmt: skip
