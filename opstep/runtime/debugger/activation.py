"""Plans under the debugger: where they can stop, their runs (activations), and what these compute:
versions of tensors that never change.

A named tensor, or the state of a loop, has a node for each version. So to go back is to look at
other nodes, and a value whose memory was given up is computed again from its producer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf
from typing import Any, NamedTuple, Protocol

from opstep.runtime.device.protocols import Device, Event, Memory
from opstep.runtime.ir.control import BODY, TEST, GraphCall
from opstep.runtime.ir.graph import Return, Statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Call, Plan, Policy, Record, Run, Step, Wait
from opstep.runtime.statistics import Statistics

OP, CALL, RETURN = "op", "call", "return"  # kinds of points
ROOT = "root"

Location = tuple[float, ...]  # of a point in a run: places that come later are greater
END: Location = (inf,)  # after the last point of a run


class Node:
    """One version of a tensor. `producer` is None for what came from outside: inputs, constants,
    named tensors as the run found them, values that someone set.

    `memory` and `offset` say where its bytes are; memory is None where they were given up.
    """

    __slots__ = (
        "figures",
        "home",
        "index",
        "memory",
        "name",
        "offset",
        "owned",
        "producer",
        "type",
    )

    def __init__(
        self,
        type: TensorType,
        name: str,
        memory: Any = None,
        offset: int = 0,
        producer: Producer | None = None,
        index: int = 0,
    ):
        self.type = type
        self.name = name
        self.memory = memory
        self.offset = offset
        self.producer = producer
        self.index = index
        self.owned = 0  # bytes that only this node holds
        self.home: tuple[Any, int] | None = None  # the activation that computed it, its value there
        self.figures: Statistics | None = None

    @property
    def present(self) -> bool:
        """Whether it can be read without being computed again."""
        return self.memory is not None

    @property
    def address(self) -> int:
        return self.memory.address + self.offset

    def __repr__(self) -> str:
        made_by = self.producer.step.op.name if self.producer else "given"
        return f"<Node {self.name}: {self.type}, {made_by}{'' if self.present else ', dropped'}>"


class Producer:
    """One execution of an op: what computes its results, any number of times, to the same bits."""

    __slots__ = ("operands", "plan", "results", "step")

    def __init__(self, plan: Plan, step: Step, operands: tuple[Node | None, ...]):
        self.plan = plan
        self.step = step
        self.operands = operands
        self.results: tuple[Node, ...] = ()

    @property
    def op(self):
        return self.step.op

    @property
    def is_shared(self) -> bool:
        """Whether other ranks have a part in it."""
        return self.op.is_shared(self.step.attrs)

    @property
    def sources(self) -> tuple[Node | None, ...]:
        """The nodes that its results are computed of: of a collective also those of other ranks."""
        return self.operands


class Point(NamedTuple):
    """`depth`: frames of the plan around it. `step`: of an op, else -1. `waits` and `records` are
    the events on its stream before and after the op.
    """

    kind: str
    frame: int
    depth: int
    statement: Statement | None
    step: int = -1
    stream: int = 0
    waits: tuple[int, ...] = ()
    records: tuple[int, ...] = ()


class Issued(NamedTuple):
    """A step as it is issued, with the events that its stream waits for and records."""

    step: int
    stream: int
    waits: list[int]
    records: list[int]


class Points:
    """The points where a plan can stop: before an op, before a call of a graph, and where a graph
    returns. Calls are inlined in a plan, so they are found from the frames of its steps. Points
    stand in the order of issue.

    `entered[k]`: point k is the first of its frame's graph. `last_use`: the point after which a
    value of the plan is not read any more.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.points: list[Point] = []
        self.entered: set[int] = set()
        self.last_use: dict[int, int] = {}
        self.keys: dict[int, tuple] = {}  # of steps, see `key`
        produced = {v for step in plan.steps for v in (*step.results, *step.changed)}
        kinds = [b.kind for b in plan.buffers]
        self.initial_tensors = [  # named tensors as the plan finds them: value, name
            (v, plan.buffers[value.buffer].name)
            for v, value in enumerate(plan.values)
            if v not in produced and kinds[value.buffer] in ("param", "status")
        ]
        self.named = dict(self.initial_tensors)  # and as its updates, and what it calls, leave them
        for step in plan.steps:
            for v in step.changed if step.op.traits.host else step.results:
                if not step.op.traits.reinterprets and kinds[plan.values[v].buffer] == "param":
                    self.named[v] = plan.buffers[plan.values[v].buffer].name
        self.calls = any(step.op.traits.host for step in plan.steps)  # has control flow
        self._depths = [0]
        for frame in plan.frames[1:]:
            self._depths.append(self._depths[frame.parent] + 1)
        self._lay_out()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, k: int) -> Point:
        return self.points[k]

    def key(self, step: Step) -> tuple:
        """The facts that must be equal for two steps to compute the same from the same operands."""
        key = self.keys.get(id(step))
        if key is None:
            results = tuple(self.plan.values[v].type for v in step.results)
            attrs = repr(list(step.attrs.values())) if step.attrs else ""
            key = self.keys[id(step)] = (step.op, attrs, step.operand_types, results)
        return key

    def _lay_out(self) -> None:
        issued = self._with_views_first(self._issued())
        last = self._last(issued)
        frames, opened = self.plan.frames, {0}
        self.entered.add(0)
        for i, (number, stream, waits, records) in enumerate(issued):
            step = self.plan.steps[number]
            chain = self._chain(step.frame)
            for f in chain:
                if f not in opened:
                    opened.add(f)
                    parent = frames[f].parent
                    self._add(CALL, parent, frames[f].statement, stream=stream)
                    self.entered.add(len(self.points))
            for v in (*step.operands, *step.touched):
                if v is not None:
                    self.last_use[v] = len(self.points)
            self._add(OP, step.frame, step.statement, number, stream, waits, records)
            for f in reversed(chain):
                if last[f] == i and f:
                    self._add(RETURN, f, self._returning(f), stream=stream)
        self._add(RETURN, 0, self._returning(0))

    def _add(self, kind: str, frame: int, statement, step=-1, stream=0, waits=(), records=()):
        depth = self._depths[frame]
        self.points.append(
            Point(kind, frame, depth, statement, step, stream, tuple(waits), tuple(records))
        )

    def _issued(self) -> list[Issued]:
        """Steps in order of issue."""
        found: list[Issued] = []
        waits: list[int] = []
        for instruction in self.plan.instructions:
            match instruction:
                case Run(step, stream) | Call(step, stream):
                    found.append(Issued(step, stream, waits, []))
                    waits = []
                case Wait(event):
                    waits.append(event)
                case Record(event):
                    found[-1].records.append(event)
        return found

    def _with_views_first(self, issued: list[Issued]) -> list[Issued]:
        """The same, but where memory under another shape is read before the op that names it so: as
        that launches nothing, a plan may issue it at any time. Its events stay where they were.
        """
        plan, found = self.plan, []
        views = {plan.steps[e.step].results[0]: e for e in issued if _is_view(plan, e.step)}
        waits: dict[int, list[int]] = {}  # of each stream, what its next op waits for
        implied: dict[int, list[int]] = {}  # what who waits for an event relies on, too

        def name(value: int | None) -> None:
            chain = []
            while value in views:
                chain.append(views.pop(value))
                value = plan.steps[chain[-1].step].operands[0]
            found.extend(Issued(v.step, v.stream, [], []) for v in reversed(chain))

        for entry in issued:
            step = plan.steps[entry.step]
            if _is_view(plan, entry.step) and step.results[0] not in views:
                waits.setdefault(entry.stream, []).extend(entry.waits)
                more = [e for w in entry.waits for e in implied.get(w, ())]
                implied |= dict.fromkeys(entry.records, entry.waits + more)
                before = next((e for e in reversed(found) if e.stream == entry.stream), None)
                if before is not None:
                    before.records.extend(entry.records)
                continue
            for value in (*step.operands, *step.touched):
                name(value)
            if _is_view(plan, entry.step):
                views.pop(step.results[0])
            entry.waits[:0] = waits.pop(entry.stream, [])
            entry.waits.extend([e for w in entry.waits for e in implied.get(w, ())])
            found.append(entry)
        return found

    def _last(self, issued) -> dict[int, int]:
        """For each frame, the last place in the order where an op of it, or of a call in it, is."""
        last: dict[int, int] = {}
        frames = self.plan.frames
        for i, (number, *_) in enumerate(issued):
            f = self.plan.steps[number].frame
            while f > 0:
                last[f] = i
                f = frames[f].parent
        return last | {0: -1}

    def _chain(self, frame: int) -> list[int]:
        """The frames around, from the outermost but for the plan's own."""
        chain = []
        while frame > 0:
            chain.append(frame)
            frame = self.plan.frames[frame].parent
        return chain[::-1]

    def _returning(self, frame: int) -> Statement | None:
        body = self.plan.frames[frame].graph.body
        return body[-1] if body and isinstance(body[-1], Return) else None


