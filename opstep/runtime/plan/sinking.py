"""Steps moved down to where their results are read, if less is held that way.

A text computes things in an order that reads well: of a matrix product the derivative by one
operand, then by the other, which frees the first. A step is moved towards the first one that reads
its results, for as long as the operands that have to be held longer for it take less than these
results. So at no moment more lives than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import assert_, snapshot, update
from opstep.runtime.plan.memory import most_live
from opstep.runtime.plan.plan import Step

_WORTH = 4096  # bytes: for less a text keeps its order
_GAP = 40  # bits: how often a place between two neighbours can be halved


class Movable(NamedTuple):
    """What memory sees of a step: buffers that it reads, also through views, and that it makes.

    A view makes none, but its `made` is what it shows. `fixed`: it stays where it is.
    """

    read: Sequence[int]
    made: Sequence[int]
    is_view: bool
    fixed: bool


def sunk(flat: Flat) -> Flat:
    """The flat graph in such an order, if it takes less memory then. The commits, control flow and
    asserts stay in theirs.
    """
    homes, kinds = flat.homes, flat.kinds
    begin = len(flat.steps) - flat.commits
    written = (v for s in flat.steps[:begin] if not s.op.traits.reinterprets
               for v in (*s.results, *s.changed))  # fmt: skip
    pinned = {homes[v] for v in written if kinds[homes[v]] != "temp"}
    pinned |= {homes[v] for v in flat.outputs}

    def movable(k: int, step: Step) -> Movable:
        read = [homes[v] for v in step.operands if v is not None]
        made = [homes[v] for v in step.results]
        op, fixed = step.op, k >= begin or not pinned.isdisjoint((*read, *made))
        fixed = (
            fixed
            or op.traits.host
            or op.traits.foreign
            or op.traits.collective
            or op in (assert_, update, snapshot)
        )
        temps = [b for b in read if kinds[b] == "temp"]
        return Movable(temps, made, op.traits.reinterprets, fixed)

    steps, costs = flat.steps, flat.costs
    order = sunk_order([movable(k, s) for k, s in enumerate(steps)], flat.sizes, begin)
    if order is None:
        return flat
    other = replace(flat, steps=[steps[k] for k in order], costs=[costs[k] for k in order])
    return other if most_live(other) < most_live(flat) else flat


def sunk_order(steps: Sequence[Movable], sizes: Sequence[int], begin: int) -> list[int] | None:
    """The steps in such an order; None if it is the one they have. None passes step `begin`."""
    return _Order(steps, sizes, begin).found()


class _Order:
    """Steps from the last to the first, each put into a list of those behind it. A step's `place`
    is a number that grows along the list; `after` and `before` are its neighbours.
    """

    def __init__(self, steps: Sequence[Movable], sizes: Sequence[int], begin: int):
        count = len(steps)
        self.steps = steps
        self.sizes = sizes
        self.begin = begin
        self.place = [k << _GAP for k in range(count)]
        self.after = list(range(1, count + 1))
        self.before = list(range(-1, count - 1))
        self.first: dict[int, int] = {}  # buffer -> the first step behind that uses it
        self.last: dict[int, int] = {}  # buffer -> the last one

    def found(self) -> list[int] | None:
        count, moved = len(self.place), False
        for i in range(count - 1, -1, -1):
            step = self.steps[i]
            if not step.fixed:
                target = self._target(i, step)
                if target != i + 1 and self._moved(i, target):
                    moved = True
            self._note(i, (*step.read, *step.made))
        return sorted(range(count), key=self.place.__getitem__) if moved else None

    def _target(self, i: int, step: Movable) -> int:
        """The step in front of which step i is to stand."""
        place, first, last, sizes = self.place, self.first, self.last, self.sizes
        readers = [first[b] for b in step.made if b in first]
        if not readers:
            return i + 1
        reader = min(readers, key=place.__getitem__)
        if reader >= self.begin:
            reader = self.begin  # its results may be read later still
        if reader == i + 1 or step.is_view:
            return reader
        gain, held = sum(sizes[b] for b in step.made), 0
        if gain < _WORTH:
            return i + 1
        for when, b in sorted({(place[last[b]] if b in last else -1, b) for b in step.read}):
            if when >= place[reader]:
                break
            held += sizes[b]
            if held >= gain:
                return self.after[last[b]] if when >= 0 else i + 1
        return reader

    def _moved(self, i: int, target: int) -> bool:
        """Puts step i, the first of the list, in front of another one, if there is a place."""
        before = self.before[target]
        low, high = self.place[before], self.place[target]
        if before == i or high - low < 2:
            return False
        head = self.after[i]
        self.before[head] = self.before[i]
        if i:
            self.after[i - 1] = head
        self.place[i] = (low + high) // 2
        self.after[before] = self.before[target] = i
        self.before[i], self.after[i] = before, target
        return True

    def _note(self, i: int, used: Iterable[int]) -> None:
        place, first, last = self.place, self.first, self.last
        for b in used:
            if b not in first or place[i] < place[first[b]]:
                first[b] = i
            if b not in last or place[i] > place[last[b]]:
                last[b] = i
