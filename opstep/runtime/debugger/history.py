"""The log of a run under the debugger, the way back in it, and changes to what was run.

A *position* is a number of points passed. Up to the end of the log, the *frontier*, the *cursor*
moves freely. To change something in the past cuts the log there; what was cut off is remembered in
`memo`, from which ops that are run again with the same operands take their results.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.debugger.activation import END, OP, Activation, Location, Node, Point, Producer
from opstep.runtime.debugger.changes import Change, Changes, definition_point, frames_of
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.device.protocols import Memory
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import STATUS

RUN_STATUS = ""  # the name of the run's status among them


class TensorSource(Protocol):
    """A source of named tensors."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The program's, by name: each with its `type`."""
        ...

    @property
    def shards(self) -> Mapping[str, Shard]:
        """The shards of those that ranks have parts of."""
        ...

    def tensor(self, name: str) -> tuple[TensorType, Memory]:
        """A named tensor as it is before the run: its type and its memory on the device."""
        ...


class TensorVersions:
    """Of one run. `no_failure` is the version of its status that says that no assert has failed."""

    def __init__(self, source: TensorSource, executor: Executor):
        self.source = source
        self.no_failure = executor.new_node(STATUS, 0, "status")
        self._versions: dict[str, list[tuple[int, Node]]] = {}  # the position from which on each is

    def of(self, name: str) -> list[tuple[int, Node]]:
        """All that are remembered of a tensor, oldest first."""
        versions = self._versions.get(name)
        if versions is None:
            t, memory = self.source.tensor(name)
            versions = self._versions[name] = [(0, Node(t, name, memory))]
        return versions

    def items(self) -> Iterator[tuple[str, list[tuple[int, Node]]]]:
        """The named tensors that the run has asked for, without its status."""
        return ((name, versions) for name, versions in self._versions.items() if name != RUN_STATUS)

    def nodes(self) -> list[Node]:
        return [node for versions in self._versions.values() for _, node in versions]

    def at(self, name: str, position: int) -> Node:
        versions = self.of(name)
        later = bisect.bisect_right(versions, position, key=itemgetter(0))
        return versions[max(later - 1, 0)][1]

    def before(self, name: str, position: int, changes: int) -> Node | None:
        """A tensor as it was so many changes before a position; None if it was not yet."""
        versions = self.of(name)
        at = bisect.bisect_right(versions, position, key=itemgetter(0)) - 1 - changes
        return versions[at][1] if at >= 0 else None

    def add(self, name: str, position: int, node: Node) -> None:
        self.of(name).append((position, node))

    def begin_step(self, position: int) -> None:
        """A step begins: no assert of it has failed."""
        self._versions[RUN_STATUS] = [(position, self.no_failure)]

    def clear(self, position: int) -> None:
        """Others have run meanwhile: all are as the source has them."""
        self._versions.clear()
        self.begin_step(position)

    def cut(self, position: int) -> None:
        """Forgets those from after a position."""
        for name, versions in self._versions.items():
            self._versions[name] = [v for v in versions if v[0] <= position] or versions[:1]

    def forget_before(self, position: int) -> list[Node]:
        """Nobody goes back before a position any more. Gives the oldest of each that is left."""
        for name, versions in self._versions.items():
            old = [v for v in versions if v[0] <= position]
            self._versions[name] = old[-1:] + [v for v in versions if v[0] > position]
        return [versions[0][1] for versions in self._versions.values()]

    def replace_source(self, source: TensorSource) -> bool:
        """The program is another one. Tensors that it has not, or has with another type, are no
        more; whether there were such.
        """
        self.source = source
        dropped = [
            name
            for name, versions in self.items()
            if name not in source.tensors or source.tensors[name].type != versions[0][1].type
        ]
        for name in dropped:
            del self._versions[name]
        return bool(dropped)


class Begun(NamedTuple):
    """An op of which some launches are done."""

    producer: Producer
    launches: list[Any]
    memory: Any  # that they work in
    done: int


