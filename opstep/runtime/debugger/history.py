"""What has been run under the debugger, and how to look back at it.

A *position* is a number of points passed. Up to the end of the log, the *frontier*, the *cursor*
moves freely. To change something in the past cuts the log there; what was cut off is remembered in
`memo`, from which ops that are run again with the same operands take their results.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.changes import (
    END,
    Change,
    Changes,
    Place,
    birth_of,
    frames_of,
    place_of,
)
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import OP, Point
from opstep.runtime.device.protocols import Device, Memory
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Plan, Policy

MOST = 1_000_000  # points that are remembered; then the older half is forgotten
LEAST = 20_000  # of them, however small the budget is
POINT = 1000  # bytes that remembering one takes, beside its tensors


class Host(Protocol):
    """Where a machine's plans and named tensors come from."""

    device: Device
    tensors: Mapping[str, Any]  # the program's named tensors

    def plan_for(self, graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan: ...

    def tensor(self, name: str) -> tuple[TensorType, Memory]:
        """A named tensor as it is before the run: its type and its memory on the device."""
        ...


class History:
    """Of one run. `at` and `pc` say which point is run next at the frontier; `at` is None when all
    is done.
    """

    def __init__(self, host: Host, executor: Executor):
        self.host = host
        self.executor = executor
        self.fine = executor.make(STATUS, 0, "status")
        self.base = 0  # positions that were forgotten
        self.log: list[tuple[Activation, int]] = []
        self.cursor = 0
        self.named: dict[str, list[tuple[int, Node]]] = {}
        self.finished: list[tuple[int, Activation]] = []  # steps that ended, and where
        self.memo: dict[tuple, tuple[Node, ...]] = {}  # what was cut off: op, operands -> results
        self.changes = Changes()
        self.on_lost: Callable[[list[str]], None] = lambda names: (
            None
        )  # changes that hold no longer
        self.partial: tuple[Producer, list[Any], int] | None = None  # launches done of an op
        self.at: Activation | None = None
        self.pc = 0
        self._delivered: dict[int, list[tuple[Activation, int]]] = {}

    # --- where it stands ---

    @property
    def frontier(self) -> int:
        """The position of what was run last."""
        return self.base + len(self.log)

    def here(self) -> tuple[Activation, Point] | None:
        """The point that is next at the cursor; None at the end."""
        if self.cursor < self.frontier:
            activation, k = self.log[self.cursor - self.base]
            return activation, activation.points[k]
        if self.at is None:
            return None
        return self.at, self.at.points[self.pc]

    def index(self) -> int:
        """The number of that point in its plan."""
        if self.cursor < self.frontier:
            return self.log[self.cursor - self.base][1]
        return self.pc

    def delivered(self) -> list[tuple[Activation, int]]:
        """What control flow that ended with the point passed last has given: values of whom."""
        return self._delivered.get(self.cursor, [])

    def behind(self) -> tuple[Activation, Point] | None:
        """The point passed last; None at the beginning."""
        if self.cursor <= self.base:
            return None
        activation, k = self.log[self.cursor - 1 - self.base]
        return activation, activation.points[k]

    def tensor(self, name: str, position: int | None = None) -> Node:
        """A named tensor's version at a position, the cursor's if none is given."""
        when = self.cursor if position is None else position
        versions = self._versions(name)
        later = bisect.bisect_right(versions, when, key=itemgetter(0))
        return versions[max(later - 1, 0)][1]

    def version(self, name: str, position: int, changes: int) -> Node | None:
        """A named tensor as it was so many changes before a position; None if it was not yet."""
        versions = self._versions(name)
        at = bisect.bisect_right(versions, position, key=itemgetter(0)) - 1 - changes
        return versions[at][1] if at >= 0 else None

    def computed_before(self, activation: Activation, value: int) -> Node | None:
        """What a value of an activation was in the turn, or step, before that computed it."""
        points, last = activation.points, activation
        for position in range(self.cursor - 1, self.base - 1, -1):
            other = self.log[position - self.base][0]
            if other is last:
                continue
            last = other
            if other is not activation and other.points is points:
                found = other.at(value, self.cursor)
                if found is not None:
                    return found
        return None

    # --- moving and cutting ---

    def back(self) -> bool:
        """Goes back by one point; False at the beginning of what is remembered."""
        if self.cursor <= self.base:
            return False
        self.cursor -= 1
        return True

    def cut(self, position: int | None = None) -> None:
        """Forgets what came behind a position; it may be taken from again."""
        when = self.cursor if position is None else position
        self.partial = None
        if when >= self.frontier:
            self.cursor = when
            return
        self.executor.settle()
        tail = self.log[when - self.base :]
        self.at, self.pc = tail[0]
        del self.log[when - self.base :]
        for number, (activation, k) in enumerate(tail, when):
            self._forget(activation, activation.points[k])
            for owner, value in self._delivered.pop(number + 1, ()):
                owner.drop(value)
        for activation in _with_callers(a for a, _ in tail):
            self._restore(activation, when)
        for name, versions in self.named.items():
            self.named[name] = [v for v in versions if v[0] <= when] or versions[:1]
        self.changes.cut(when)
        self.finished = [f for f in self.finished if f[0] <= when]
        self.cursor = when

    def set(
        self,
        activation: Activation,
        value: int,
        frame: int,
        name: str,
        array: np.ndarray,
        part=None,
    ) -> None:
        """A value of an activation, as a frame sees it, is another one from where it came on: the
        cursor is there then. `part`: which elements are given, None for all. Raises `InputError`.
        """
        since = activation.env[value][0]
        if since < self.base:
            hint = "set something newer, or begin anew"
            raise InputError(f"what was computed from {name} is not remembered any more", hint=hint)
        self.cut(since)
        place = place_of(activation, birth_of(activation, value))
        frames = frames_of(activation, value, frame)
        self.changes.add(Change(name, activation.points, value, place, array, part, frames), since)
        self._change_value(activation, value, place)

    def set_named(self, name: str, array: np.ndarray, part=None) -> None:
        """From the cursor on, a named tensor is another one."""
        self.cut()
        change = Change(name, self._next(), -1, self.place(), array, part)
        self.changes.add(change, self.cursor)
        self._change_named(change)

    def place(self) -> Place:
        """The cursor's."""
        here = self.here()
        return END if here is None else place_of(here[0], self.index())

    def _next(self) -> Any:
        """The plan that is under way at the frontier; None between two steps, whatever they run."""
        at = self.at
        return None if at is None or (at.parent is None and not self.pc) else at.points

    def _arrived(self) -> None:
        """Another point is next at the frontier: changes that belong there are made again."""
        place = self.place()
        for change in self.changes.due(self._next(), -1, place):
            change.position = self.frontier
            self._change_named(change)
        lost = self.changes.passed(place)
        if lost:
            self.on_lost(lost)

    def _give(self, activation: Activation, value: int, since: int, node: Node, k: float) -> None:
        """A value is there, which the point `k` of its activation gave."""
        activation.env[value] = (since, node)
        if (id(activation.points), value) in self.changes.waiting:
            place = place_of(activation, k)
            for change in self.changes.due(activation.points, value, place):
                change.position = since
            self._change_value(activation, value, place)

    def _change_value(self, activation: Activation, value: int, place: Place) -> None:
        """Makes all changes of a value, in place of those that were made before."""
        since = activation.env[value][0]
        node = activation.drop(value)
        assert node is not None
        changes, versions = self.changes.on(activation.points, value, place), [node]
        for change in changes:
            if change.frames is None:
                versions.append(change.of(versions[-1], self.executor))
                continue
            for frame in change.frames:
                scoped = activation.scoped.setdefault((value, frame), versions[:])
                scoped.append(change.of(scoped[-1], self.executor))
        activation.env[value] = (since, versions[-1])
        if versions[1:]:
            activation.replaced[value] = [(since, since, n) for n in versions[:-1]]

    def _change_named(self, change: Change) -> None:
        """What is under way finds the named tensor changed, too."""
        name, position = change.name, change.position
        assert position is not None
        versions = self._versions(name)
        versions.append((position, change.of(versions[-1][1], self.executor)))
        for activation in self._under_way():
            for value, meant in activation.points.named.items():
                if meant == name and value in activation.env:
                    since, old = activation.env[value]
                    activation.replaced.setdefault(value, []).append((position, since, old))
                    activation.env[value] = (position, change.of(old, self.executor))

    def keep(self, moved: Mapping[int, Any]) -> None:
        """Memory that is going to be overwritten, by its id, has been copied: what lies there is
        looked for in the copy from now on.
        """
        activations = _with_callers([*self._under_way(), *(a for a, _ in self.log)])
        activations += [a for _, a in self.finished]
        nodes = [n for a in activations for _, n in a.env.values()]
        nodes += [n for a in activations for old in a.replaced.values() for *_, n in old]
        nodes += [n for versions in self.named.values() for _, n in versions]
        nodes += [n for results in self.memo.values() for n in results]
        for node in nodes:
            node.memory = moved.get(id(node.memory), node.memory)

    # --- what is known ---

    def _versions(self, name: str) -> list[tuple[int, Node]]:
        versions = self.named.get(name)
        if versions is None:
            t, memory = self.host.tensor(name)
            versions = self.named[name] = [(0, Node(t, name, memory))]
        return versions

    def _forget(self, activation: Activation, point: Point) -> None:
        """Takes back what a point did; what it computed can be taken from again."""
        if point.kind != OP:
            return
        step = activation.plan.steps[point.step]
        for event in point.records:
            activation.events.pop(event, None)
        for v in (*step.results, *step.changed):
            made = activation.drop(v)
            producer = made.producer if made else None
            if producer is not None and producer.step is step:
                self.memo[activation.points.key(step), producer.operands] = producer.results

    def _restore(self, activation: Activation, when: int) -> None:
        """Undoes what was set behind a position."""
        for value, changes in list(activation.replaced.items()):
            later = [c for c in changes if c[0] > when]
            if later and value in activation.env:
                activation.env[value] = later[0][1:]
            activation.replaced[value] = [c for c in changes if c[0] <= when]

    def _forget_oldest(self) -> None:
        """The older half of the log; what is needed of it stays, as if it had been given."""
        half = len(self.log) // 2
        self.executor.settle()
        kept = {id(p): p for a, k in self.log[half:] for p in _producers(a, k)}
        for producer in kept.values():
            for node in producer.operands:
                self._given_from_now(node, kept)
        self.memo.clear()
        self.changes.keep_from(self.base + half)
        del self.log[:half]
        self.base += half
        self._delivered = {p: d for p, d in self._delivered.items() if p > self.base}
        old = [f for f in self.finished if f[0] <= self.base]
        self.finished = old[-1:] + [f for f in self.finished if f[0] > self.base]
        for name, versions in self.named.items():
            old = [v for v in versions if v[0] <= self.base]
            self.named[name] = old[-1:] + [v for v in versions if v[0] > self.base]
            self._given_from_now(self.named[name][0][1], kept)
        under_way = self._under_way()
        made = {id(n.producer) for a in under_way for _, n in a.env.values()}
        arenas = {id(a.arena) for a in (*under_way, *(a for a, _ in self.log))}
        self.executor.forget(kept.keys() | made, arenas)

    def _under_way(self) -> list[Activation]:
        """What has not ended: its values may be old, and are not forgotten."""
        return _with_callers([] if self.at is None else [self.at])

    def _given_from_now(self, node: Node | None, kept: Mapping[int, Producer]) -> None:
        """Cuts the way back from a node that a forgotten op made: else all of them would stay."""
        if node is None or node.producer is None or id(node.producer) in kept:
            return
        self.executor.ensure(node)
        node.producer = node.home = None


def _with_callers(activations: Iterable[Activation]) -> list[Activation]:
    """These and all that they were called from, each once."""
    found: dict[int, Activation] = {}
    for each in activations:
        activation: Activation | None = each
        while activation is not None and id(activation) not in found:
            found[id(activation)] = activation
            activation = activation.parent
    return list(found.values())


def _producers(activation: Activation, k: int) -> list[Producer]:
    """What a point of the log computed."""
    point = activation.points[k]
    if point.kind != OP:
        return []
    found = (activation.env.get(v) for v in activation.plan.steps[point.step].results)
    return [f[1].producer for f in found if f is not None and f[1].producer is not None]
