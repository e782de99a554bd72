"""Values set by hand, and their places: they hold there whatever else is changed, before or after.

A change belongs to a *location*: which plan, called from where, in which turn, and there a value,
or the point that was next. What is run again passes the same locations, in the same order; so a
change that was undone because something before it was set is made again when its location is
reached. A location that is passed without being reached (a loop has fewer turns now) takes its
change with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation, Location, Node


class Change:
    """Of a value of an activation; `value` is -1 where it is one of a named tensor. `part`: which
    elements of `array` were given, None for all: the others stay what they are computed to be.
    `frames`: those of the plan in which it holds, None for all. `position`: where it was made; None
    while its location is still to come.
    """

    def __init__(
        self, name: str, points: Any, value: int, location: Location, array: np.ndarray,
        part: np.ndarray | None, frames: frozenset[int] | None = None,
    ):  # fmt: skip
        self.name = name
        self.points = points
        self.value = value
        self.location = location
        self.array = array
        self.part = part
        self.frames = frames
        self.position: int | None = None
        self._cached: tuple[Node | None, Node] | None = None

    @property
    def named(self) -> bool:
        return self.value < 0

    def of(self, old: Node, executor: Any) -> Node:
        """The node that it makes of a value. The same value gives the same node: what was computed
        from it can be taken again.
        """
        base = None if self.part is None else old
        if self._cached is None or self._cached[0] is not base:
            array = self.array
            if self.part is not None:
                array = np.array(executor.array(old), order="C")
                array[self.part] = self.array[self.part]
            self._cached = base, executor.new_node(old.type, array, self.name)
        return self._cached[1]


@dataclass
class Changes:
    """All of a run, in the order in which they were made; `waiting` are those to come, by plan and
    value.
    """

    waiting: dict[tuple[int, int], list[Change]] = field(default_factory=dict)
    _all: list[Change] = field(default_factory=list)

    def add(self, change: Change, position: int) -> None:
        """One that holds from this position on."""
        change.position = position
        self._all.append(change)

    def active_on(self, points: Any, value: int, location: Location) -> list[Change]:
        """Those of a value that hold, the wider ones first: what is set where a graph was called is
        set after what was set in it.
        """
        found = [c for c in self._all if c.value == value and c.location == location]
        found = [c for c in found if c.points is points and c.position is not None]
        return sorted(found, key=lambda c: -inf if c.frames is None else -len(c.frames))

    def cut(self, when: int) -> None:
        """Changes after a position are to come again."""
        for change in self._all:
            if change.position is not None and change.position > when:
                change.position = None
                self.waiting.setdefault((id(change.points), change.value), []).append(change)

    def pop_due(self, points: Any, value: int, location: Location) -> list[Change]:
        """Those whose location is reached, which wait no longer."""
        key = (id(points), value)
        found = [c for c in self.waiting.get(key, ()) if c.location == location]
        if found:
            self._remove_waiting(key, found)
        return sorted(found, key=self._all.index)

    def drop_passed(self, location: Location) -> list[str]:
        """Forgets those whose location will not come any more; gives their names."""
        undone = [
            (k, c) for k, waiting in self.waiting.items() for c in waiting if c.location < location
        ]
        for key, change in undone:
            self._remove_waiting(key, [change])
            self._all.remove(change)
        return list(dict.fromkeys(change.name for _, change in undone))

    def forget(self, begin: int, location: Location) -> list[str]:
        """Those of values from the position on where a step begins, of named tensors after it, and
        what is to come hold no longer; gives their names.
        """

        def is_forgotten(change: Change) -> bool:
            return change.position is None or change.position >= begin + change.named

        forgotten = [change.name for change in self._all if is_forgotten(change)]
        self._all = [change for change in self._all if not is_forgotten(change)]
        for change in self._all:
            if change.position == begin:  # by a jump within the step it may have been elsewhere
                change.points, change.location = None, location
        self.waiting.clear()
        return list(dict.fromkeys(forgotten))

    def forget_before(self, base: int) -> None:
        """Nobody goes back before this position any more."""
        self._all = [c for c in self._all if c.position is None or c.position >= base]

    def affect(self, begin: int) -> bool:
        """Whether a step that begins at this position is not what it would be by itself."""
        return bool(self.waiting) or any(
            not c.named and c.position is not None and c.position >= begin for c in self._all
        )

    def clear(self) -> None:
        self._all.clear()
        self.waiting.clear()

    def _remove_waiting(self, key: tuple[int, int], found: list[Change]) -> None:
        left = [c for c in self.waiting[key] if c not in found]
        if left:
            self.waiting[key] = left
        else:
            del self.waiting[key]


def definition_point(activation: Activation, value: int) -> float:
    """The point of an activation that gives it a value: -1 for what it was given; of control flow
    its end, which is after all that it calls.
    """
    for k, point in enumerate(activation.points.points):
        step = activation.plan.steps[point.step] if point.step >= 0 else None
        if step is not None and value in step.results:
            return k + 0.5 if step.op.traits.host else k
    return -1


def frames_of(activation: Activation, value: int, frame: int) -> frozenset[int] | None:
    """In which frames of a plan it is seen that a value is set in one of them; None for all. What a
    call gave is set after the call, what a graph was given is set in it.
    """
    frames = activation.plan.frames
    steps = activation.plan.steps
    outer_frame = next((s.frame for s in steps if value in s.results), 0)

    def within(inner: int, outer: int) -> bool:
        while inner > outer:
            inner = frames[inner].parent
        return inner == outer

    every = range(len(frames))
    if not within(outer_frame, frame):
        return frozenset(f for f in every if within(f, frame))
    if outer_frame == frame:
        return None
    while frames[outer_frame].parent != frame:
        outer_frame = frames[outer_frame].parent
    return frozenset(f for f in every if not within(f, outer_frame))