class History:
    """Of one run. `at` and `pc` say which point is run next at the frontier; `at` is None when all
    is done. `named`: the versions of named tensors; `changes`: what was set by hand; `on_lost` is
    called with the names of those of them that hold no longer.
    """

    def __init__(
        self, executor: Executor, named: TensorVersions,
        on_lost: Callable[[list[str]], object] = lambda names: None,
    ):  # fmt: skip
        self.executor = executor
        self.named = named
        self.changes = Changes()
        self.on_lost = on_lost
        self.begun: Begun | None = None  # of the op that is next
        self.base = 0  # positions that were forgotten
        self.log: list[tuple[Activation, int]] = []
        self.cursor = 0
        self.finished: list[tuple[int, Activation]] = []  # steps that ended, and where
        self.memo: dict[tuple, tuple[Node, ...]] = {}  # what was cut off: op, operands -> results
        self.at: Activation | None = None
        self.pc = 0
        self.on_cut: Callable[[int], object] = lambda position: (
            None
        )  # called before what came after it is forgotten
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
        """The position after the op that computed a value; None where that is forgotten."""
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
        """The values that control flow has given which ended with the point passed last."""
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
        """After which update a named tensor has had a version; () for what the run began with,
        None where that is forgotten.
        """
        at = next((p for p, version in self.named.of(name) if version is node), 0)
        if at <= self.base:
            return None if self.base else ()
        activation, k = self.log[at - 1 - self.base]
        return activation.location(k)

    def computed_before(self, activation: Activation, value: int) -> Node | None:
        """The value of an activation in the turn, or step, before that computed it."""
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
        """Forgets what came after a position; it may be taken from again."""
        when = self.cursor if position is None else position
        self.begun = None  # its operands may become others
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
        return END if here is None else here[0].location(self.index())

    def deliver(self, values: Sequence[tuple[Activation, int]]) -> None:
        """Control flow that ends at the frontier gives these values."""
        self._delivered[self.frontier] = list(values)

    def clear(self) -> None:
        """Others have run meanwhile: nothing before this is known here."""
        self.base = self.cursor = self.frontier
        self.begun = None
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

    # --- the status of a run ---

    def status_code(self) -> int:
        """The code of the assert of this step that failed first; 0 for none."""
        return self.code_of(self.named.at(RUN_STATUS, self.frontier))

    def failed_at(self) -> int:
        """The position after the assert of this step that failed first; 0 where none has."""
        versions = self.named.of(RUN_STATUS)
        return next((p for p, status in versions if self.code_of(status)), 0)

    def code_of(self, status: Node) -> int:
        """The number that a version of the run's status has."""
        if status is self.named.no_failure:
            return 0
        return int(self.executor.array(status))

    # --- values set by hand: made where they belong, and again whenever that is passed ---

    def set(
        self, activation: Activation, value: int, frame: int, name: str, array: np.ndarray,
        part: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """A value of an activation, as a frame sees it, is another one from where it came on: the
        cursor is there then. `part`: which elements are given, None for all. Raises `InputError`.
        """
        since = activation.env[value][0]
        if since < self.base:
            hint = "set something newer, or begin anew"
            raise InputError(f"what was computed from {name} is not remembered any more", hint=hint)
        self.cut(since)
        location = activation.location(definition_point(activation, value))
        frames = frames_of(activation, value, frame)
        change = Change(name, activation.points, value, location, array, part, frames)
        self.changes.add(change, since)
        self._change_value(activation, value, location)

    def set_named(self, name: str, array: np.ndarray, part: np.ndarray | None = None) -> None:
        """From the cursor on, a named tensor is another one."""
        self.cut()
        change = Change(name, self._next(), -1, self.location(), array, part)
        self.changes.add(change, self.cursor)
        self._change_named(change)

    def arrived(self) -> None:
        """Another point is next at the frontier: changes that belong there are made again."""
        location = self.location()
        for change in self.changes.pop_due(self._next(), -1, location):
            change.position = self.frontier
            self._change_named(change)
        dropped = self.changes.drop_passed(location)
        if dropped:
            self.on_lost(dropped)

    def give(self, activation: Activation, value: int, since: int, node: Node, k: float) -> None:
        """A value is there, which the point `k` of its activation gave."""
        activation.env[value] = (since, node)
        changes = self.changes
        if changes.waiting and (id(activation.points), value) in changes.waiting:
            location = activation.location(k)
            for change in changes.pop_due(activation.points, value, location):
                change.position = since
            self._change_value(activation, value, location)

    def _next(self) -> Any:
        """The plan that is under way at the frontier; None between two steps, whatever they run."""
        at = self.at
        return None if at is None or (at.parent is None and not self.pc) else at.points

    def _change_value(self, activation: Activation, value: int, location: Location) -> None:
        """Makes all changes of a value, in place of those that were made before."""
        since = activation.env[value][0]
        node = activation.drop(value)
        assert node is not None
        changes = self.changes.active_on(activation.points, value, location)
        versions = [node]
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
        """Activations under way find the named tensor changed, too."""
        name, position = change.name, change.position
        assert position is not None
        latest = self.named.of(name)[-1][1]
        self.named.add(name, position, change.of(latest, self.executor))
        for activation in self.active():
            for value, tensor in activation.points.named.items():
                if tensor == name and value in activation.env:
                    since, old = activation.env[value]
                    activation.replaced.setdefault(value, []).append((position, since, old))
                    activation.env[value] = (position, change.of(old, self.executor))

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
        """Undoes what was set after a position."""
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
        """Those that have not ended: their values may be old, and are not forgotten."""
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
    """The executions of a point of the log."""
    point = activation.points[k]
    if point.kind != OP:
        return []
    found = (activation.env.get(v) for v in activation.plan.steps[point.step].results)
    return [f[1].producer for f in found if f is not None and f[1].producer is not None]