def _is_view(plan: Plan, step: int) -> bool:
    return plan.steps[step].op.traits.reinterprets


class Arena:
    """The memory that an activation's results share, and whose bytes stand in it now."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, list[Node]]] = {}  # start -> end, nodes

    def share(self, node: Node) -> None:
        """A node that is another's memory under another shape."""
        self._ranges[node.offset][1].append(node)

    def claim(self, start: int, nbytes: int, node: Node | None) -> None:
        """These bytes are written from now on; whose they were has lost them."""
        end = start + max(nbytes, 1)
        k = max(bisect_left(self._starts, start) - 1, 0)
        while k < len(self._starts) and self._starts[k] < end:
            at = self._starts[k]
            until, owners = self._ranges[at]
            if until <= start:
                k += 1
                continue
            del self._starts[k], self._ranges[at]
            for owner in owners:
                if owner is not node and owner.memory is self.memory:
                    owner.memory = None
        insort(self._starts, start)
        self._ranges[start] = end, [] if node is None else [node]


class PlanSource(Protocol):
    """A source of plans, and the device that they are for."""

    device: Device

    def plan_for(self, graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan: ...


class Activation:
    """One run of a plan, which is of `host`: what began in a text ends in it. `graph_call`: what
    control flow asked for; of the run's own graph its `role` is `ROOT`, its `turn` the step.
    `carried`: what control flow handed to it. `env` has each value that is there, with the position
    from which on it is.
    """

    def __init__(
        self, host: PlanSource, points: Points, parent: Activation | None, call: int,
        graph_call: GraphCall, carried: tuple[Node, ...] = (),
    ):  # fmt: skip
        self.host = host
        self.points = points
        self.plan = points.plan
        self.parent = parent
        self.call = call  # the point of the parent that made it
        self.graph_call = graph_call
        self.role = graph_call.role
        self.turn = graph_call.turn
        self.depth = 0 if parent is None else parent.depth + parent.points[call].depth + 1
        self.level = 0 if parent is None else parent.level + 1
        self.carried = carried
        self.env: dict[int, tuple[int, Node]] = {}
        self.replaced: dict[int, list[tuple[int, int, Node]]] = {}  # value -> (set at, since, old)
        self.scoped: dict[tuple[int, int], list[Node]] = {}  # by value and frame: those set there
        self.start = 0
        self.arena: Arena | None = None
        self.events: dict[int, Event] = {}

    def frame_name(self, frame: int) -> str:
        """``features``, ``halve [i=3]``, ``main [step=2]``"""
        called = self.plan.frames[frame]
        name = called.graph.name.text + called.types
        if frame:
            return name
        if self.role in (TEST, BODY):
            return f"{name} [i={self.turn}]"
        return f"{name} [step={self.turn}]" if self.role == ROOT and self.turn else name

    def location(self, k: float) -> Location:
        """The place of its point `k` in the run."""
        found: Location = (k,)
        at = self
        while at.parent is not None:
            found = (at.call, 2 * at.turn + (at.role == BODY), *found)
            at = at.parent
        return (at.turn, *found)

    def caller(self, frame: int) -> tuple[Activation, int, Statement | None] | None:
        """The call that a frame is of: the activation, frame and statement it stands in; None of
        the graph that is run.
        """
        inner = self.plan.frames[frame]
        if inner.parent >= 0:
            return self, inner.parent, inner.statement
        if self.parent is None:
            return None
        calling = self.parent.points[self.call]
        return self.parent, calling.frame, calling.statement

    def operand(self, value: int, frame: int) -> Node | None:
        """The node that an op of a frame finds as a value; None where it is not there yet."""
        if self.scoped and (value, frame) in self.scoped:
            return self.scoped[value, frame][-1]
        found = self.env.get(value)
        return None if found is None else found[1]

    def drop(self, value: int) -> Node | None:
        """The value is not there any more; gives it as it was computed."""
        found, replaced = self.env.pop(value, None), self.replaced.pop(value, None)
        for key in [key for key in self.scoped if key[0] == value]:
            del self.scoped[key]
        if replaced:
            return replaced[0][2]
        return None if found is None else found[1]

    def at(self, value: int, position: int, frame: int = -1) -> Node | None:
        """The value at a position, in a frame if one is given; None where it was not there yet."""
        if self.scoped and (value, frame) in self.scoped and self.env[value][0] <= position:
            return self.scoped[value, frame][-1]
        for when, since, old in self.replaced.get(value, ()):
            if position < when:
                return old if since <= position else None
        found = self.env.get(value)
        return found[1] if found and found[0] <= position else None
