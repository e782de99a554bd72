"""Steps that read their operands through strides, instead of copies of them.

A copy that only moves elements is left out where all its readers can read the tensor that it copies
by strides. These readers are:

- other copies: a transpose of a part of a tensor becomes one copy of that tensor (`moved`);
- elementwise ops, single ones or groups, where elements of a row stay close to each other;
- attention, whose heads are parts of one tensor; a transpose of its result is left out too, and the
  result is written in that order.

Reshapes between them copy nothing. Where strides cannot express what a reshape gives, nothing is
left out. The device says which views its kernels take. Copies that move nothing, as transposes over
axes of length 1, are left out before all that (`without_idle_moves`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from opstep.runtime.ir.interfaces import lays_out_of, views_of
from opstep.runtime.ir.op import AttrSpec, Op, OperandSpec, Traits
from opstep.runtime.ir.strided import Places, Strided, Untellable
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.cost import WORTH_A_KERNEL_NS
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.fusing import Grouping, fused, is_elementwise
from opstep.runtime.plan.internal import Described, PlanOp
from opstep.runtime.plan.plan import Step, Takes

NEAR = 64  # steps from a copy to its reader: the tensor that is copied has to live as long
CLOSE = 4  # the largest stride along a row that a loop reads: memory is read in cache lines


class moved(PlanOp):
    """The elements of `x` that a `Strided` names (kernels in `kernels.move.layout`)."""

    name = "moved"
    operands = (OperandSpec("x", "T", "T", False, False),)
    attrs = (AttrSpec("start", "int", True, None), AttrSpec("strides", "ints", True, None))
    traits = Traits(moves=True)


class shown(PlanOp):
    """`x` under another shape, in place of a copy that has its elements in the same order."""

    name = "shown"
    operands = (OperandSpec("x", "T", "T", False, False),)
    traits = Traits(moves=True, reinterprets=True)


class viewing(PlanOp):
    """An op on views of its operands (kernels in `kernels.move.views`)."""

    name = "fused"
    traits = Traits(as_stored=True)

    def flops(*types, views):
        return views.op.flops(*views.types(types), **dict(views.attrs))


@dataclass(frozen=True, repr=False)
class Views(Described):
    """The computation of a `viewing` op: `op` of views of its operands (None: the whole operand).
    The result is written to the places in memory that `result` names (None: row by row).
    """

    op: type[Op]
    attrs: tuple[tuple[str, Any], ...]
    operands: tuple[Strided | None, ...]
    result: Strided | None

    @property
    def inplace(self) -> tuple[int, ...]:
        """Operands whose buffer a result may take over."""
        whole = (k for k, view in enumerate(self.operands) if view is None)
        return tuple(k for k in whole if k in self.op.inplace)

    def types(self, stored) -> list[TensorType | None]:
        """Of the op's operands."""
        return [
            t if t is None or view is None else t.with_shape(view.shape)
            for t, view in zip(stored, self.operands, strict=False)
        ]


class Origin(NamedTuple):
    """A value as elements of another one, `base`, and the steps that moved them."""

    base: int
    view: Strided
    steps: tuple[Step, ...]

    @property
    def copies(self) -> list[Step]:
        return [s for s in self.steps if not s.op.traits.reinterprets]

    def spares(self, read: set[int]) -> bool:
        """Whether a copy is not needed any more, where other steps read the values in `read`."""
        return any(read.isdisjoint(s.results) for s in self.copies)


def with_views(flat: Flat, takes: Takes | None) -> Flat:
    """The graph with such steps. `takes`: whether the device has kernels for one of attention."""
    viewer = _Viewer(flat, takes)
    return viewer.replaced() if viewer.made else flat


