"""Ops that read their operands where they are, and write results where they go: attention, whose
heads are parts of one tensor.

A copy that only moves elements is left out where the op that reads it can walk along the strides of
what is copied, and nobody else reads the copy; likewise a transpose behind the op, whose result is
then written in its order. It is the device that says which views its kernels take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from opstep.runtime.ir.interfaces import views_of
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.strided import Places, Strided
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.plan.moving import Origin, moves, origins_of
from opstep.runtime.plan.plan import Step, Takes

NEAR = 64  # steps between a copy and who reads it: what it is a copy of has to live as long


class viewing(PlanOp):
    """An op on views of its operands; `kernels.move.views` says how."""

    name = "fused"

    def flops(*types, views):
        return views.op.flops(*views.types(types), **dict(views.attrs))


@dataclass(frozen=True, repr=False)
class Views:
    """What a `viewing` op computes: `op` of views of its operands (None: the whole operand), whose
    result `result` shows as the tensor that is written (None: that is the result).
    """

    op: type[Op]
    attrs: tuple[tuple[str, Any], ...]
    operands: tuple[Strided | None, ...]
    result: Strided | None

    def types(self, stored) -> list[TensorType | None]:
        """Of the op's operands."""
        return [
            t if t is None or view is None else t.with_shape(view.shape)
            for t, view in zip(stored, self.operands, strict=False)
        ]

    @cached_property
    def text(self) -> str:
        return repr((self.op.name, self.attrs, self.operands, self.result))

    def __repr__(self) -> str:
        return self.text


def with_views(flat: Flat, takes: Takes) -> Flat:
    """The same with such steps where the device takes them."""
    begin = len(flat.steps) - flat.commits
    viewers = {k for k, s in enumerate(flat.steps[:begin]) if views_of(s.op)}
    if not viewers:
        return flat
    places = {id(step): k for k, step in enumerate(flat.steps)}
    origins = origins_of(flat, begin)
    found = {k: _origins_near(flat, k, origins, places) for k in viewers}
    read = _read_by_others(flat, begin, found)
    readers = _readers(flat, {v for k in viewers for v in flat.steps[k].results})
    bases = {origin.base for own in found.values() for origin in own.values()}
    made: dict[int, Step] = {}
    gone: set[int] = set()
    for k in sorted(viewers):
        free = {v: origin for v, origin in found[k].items() if v not in read}
        behind = None if bases.intersection(flat.steps[k].results) else _behind(flat, k, readers)
        for way in dict.fromkeys((behind, None)):
            step = _viewing(flat, k, free, way)
            if step is not None and takes(step, flat.stored(step)):
                made[k] = step
                gone |= {way[0]} if way else set()
                break
    return _without_copies(flat, begin, made, gone) if made else flat


def _origins_near(
    flat: Flat, k: int, origins: dict[int, Origin], places: dict[int, int]
) -> dict[int, Origin]:
    """What the operands are copies of that a step can read by strides, if they are made nearby."""
    step = flat.steps[k]
    own = {
        v: origins[v] for v in step.operands[: views_of(step.op)] if v is not None and v in origins
    }
    return {
        v: origin
        for v, origin in own.items()
        if any(not s.op.traits.reinterprets for s in origin.steps)
        and all(k - places[id(s)] <= NEAR for s in origin.steps)
    }


def _read_by_others(flat: Flat, begin: int, found: dict[int, dict[int, Origin]]) -> set[int]:
    """Values that have to be in memory if viewers read what theirs are made of."""
    read = set(flat.outputs)
    for k in reversed(range(len(flat.steps))):
        step = flat.steps[k]
        if k in found:
            own = found[k]
            for j, v in enumerate(step.operands):
                if v is not None:
                    read.add(own[v].base if j < views_of(step.op) and v in own else v)
        elif k >= begin or not moves(step) or any(v in read for v in step.results):
            read.update(v for v in (*step.operands, *step.touched) if v is not None)
    return read


