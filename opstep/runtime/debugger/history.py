"""What has been run under the debugger, and how to look back at it.

A *position* is a number of points passed. Up to the end of the log, the *frontier*, the *cursor*
moves freely. To change something in the past cuts the log there; what was cut off is remembered in
`memo`, from which ops that are run again with the same operands take their results.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import OP, Point
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Plan, Policy

MOST = 1_000_000  # points that are remembered; then the older half is forgotten
LEAST = 20_000  # of them, however small the budget is
POINT = 1000  # bytes that remembering one takes, beside its tensors


class Host(Protocol):
    """Where a machine's plans and named tensors come from."""

    device: Any
    tensors: Mapping[str, Any]  # the program's named tensors

    def plan_for(self, graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan: ...

    def tensor(self, name: str) -> tuple[TensorType, Any]:
        """A named tensor as it is before the run: its type and its memory on the device."""
        ...


class ByHand(NamedTuple):
    """A value, or a named tensor, that somebody set at a position."""

    position: int
    name: str
    named: bool


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
        self.by_hand: list[ByHand] = []
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
                owner.env.pop(value, None)
        for activation in {id(a): a for a, _ in tail}.values():
            self._restore(activation, when)
        for name, versions in self.named.items():
            self.named[name] = [v for v in versions if v[0] <= when] or versions[:1]
        self.by_hand = [b for b in self.by_hand if b.position <= when]
        self.finished = [f for f in self.finished if f[0] <= when]
        self.cursor = when

    def set(self, activation: Activation, value: int, node: Node) -> None:
        """From the cursor on, a value of an activation is another one."""
        self.cut()
        since, old = activation.env[value]
        activation.replaced.setdefault(value, []).append((self.cursor, since, old))
        activation.env[value] = (since, node)
        self.by_hand.append(ByHand(self.cursor, node.name, named=False))

    def set_named(self, name: str, node: Node) -> None:
        """From the cursor on, a named tensor is another one."""
        self.cut()
        self._versions(name).append((self.cursor, node))
        self.by_hand.append(ByHand(self.cursor, name, named=True))

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
            found = activation.env.pop(v, None)
            producer = found[1].producer if found else None
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
        found, activation = [], self.at
        while activation is not None:
            found.append(activation)
            activation = activation.parent
        return found

    def _given_from_now(self, node: Node | None, kept: Mapping[int, Producer]) -> None:
        """Cuts the way back from a node that a forgotten op made: else all of them would stay."""
        if node is None or node.producer is None or id(node.producer) in kept:
            return
        self.executor.ensure(node)
        node.producer = node.home = None


def _producers(activation: Activation, k: int) -> list[Producer]:
    """What a point of the log computed."""
    point = activation.points[k]
    if point.kind != OP:
        return []
    found = (activation.env.get(v) for v in activation.plan.steps[point.step].results)
    return [f[1].producer for f in found if f is not None and f[1].producer is not None]
