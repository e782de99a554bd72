"""The order of steps, where another than the program's takes less memory.

*Deferring.* Updates take effect when a graph ends, so all new values of named tensors would live
until then: with Adam, three times the params. A step that only prepares updates, element by
element, is moved to the end, between the updates: one tensor's new value is stored before the next
one's is computed.

*Sinking.* A program computes values in an order that reads well: of a matrix product the derivative
by one operand, then by the other, which frees the first. A step is moved towards the first step
that reads its results, for as long as the operands that live longer for it take less memory than
these results. So the peak never grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opstep.runtime.plan.flat import Flat, has_place
from opstep.runtime.plan.memory import most_live
from opstep.runtime.plan.plan import Step
from opstep.runtime.plan.schedule import dependencies

WORTH_BYTES = 4096  # for fewer a program keeps its order
_GAP = 40  # bits: how often a place between two neighbours can be halved


# --- deferring ------------------------------------------------------------------------------------


def deferred(flat: Flat) -> Flat:
    """With the steps that prepare updates at the end, and each update as soon as nothing reads the
    old value any more.
    """
    begin = len(flat.steps) - flat.commits
    moved = _preparing(flat, begin)
    if not moved:
        return flat
    order = [k for k in range(begin) if k not in moved] + sorted(moved)
    order += range(begin, len(flat.steps))
    late = len(moved) + flat.commits
    return _updated_soon(flat.ordered(order, late), len(order) - late, len(moved))


def _updated_soon(flat: Flat, first: int, count: int) -> Flat:
    """The graph with each update after the `count` steps from `first` on moved between them, to the
    earliest place that it can have.
    """
    preds, total = dependencies(flat), len(flat.steps)
    left = {u: {p for p in preds[u] if p >= first} for u in range(first + count, total)}
    after: dict[int, list[int]] = {}
    for u, before in left.items():
        for p in before:
            after.setdefault(p, []).append(u)
    order = list(range(first))
    todo = [*range(first, first + count)][::-1] + [u for u in left if not left[u]][::-1]
    while todo:
        k = todo.pop()
        order.append(k)
        for u in after.get(k, ()):
            left[u].discard(k)
            if not left[u]:
                todo.append(u)
    return flat.ordered(order, flat.commits)


def _preparing(flat: Flat, begin: int) -> set[int]:
    """The steps before `begin` that only prepare updates, and whose operands, which have to live
    until then, take no more memory than their results.
    """
    readers, homes = flat.readers(), flat.homes
    early = {homes[v] for s in flat.steps[:begin] for v in s.values_written}
    refused = {
        k
        for k, step in enumerate(flat.steps[:begin])
        if any(v is not None and flat.kinds[homes[v]] == "param" and homes[v] in early
               for v in step.operands)
    }  # fmt: skip
    while True:
        found: set[int] = set()
        for k in range(begin - 1, -1, -1):
            step = flat.steps[k]
            if k in refused or not _elementwise(step):
                continue
            read = [r for v in step.results for r in readers.get(homes[v], ())]
            if read and all(r in found or begin <= r < len(flat.steps) for r in read):
                found.add(k)
        made = {v for k in found for v in flat.steps[k].results}
        holding = {k for k in found if _holds_more(flat, flat.steps[k], made)}
        if not holding:
            return found
        refused |= holding


def _elementwise(step: Step) -> bool:
    return bool(step.op.inplace) and not step.op.traits.overwrites and not has_place(step.op)


def _holds_more(flat: Flat, step: Step, made: set[int]) -> bool:
    """Whether the operands that would have to live longer take more bytes than the results."""
    homes, sizes = flat.homes, flat.sizes
    held = {homes[v] for v in step.operands if v is not None and v not in made}
    nbytes = sum(sizes[b] for b in held if flat.kinds[b] == "temp")
    return nbytes > sum(sizes[homes[v]] for v in step.results)


# --- sinking --------------------------------------------------------------------------------------


class Movable(NamedTuple):
    """A step by the buffers that it reads, also through views, and those that it makes.

    Of a view `made` is the buffer of its operand. `fixed`: it stays where it is.
    """

    read: Sequence[int]
    made: Sequence[int]
    is_view: bool
    fixed: bool


def sunk(flat: Flat) -> Flat:
    """The graph with steps moved down, if it takes less memory then. Commits, control flow and
    asserts keep their order.
    """
    homes, kinds = flat.homes, flat.kinds
    begin = len(flat.steps) - flat.commits
    written = (v for s in flat.steps[:begin] for v in s.values_written)
    pinned = {homes[v] for v in written if kinds[homes[v]] != "temp"}
    pinned |= {homes[v] for v in flat.outputs}

    def movable(k: int, step: Step) -> Movable:
        read = [homes[v] for v in step.operands if v is not None]
        made = [homes[v] for v in step.results]
        fixed = has_place(step.op) or k >= begin or not pinned.isdisjoint((*read, *made))
        temps = [b for b in read if kinds[b] == "temp"]
        return Movable(temps, made, step.op.traits.reinterprets, fixed)

    order = sunk_order([movable(k, s) for k, s in enumerate(flat.steps)], flat.sizes, begin)
    if order is None:
        return flat
    other = flat.ordered(order, flat.commits)
    return other if most_live(other) < most_live(flat) else flat


def sunk_order(steps: Sequence[Movable], sizes: Sequence[int], begin: int) -> list[int] | None:
    """The numbers of the steps in their new order; None where nothing moves. No step moves past
    step `begin`.
    """
    return _Order(steps, sizes, begin).found()


class _Order:
    """A linked list of steps, which are moved down from the last to the first. A step's `place` is
    a number that grows along the list; `after` and `before` are its neighbours.
    """

    def __init__(self, steps: Sequence[Movable], sizes: Sequence[int], begin: int):
        count = len(steps)
        self.steps = steps
        self.sizes = sizes
        self.begin = begin
        self.place = [k << _GAP for k in range(count)]
        self.after = list(range(1, count + 1))
        self.before = list(range(-1, count - 1))
        self.first: dict[int, int] = {}  # buffer -> the first later step that uses it
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
        """The step before which step i is to stand."""
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
        if gain < WORTH_BYTES:
            return i + 1
        for when, b in sorted({(place[last[b]] if b in last else -1, b) for b in step.read}):
            if when >= place[reader]:
                break
            held += sizes[b]
            if held >= gain:
                return self.after[last[b]] if when >= 0 else i + 1
        return reader

    def _moved(self, i: int, target: int) -> bool:
        """Puts step i, the first of the list, before another one, if there is a place."""
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