class _Viewer:
    """`found`: for each step that may read views, the origins of its operands. `made`: the steps
    that replace it. `gone`: copies whose results other steps write.
    """

    def __init__(self, flat: Flat, takes: Takes | None):
        self.flat = flat
        self.takes = takes
        self.begin = len(flat.steps) - flat.commits
        self.made: dict[int, list[Step]] = {}
        self.gone: set[int] = set()
        self.origins = origins_of(flat, self.begin)
        if not any(origin.copies for origin in self.origins.values()):
            return
        self._grouping = Grouping(flat)
        self._places = {id(step): k for k, step in enumerate(flat.steps)}
        self._images = takes is not None and any(lays_out_of(s.op) is not None for s in flat.steps)
        found = ((k, self._near(k, step)) for k, step in enumerate(flat.steps[: self.begin]))
        self.found = {k: near for k, near in found if near}
        read = self._read_by_others()
        bases = {origin.base for own in self.found.values() for origin in own.values()}
        for k, own in sorted(self.found.items()):
            step = flat.steps[k]
            free = {v: o for v, o in own.items() if v not in read and o.spares(read)}
            if moves(step):
                self._join(k, step, own, free)
            elif views_of(step.op):
                self._view(k, step, free, None if bases & {*step.results} else self._behind(k))
            elif free:
                group = step if step.op is fused else self._grouping.step([k])[0]
                self.made[k] = [_viewing(flat, group, free, None)] if group.results else [step]

    def _near(self, k: int, step: Step) -> dict[int, Origin]:
        """The origins of operands that a step can read by strides, and that were copied nearby."""
        if moves(step):
            count = 0 if step.op.traits.reinterprets else 1
            near = k
        elif views_of(step.op):
            count, near = views_of(step.op) if self.takes else 0, NEAR
        else:
            count, near = len(step.operands) if self._loops(step) else 0, NEAR
        own = {v: self.origins[v] for v in step.operands[:count] if v in self.origins}
        found: dict[int, Origin] = {}
        for v, origin in own.items():  # pyright: ignore[reportUnknownVariableType]
            close = moves(step) or views_of(step.op) or _is_close(origin.view)
            nearby = all(k - self._places[id(s)] <= near for s in origin.steps)
            if v is not None and origin.copies and close and nearby:
                found[v] = origin
        alone = not moves(step) and not views_of(step.op) and step.op is not fused
        return {} if alone and not self._is_worth(found) else found

    def _loops(self, step: Step) -> bool:
        """Whether a step is elementwise, and not one that layouts or epilogues may take."""
        if step.op is not fused and not is_elementwise(step):
            return False
        flat = self.flat
        if self._images and flat.types[step.results[0]].rank == 4:
            return False
        return self.takes is None or not any(v in self._ending for v in step.operands)

    @cached_property
    def _ending(self) -> set[int]:
        return {v for s in self.flat.steps if s.op.traits.epilogues for v in s.results}

    def _is_worth(self, found: dict[int, Origin]) -> bool:
        """Whether copies take so long that a kernel of its own is worth it for a single op."""
        copies = {id(s) for origin in found.values() for s in origin.copies}
        return sum(self.flat.costs[self._places[at]] for at in copies) >= WORTH_A_KERNEL_NS

    def _read_by_others(self) -> set[int]:
        """Values that have to be in memory where all steps in `found` read the origins instead."""
        flat, read = self.flat, set(self.flat.outputs)
        for k in reversed(range(len(flat.steps))):
            step, own = flat.steps[k], self.found.get(k, {})
            idle = k < self.begin and moves(step) and not any(v in read for v in step.results)
            if not idle:
                read.update(own[v].base if v in own else v for v in step.values_read)
        return read

    def _join(self, k: int, step: Step, own: dict[int, Origin], free: dict[int, Origin]) -> None:
        """Replaces a copy of a copy by one copy for each result, if strides express it."""
        results = [self.origins.get(v) for v in step.results]
        if own == free and all(results):
            origins = zip(step.results, results, strict=True)
            self.made[k] = [
                moving(self.flat, o.base, v, o.view, step, o.steps) for v, o in origins if o
            ]

    def _view(
        self, k: int, step: Step, free: dict[int, Origin], behind: tuple[int, Strided] | None
    ) -> None:
        assert self.takes is not None
        for way in dict.fromkeys((behind, None)):
            made = None
            if not self.flat.converts(step) and (free or way):
                made = _viewing(self.flat, step, free, way)
            if made is not None and self.takes(made, self.flat.stored(made)):
                self.made[k] = [made]
                self.gone |= {way[0]} if way else set()
                return

    def _behind(self, k: int) -> tuple[int, Strided] | None:
        """The transpose that alone reads a step's result, and the places of that result's elements
        in the memory of the transpose.
        """
        flat = self.flat
        (result,) = flat.steps[k].results
        readers = self._grouping.readers.get(flat.homes[result], [])
        at = readers[0] if len(readers) == 1 else self.begin
        if at >= self.begin:
            return None
        step = flat.steps[at]
        if not moves(step) or step.op.traits.reinterprets or len(step.results) != 1:
            return None
        shape: Any = flat.types[result].shape
        (shown,) = step.op.shows(Places.whole(shape), **step.attrs)
        places = _inverse(Strided.whole(shape), shown.strided())
        return None if places is None else (at, places)

    def replaced(self) -> Flat:
        """The graph with these steps, without copies that nothing reads."""
        flat = self.flat
        read = set(flat.outputs)
        made: dict[int, list[tuple[Step, int]]] = {}
        for k in reversed(range(len(flat.steps))):
            step = flat.steps[k]
            now = [] if k in self.gone else self.made.get(k, [step])
            if k < self.begin and moves(step):
                now = [s for s in now if any(v in read for v in s.results)]
            for s in now:
                read.update(s.values_read)
            if k in self.made or not now:
                made[k] = [(s, max(1, flat.costs[k] // len(now))) for s in now]
        return flat.replaced(made)


def origins_of(flat: Flat, begin: int) -> dict[int, Origin]:
    """The origins of values that are made by moving elements, as far as strides express them."""
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
            if step.op.traits.reinterprets:
                shape: Any = flat.types[step.results[0]].shape
                views = [places.reshaped(shape)]
            else:
                views = step.op.shows(places, **step.attrs)
        except Untellable:
            continue
        for v, view in zip(step.results, views, strict=True):
            if flat.types[v].dtype is t.dtype:
                found[v] = base, view, (*steps, step)
    strided = ((v, base, places.strided(), steps) for v, (base, places, steps) in found.items())
    return {v: Origin(base, view, steps) for v, base, view, steps in strided if view is not None}


def _is_close(view: Strided) -> bool:
    """Whether neighbours in the rows of a view are close in memory."""
    along = [step for n, step in zip(view.shape, view.strides, strict=True) if n != 1]
    return not along or abs(along[-1]) <= CLOSE


def _inverse(whole: Strided, shown: Strided | None) -> Strided | None:
    """The places of a tensor's elements in `shown`, a view of it with its axes permuted and stored
    row by row; None where `shown` has not all of its elements.
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
    flat: Flat, of: Step, origins: dict[int, Origin], behind: tuple[int, Strided] | None
) -> Step:
    """The step that needs no copies before it, nor the transpose after it (`behind`)."""
    most = views_of(of.op) or len(of.operands)
    found = [None if v is None or j >= most else origins.get(v) for j, v in enumerate(of.operands)]
    operands = tuple(o.base if o else v for o, v in zip(found, of.operands, strict=True))
    views = Views(
        of.op, tuple(of.attrs.items()), tuple(o.view if o else None for o in found),
        behind[1] if behind else None,
    )  # fmt: skip
    last = flat.steps[behind[0]] if behind else of
    copies = {id(s): s for o in found if o for s in o.copies}
    members = (*(of.members or (of,)), *copies.values(), *([last] if behind else []))
    seen = tuple(None if v is None else flat.types[v] for v in operands)
    return Step(
        viewing, operands, last.results, seen, {"views": views}, of.frame, of.statement,
        members=members,
    )  # fmt: skip


def moving(
    flat: Flat, source: int, result: int, view: Strided, of: Step, members: tuple[Step, ...] = ()
) -> Step:
    """A step that copies the elements of `source` that `view` names to `result`, in place of `of`,
    or for it.
    """
    return Step(
        moved, (source,), (result,), (flat.types[source],),
        {"start": view.start, "strides": view.strides}, of.frame, of.statement, members=members,
    )  # fmt: skip


def without_idle_moves(flat: Flat) -> Flat:
    """The graph without copies that keep the order of their operand's elements, as transposes do
    where all axes but one have length 1. Their results are the operand under another shape.
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
    """Whether a step is a copy that keeps the order of its operand's elements in memory. These are
    where `source` says, or row by row. `order`: the axes of the result in the order in which it is
    to be stored.
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
    """Whether the result of such a copy may have its operand's memory. `fixed`: buffers of
    outputs.
    """
    source = flat.homes[step.operands[0] or 0]
    return flat.kinds[source] in ("temp", "input") and flat.homes[step.results[0]] not in fixed


def moves(step: Step) -> bool:
    """Whether a step only moves elements of its one operand, or reinterprets it."""
    return (step.op.traits.reinterprets or step.op.shows is not None) and len(step.operands) == 1
