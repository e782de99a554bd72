"""What has been run under the debugger, and how to look back at it.

A *position* is a number of points passed. Up to the end of the log, the *frontier*, the *cursor*
moves freely. To change something in the past cuts the log there; what was cut off is remembered in
`memo`, from which ops that are run again with the same operands take their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.changes import END, Changes, Location, location_of
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import OP, Point
from opstep.runtime.debugger.versions import TensorVersions


class History:
    """Of one run. `at` and `pc` say which point is run next at the frontier; `at` is None when all
    is done. `named`: the versions of named tensors; `changes`: what was set by hand.
    """

    def __init__(self, executor: Executor, named: TensorVersions):
        self.executor = executor
        self.named = named
        self.changes = Changes()
        self.base = 0  # positions that were forgotten
        self.log: list[tuple[Activation, int]] = []
        self.cursor = 0
        self.finished: list[tuple[int, Activation]] = []  # steps that ended, and where
        self.memo: dict[tuple, tuple[Node, ...]] = {}  # what was cut off: op, operands -> results
        self.at: Activation | None = None
        self.pc = 0
        self.on_cut: Callable[[int], object] = lambda position: None  # told before it is forgotten
        self._delivered: dict[int, list[tuple[Activation, int]]] = {}

    # --- where it stands ---

    @property
    def frontier(self) -> int:
        """The position of what was run last."""
        return self.base + len(self.log)

    def next_point(self) -> tuple[Activation, Point] | None:
        """The point that is next at the cursor; None at the end."""
        if self.cursor < self.frontier:
            activation, k = self.log[self.cursor - self.base]
            return activation, activation.points[k]
        if self.at is None:
            return None
        return self.at, self.at.points[self.pc]

    def behind(self, node: Node) -> int | None:
        """The position behind the op that computed a value; None where that is forgotten."""
        activation, value = node.home or (None, -1)
        found = activation.env.get(value) if activation is not None else None
        if found is None or found[1] is not node or found[0] <= self.base:
            return None
        return found[0]

    def index(self) -> int:
        """The number of that point in its plan."""
        if self.cursor < self.frontier:
            return self.log[self.cursor - self.base][1]
        return self.pc

    def delivered(self) -> list[tuple[Activation, int]]:
        """What control flow that ended with the point passed last has given: values of whom."""
        return self._delivered.get(self.cursor, [])

    def last_point(self) -> tuple[Activation, Point] | None:
        """The point passed last; None at the beginning."""
        if self.cursor <= self.base:
            return None
        activation, k = self.log[self.cursor - 1 - self.base]
        return activation, activation.points[k]

    def tensor(self, name: str, position: int | None = None) -> Node:
        """A named tensor's version at a position, the cursor's if none is given."""
        return self.named.at(name, self.cursor if position is None else position)

    def updated_at(self, name: str, node: Node) -> Location | None:
        """Behind which update a named tensor has had a version; () for what the run began with,
        None where that is forgotten.
        """
        at = next((p for p, version in self.named.of(name) if version is node), 0)
        if at <= self.base:
            return None if self.base else ()
        activation, k = self.log[at - 1 - self.base]
        return location_of(activation, k)

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
        self.on_cut(when)
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
        self.named.cut(when)
        self.changes.cut(when)
        self.finished = [f for f in self.finished if f[0] <= when]
        self.cursor = when

    def location(self) -> Location:
        """The cursor's."""
        here = self.next_point()
        return END if here is None else location_of(here[0], self.index())

    def deliver(self, values: Sequence[tuple[Activation, int]]) -> None:
        """Control flow that ends at the frontier gives these values."""
        self._delivered[self.frontier] = list(values)

    def clear(self) -> None:
        """Others have run meanwhile: nothing before this is known here."""
        self.base = self.cursor = self.frontier
        self.forget_log()
        self.memo.clear()
        self.changes.clear()
        self.named.clear(self.base)
        self.at = None

    def forget_log(self) -> None:
        """One cannot go back from the cursor any more."""
        self.base = self.cursor
        self.log.clear()
        self.finished.clear()

    def relocate_memory(self, moved: Mapping[int, Any]) -> None:
        """Memory that is going to be overwritten, by its id, has been copied: what lies there is
        looked for in the copy from now on.
        """
        activations = _with_callers([*self.active(), *(a for a, _ in self.log)])
        activations += [a for _, a in self.finished]
        nodes = [n for a in activations for _, n in a.env.values()]
        nodes += [n for a in activations for old in a.replaced.values() for *_, n in old]
        nodes += self.named.nodes()
        nodes += [n for results in self.memo.values() for n in results]
        for node in nodes:
            node.memory = moved.get(id(node.memory), node.memory)

    # --- what is known ---

    def _forget(self, activation: Activation, point: Point) -> None:
        """Takes back what a point did; what it computed can be taken from again."""
        if point.kind != OP:
            return
        step = activation.plan.steps[point.step]
        for event in point.records:
            activation.events.pop(event, None)
        for v in (*step.results, *step.changed):
            dropped = activation.drop(v)
            producer = dropped.producer if dropped else None
            if producer is not None and producer.step is step:
                self.memo[activation.points.key(step), producer.sources] = producer.results

    def _restore(self, activation: Activation, when: int) -> None:
        """Undoes what was set behind a position."""
        for value, changes in list(activation.replaced.items()):
            later = [c for c in changes if c[0] > when]
            if later and value in activation.env:
                activation.env[value] = later[0][1:]
            activation.replaced[value] = [c for c in changes if c[0] <= when]

    def forget_oldest(self) -> None:
        """The older half of the log; what is needed of it stays, as if it had been given."""
        half = len(self.log) // 2
        self.executor.settle()
        producers = {id(p): p for a, k in self.log[half:] for p in _producers(a, k)}
        for producer in producers.values():
            for node in producer.operands:
                self._detach_producer(node, producers)
        self.memo.clear()
        self.changes.forget_before(self.base + half)
        del self.log[:half]
        self.base += half
        self._delivered = {p: d for p, d in self._delivered.items() if p > self.base}
        old = [f for f in self.finished if f[0] <= self.base]
        self.finished = old[-1:] + [f for f in self.finished if f[0] > self.base]
        for node in self.named.forget_before(self.base):
            self._detach_producer(node, producers)
        active = self.active()
        live = {id(n.producer) for a in active for _, n in a.env.values()}
        arenas = {id(a.arena) for a in (*active, *(a for a, _ in self.log))}
        self.executor.forget(producers.keys() | live, arenas)

    def active(self) -> list[Activation]:
        """What has not ended: its values may be old, and are not forgotten."""
        return _with_callers([] if self.at is None else [self.at])

    def _detach_producer(self, node: Node | None, remaining: Mapping[int, Producer]) -> None:
        """Cuts the way back from a node that a forgotten op made: else all of them would stay."""
        if node is None or node.producer is None or id(node.producer) in remaining:
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
