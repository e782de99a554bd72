"""Steps that read their operands where they are, and write results where they go.

A copy that only moves elements is left out where what reads it can walk along the strides of what
is copied, and nobody else reads the copy:

- another copy: a transpose of a part of a tensor is made of that tensor at once (`moved`);
- elementwise ops, single ones or groups, where neighbours stay near each other;
- attention, whose heads are parts of one tensor; a transpose behind it is left out, too, as its
  result is then written in that order.

Reshapes between them are no copies; where strides cannot tell what one gives, nothing is left out.
It is the device that says which views its kernels take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from opstep.runtime.ir.interfaces import lays_out_of, views_of
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.strided import Places, Strided, Untellable
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.body import fused
from opstep.runtime.plan.cost import WORTH_A_KERNEL_NS
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.fusing import Grouping, is_elementwise
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.plan.moving import moved, moves
from opstep.runtime.plan.plan import Step, Takes

NEAR = 64  # steps between a copy and who reads it: what it is a copy of has to live as long
CLOSE = 4  # elements from one to the next along a row that a loop reads: memory comes in lines


class viewing(PlanOp):
    """An op on views of its operands; `kernels.move.views` says how."""

    name = "fused"
    traits = Traits(as_stored=True)

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

    @cached_property
    def text(self) -> str:
        return repr((self.op.name, self.attrs, self.operands, self.result))

    def __repr__(self) -> str:
        return self.text


class Origin(NamedTuple):
    """What a value is: elements of another value, which these steps have moved."""

    base: int
    view: Strided
    steps: tuple[Step, ...]

    @property
    def copies(self) -> list[Step]:
        return [s for s in self.steps if not s.op.traits.reinterprets]

    def spares(self, read: set[int]) -> bool:
        """Whether a copy is made for nobody else, where others read these."""
        return any(read.isdisjoint(s.results) for s in self.copies)


def with_views(flat: Flat, takes: Takes | None) -> Flat:
    """The same with such steps. `takes`: which of attention's the device has kernels for."""
    viewer = _Viewer(flat, takes)
    return viewer.replaced() if viewer.made else flat


class _Viewer:
    """`found`: of each step that may read views, what its operands are copies of. `made`: the steps
    that take its place. `gone`: copies whose results are written by others.
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
        """What the operands are copies of that a step can read by strides, if made nearby."""
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
        """Whether a step is elementwise, and none that layouts or epilogues are waiting for."""
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
        """Whether copies take so long that a kernel is worth it; a group has one of its own."""
        copies = {id(s) for origin in found.values() for s in origin.copies}
        return sum(self.flat.costs[self._places[at]] for at in copies) >= WORTH_A_KERNEL_NS

    def _read_by_others(self) -> set[int]:
        """Values that have to be in memory if all read what theirs are made of."""
        flat, read = self.flat, set(self.flat.outputs)
        for k in reversed(range(len(flat.steps))):
            step, own = flat.steps[k], self.found.get(k, {})
            idle = k < self.begin and moves(step) and not any(v in read for v in step.results)
            if not idle:
                given = (v for v in (*step.operands, *step.touched) if v is not None)
                read.update(own[v].base if v in own else v for v in given)
        return read

    def _join(self, k: int, step: Step, own: dict[int, Origin], free: dict[int, Origin]) -> None:
        """Copies of what was copied are made of that at once, if strides tell them."""
        results = [self.origins.get(v) for v in step.results]
        if own == free and all(results):
            origins = zip(step.results, results, strict=True)
            self.made[k] = [_moved(self.flat, step, v, o) for v, o in origins if o]

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

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        """The steps that read values; len(flat.steps) stands for those after the run."""
        found: dict[int, list[int]] = {}
        for j, step in enumerate(self.flat.steps):
            for v in {v for v in (*step.operands, *step.touched) if v is not None}:
                found.setdefault(v, []).append(j)
        for v in self.flat.outputs:
            found.setdefault(v, []).append(len(self.flat.steps))
        return found

    def _behind(self, k: int) -> tuple[int, Strided] | None:
        """The transpose that alone reads a step's result, and that as it lies in the
        transpose's.
        """
        flat = self.flat
        (result,) = flat.steps[k].results
        readers = self._readers.get(result, [])
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
        """The graph with these steps, and without what moves elements that nobody reads."""
        flat = self.flat
        read = set(flat.outputs)
        made: dict[int, list[tuple[Step, int]]] = {}
        for k in reversed(range(len(flat.steps))):
            step = flat.steps[k]
            now = [] if k in self.gone else self.made.get(k, [step])
            if k < self.begin and moves(step):
                now = [s for s in now if any(v in read for v in s.results)]
            for s in now:
                read.update(v for v in (*s.operands, *s.touched) if v is not None)
            if k in self.made or not now:
                made[k] = [(s, max(1, flat.costs[k] // len(now))) for s in now]
        return flat.replaced(made)


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
    """Whether what follows each other in a view's rows is near in memory, too."""
    along = [step for n, step in zip(view.shape, view.strides, strict=True) if n != 1]
    return not along or abs(along[-1]) <= CLOSE


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
    flat: Flat, of: Step, origins: dict[int, Origin], behind: tuple[int, Strided] | None
) -> Step:
    """The step that does without the copies before it and the one behind it."""
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


def _moved(flat: Flat, step: Step, result: int, origin: Origin) -> Step:
    view = origin.view
    return Step(
        moved, (origin.base,), (result,), (flat.types[origin.base],),
        {"start": view.start, "strides": view.strides}, step.frame, step.statement,
        members=origin.steps,
    )  # fmt: skip
