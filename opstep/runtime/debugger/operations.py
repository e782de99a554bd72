"""Runs the ops of plans under the debugger: computes their results, or takes them from the past."""

from __future__ import annotations

from typing import Any, NamedTuple

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.edits import Edits
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import History
from opstep.runtime.debugger.meeting import Door
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import Point
from opstep.runtime.debugger.versions import RUN_STATUS
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.plan import internal
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Policy, Step

Operands = tuple[Node | None, ...]


class Skipped(OpstepError):
    """An operand has no value, as its op was jumped over."""

    def __init__(self, name: str):
        super().__init__(f"{name} has no value: its op was jumped over")
        self.name = name


class _Begun(NamedTuple):
    """An op of which some launches are done."""

    producer: Producer
    launches: list[Any]
    memory: Any  # that they work in
    done: int


class Operations:
    """At the frontier of one history. `memo_hits` of `memo_lookups` ops had their results in its
    memo. `door`: to other ranks, if there are any.
    """

    def __init__(
        self, history: History, edits: Edits, executor: Executor, policy: Policy,
        door: Door | None = None,
    ):  # fmt: skip
        self.history = history
        self.edits = edits
        self.executor = executor
        self.policy = policy
        self.door = door
        self.memo_hits = 0
        self.memo_lookups = 0
        self._begun: _Begun | None = None

    # --- operands ---

    def operands(self, activation: Activation, step: Step) -> Operands:
        """What a step takes. Raises `Skipped`."""
        return tuple(
            None if v is None else self.operand(activation, v, step.frame) for v in step.operands
        )

    def operand(self, activation: Activation, value: int, frame: int) -> Node:
        """A value, or literal, as a frame sees it. Raises `Skipped`."""
        found = activation.operand(value, frame)
        if found is not None:
            return found
        plan = activation.plan
        t, buffer = plan.values[value].type, plan.buffers[plan.values[value].buffer]
        if buffer.kind == "const":
            assert buffer.literal is not None
            return self.executor.constant(t, buffer.literal)
        raise Skipped(plan.values[value].name)

    # --- the status of a run ---

    def status_code(self) -> int:
        """The code of the assert of this step that failed first; 0 for none."""
        return self._code(self.history.named.at(RUN_STATUS, self.history.frontier))

    def failed_at(self) -> int:
        """The position behind the assert of this step that failed first; 0 where none has."""
        versions = self.history.named.of(RUN_STATUS)
        return next((p for p, status in versions if self._code(status)), 0)

    def _code(self, status: Node) -> int:
        if status is self.history.named.no_failure:
            return 0
        return int(self.executor.array(status))

    # --- running ---

    def run(self, activation: Activation, point: Point, k: int) -> None:
        """The op of point `k`, which is next."""
        plan, step, named = activation.plan, activation.plan.steps[point.step], self.history.named
        operands = self.operands(activation, step)
        met = None
        if self.door is not None and step.is_joined:
            met = self.door.meet(plan, step, operands)
        stream = self.executor.on(point.stream)
        # An op waits and records also where it computes nothing: others rely on what it waited for.
        for event in point.waits:
            if event in activation.events:  # else what records it was jumped over
                stream.wait(activation.events[event])
                self.executor.keep_alive(activation.events[event])
        if step.op.family == "internal":
            results = (self._internal(activation, point, operands),)
        else:
            results = self._computed(activation, point, operands, met)
        for event in point.records:
            recorded = activation.events[event] = self.executor.device.event()
            stream.record(recorded)
            self.executor.keep_alive(recorded)
        since = self.history.frontier + 1
        # Collectives have an order, which is that of the run's statuses.
        for v in step.changed if step.is_joined else ():
            name = plan.buffers[plan.values[v].buffer].name
            activation.env[v] = (since, named.at(name, since))
        for v, node in zip(step.results, results, strict=True):
            self.edits.give(activation, v, since, node, k)
            if step.op is internal.update or step.op is internal.assert_:
                named.add(plan.buffers[plan.values[v].buffer].name, since, node)

    def _computed(
        self, activation: Activation, point: Point, operands: Operands, met: Producer | None
    ) -> tuple[Node, ...]:
        """The results of an op; of one that ranks have `met` for, by that producer."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        memo = self.history.memo
        if memo:
            self.memo_lookups += 1
            sources = operands if met is None else met.sources
            found = memo.get((activation.points.key(step), sources))
            if found is not None:
                self.memo_hits += 1
                return found
        if self._begun is not None:
            producer, launches, _, done = self._begun
            for one in launches[done:]:
                self.executor.launch(producer, one)
            self._begun = None
        else:
            producer = met or Producer(plan, step, operands)
            names = [plan.values[v].name for v in step.results]
            slots = self._slots(activation, step) if self.policy.alloc == "reuse" else None
            self.executor.run(producer, names, point.stream, slots)
        for v, node in zip(step.results, producer.results, strict=True):
            node.home = (activation, v)
        return producer.results

    def _slots(self, activation: Activation, step: Step) -> Any:
        """Where the plan puts the results in its arena."""
        plan = activation.plan
        if activation.arena is None:
            activation.arena = self.executor.arena(plan.arena)
        offsets = [plan.buffers[plan.values[v].buffer].offset for v in step.results]
        if any(o < 0 for o in offsets):
            return None
        scratch = plan.buffers[step.workspace].offset if step.workspace >= 0 else -1
        return activation.arena, offsets, scratch

    def _internal(self, activation: Activation, point: Point, operands: Operands) -> Node:
        """An update, assert or copy: as nodes never change, these only name them anew."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        value = operands[0]
        assert value is not None
        if step.op is internal.snapshot:
            return value
        status = operands[1]
        assert status is not None
        code = self._code(status)
        if step.op is internal.assert_:
            condition = bool(self.executor.array(value))
            after = internal.status_behind(code, condition, step.attrs["code"])
            return status if after == code else self.executor.new_node(STATUS, after, "status")
        result = plan.values[step.results[0]]
        if not internal.takes_effect(code):
            return self.history.named.at(result.name, self.history.frontier)
        if value.type == result.type:
            return value
        producer = Producer(plan, step, (value, self.history.named.no_failure))
        self.executor.settle()
        self.executor.run(producer, [result.name], point.stream)
        self.executor.settle()
        return producer.results[0]

    # --- one launch at a time ---

    def launch(self, activation: Activation, point: Point) -> tuple[int, int] | None:
        """Runs one launch of the op that is next: how many of how many are done then; None where
        the last one is left, or the only one, with which it is to be passed.
        """
        if self._begun is None:
            self._begun = self._begin(activation, point)
        if self._begun is None:
            return None
        producer, launches, memory, done = self._begun
        if done + 1 == len(launches):
            return None
        self.executor.launch(producer, launches[done])
        self._begun = _Begun(producer, launches, memory, done + 1)
        return done + 1, len(launches)

    def forget_launches(self) -> None:
        """What was launched of an op is not taken: its operands may become others."""
        self._begun = None

    def _begin(self, activation: Activation, point: Point) -> _Begun | None:
        """An op whose launches are run one at a time; None where there is only one."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        if step.op.traits.host or step.op.family == "internal" or len(step.launches or ()) < 2:
            return None
        operands = self.operands(activation, step)
        if (activation.points.key(step), operands) in self.history.memo:
            return None
        producer = Producer(plan, step, operands)
        names = [plan.values[v].name for v in step.results]
        slots = self._slots(activation, step) if self.policy.alloc == "reuse" else None
        return _Begun(producer, *self.executor.begin(producer, names, slots), 0)