def _readers(flat: Flat, values: set[int]) -> dict[int, list[int]]:
    """The steps that read these; len(flat.steps) stands for those behind the run."""
    found: dict[int, list[int]] = {v: [] for v in values}
    for j, step in enumerate(flat.steps):
        for v in values.intersection((*step.operands, *step.touched)):
            found[v].append(j)
    for v in values.intersection(flat.outputs):
        found[v].append(len(flat.steps))
    return found


def _behind(flat: Flat, k: int, readers: dict[int, list[int]]) -> tuple[int, Strided] | None:
    """The transpose that alone reads a step's result, and that as it lies in the transpose's."""
    (result,) = flat.steps[k].results
    begin = len(flat.steps) - flat.commits
    at = readers[result][0] if len(readers[result]) == 1 else begin
    if at >= begin:
        return None
    step = flat.steps[at]
    if not moves(step) or step.op.traits.reinterprets or len(step.results) != 1:
        return None
    shape: Any = flat.types[result].shape
    (shown,) = step.op.shows(Places.whole(shape), **step.attrs)
    places = _inverse(Strided.whole(shape), shown.strided())
    return None if places is None else (at, places)


def _inverse(whole: Strided, shown: Strided | None) -> Strided | None:
    """A whole tensor as it lies in what shows it with its axes in another order; None where that
    does not show all of it.
    """
    if shown is None or shown.start:
        return None
    dense = Strided.whole(shown.shape).strides
    places = {
        (n, step): place
        for n, step, place in zip(shown.shape, shown.strides, dense, strict=True)
        if n != 1
    }
    axes = list(zip(whole.shape, whole.strides, strict=True))
    if sorted(places) != sorted(axis for axis in axes if axis[0] != 1):
        return None
    return Strided(0, whole.shape, tuple(0 if n == 1 else places[n, step] for n, step in axes))


def _viewing(
    flat: Flat, k: int, origins: dict[int, Origin], behind: tuple[int, Strided] | None
) -> Step | None:
    """The step that does without the copies before it and the one behind it; None where there are
    none.
    """
    of = flat.steps[k]
    found = [
        None if v is None or j >= views_of(of.op) else origins.get(v)
        for j, v in enumerate(of.operands)
    ]
    if flat.converts(of) or (not any(found) and behind is None):
        return None
    operands = tuple(o.base if o else v for o, v in zip(found, of.operands, strict=True))
    views = Views(
        of.op, tuple(of.attrs.items()), tuple(o.view if o else None for o in found),
        behind[1] if behind else None,
    )  # fmt: skip
    last = flat.steps[behind[0]] if behind else of
    copies = {id(s): s for o in found if o for s in o.steps if not s.op.traits.reinterprets}
    members = (of, *copies.values(), *([last] if behind else []))
    seen = tuple(None if v is None else flat.types[v] for v in operands)
    return Step(
        viewing, operands, last.results, seen, {"views": views}, of.frame, of.statement,
        members=members,
    )  # fmt: skip


def _without_copies(flat: Flat, begin: int, made: dict[int, Step], gone: set[int]) -> Flat:
    """The graph with these steps, and without what moves elements that nobody reads any more."""
    read = set(flat.outputs)
    kept: list[tuple[Step, int]] = []
    kinds = flat.kinds.copy()
    for k in reversed(range(len(flat.steps))):
        step = made.get(k, flat.steps[k])
        unread = k < begin and moves(step) and not any(v in read for v in step.results)
        if k in gone or unread:
            if not step.op.traits.reinterprets and k not in gone:
                for v in step.results:
                    kinds[flat.homes[v]] = "none"
            continue
        if k in made:
            for v in flat.steps[k].results:
                if v not in step.results:
                    kinds[flat.homes[v]] = "none"
        read.update(v for v in (*step.operands, *step.touched) if v is not None)
        kept.append((step, flat.costs[k]))
    kept.reverse()
    steps, costs = [s for s, _ in kept], [c for _, c in kept]
    return replace(flat, steps=steps, costs=costs, kinds=kinds)
