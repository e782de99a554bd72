"""Runs plans a point at a time, with all state in the open, so that it can go back.

Up to the frontier of its `History` to go forward only moves the cursor; at the frontier it runs the
next point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from opstep.runtime.calls import check_depth, first_call, next_call
from opstep.runtime.debugger.activation import (
    OP,
    ROOT,
    Activation,
    Location,
    Node,
    PlanSource,
    Point,
    Points,
    Producer,
)
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import Begun, History, TensorSource, TensorVersions
from opstep.runtime.debugger.meeting import Door, Waiting
from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.control import TEST, GraphCall
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan import internal
from opstep.runtime.plan.control import control_of, passed_types
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Policy, Step

FURTHER = 50_000  # points that are run at most to stand again where one stood
MOST = 1_000_000  # points that are remembered; then the older half is forgotten
LEAST = 20_000  # of them, however small the budget is
POINT = 1000  # bytes that remembering one takes, beside its tensors


class MachineHost(PlanSource, TensorSource, Protocol):
    """A source of a machine's plans and named tensors."""


H = TypeVar("H", bound=MachineHost)
Operands = tuple[Node | None, ...]


class Skipped(OpstepError):
    """An operand has no value, as its op was jumped over."""

    def __init__(self, name: str):
        super().__init__(f"{name} has no value: its op was jumped over")
        self.name = name


class Machine(Generic[H]):
    """Runs a graph `steps` times on the same inputs.

    `history`: what was run, where one stands in it, and what was set by hand; `executor`: computes
    and keeps results. `on_lost` is called with the names of values that were set, and hold no
    longer. `door`: to other ranks, if there are any. `memo_hits` of `memo_lookups` ops had their
    results in the history's memo.
    """

    def __init__(
        self, host: H, graph: str, inputs: Sequence[np.ndarray], types: Sequence[TensorType],
        names: Sequence[str], policy: Policy, steps: int, budget: int,
        on_lost: Callable[[list[str]], object] = lambda names: None, door: Door | None = None,
    ):  # fmt: skip
        self.host = host
        self.graph = graph
        self.types = tuple(types)
        self.policy = policy
        self.steps = steps
        self.budget = budget
        self.door = door
        self.most = min(MOST, max(LEAST, budget // POINT))  # points that are remembered
        self._arrays = list(zip(types, inputs, names, strict=True))
        self._on_lost = on_lost
        self._points: dict[int, Points] = {}  # of plans, by their ids
        self.restart()

    def restart(self) -> None:
        """To the start of the first step, as if nothing had been run or set."""
        all_ranks = self.door.executors if self.door is not None else tuple
        self.executor = Executor(self.host.device, self.policy, self.budget, all_ranks)
        named = TensorVersions(self.host, self.executor)
        self.history = History(self.executor, named, self._on_lost)
        self.memo_hits = self.memo_lookups = 0
        if self.door is not None:
            self.history.on_cut = self.door.cut
        self.inputs = tuple(self.executor.new_node(t, a, n) for t, a, n in self._arrays)
        self._names_dropped = False  # whether another text lacks named tensors that there were
        self._begin_step(0)

    # --- what it gave ---

    def outputs(self) -> tuple[Node, ...]:
        """Of the step that ended last."""
        return self._outputs(self.history.finished[-1][1])

    def failed(self) -> int:
        """The code of the assert that failed in the step that ended last; 0 for none."""
        return self.history.status_code()

    # --- moving ---

    def forward(self) -> bool:
        """Passes one point; False at the end. Raises `Waiting`, where it stands at a collective."""
        history = self.history
        if history.cursor < history.frontier:
            history.cursor += 1
            return True
        if history.at is None:
            return False
        self._advance(history.at, history.pc)
        history.cursor = history.frontier
        if history.changes.waiting:
            history.arrived()
        return True

    def run_to(self, location: Location, position: int) -> None:
        """Passes points until a location is reached, or passed, which had this position; not for
        ever, as what was set may have made a loop endless; and until it waits for another rank.
        """
        left = max(position - self.history.cursor, 0) + FURTHER
        with suppress(Waiting):
            while left and self.history.location() < location and self.forward():
                left -= 1

    def forward_launch(self) -> tuple[int, int] | None:
        """Runs one launch of the op that is next: how many of how many are done, or None where it
        has passed the point.
        """
        history = self.history
        here = history.next_point()
        if history.cursor == history.frontier and here is not None and here[1].kind == OP:
            history.begun = history.begun or self._begin(*here)
            if history.begun is not None and history.begun.done + 1 < len(history.begun.launches):
                producer, launches, memory, done = history.begun
                self.executor.launch(producer, launches[done])
                history.begun = Begun(producer, launches, memory, done + 1)
                return done + 1, len(launches)
        self.forward()
        return None

    def jump(self, k: int) -> None:
        """On to another point of the activation under the cursor, without what lies between.
        Raises `Skipped` where an operand of its op has no value.
        """
        self.history.cut()
        self.executor.settle()  # what is left out records no event that others wait for
        activation = self.history.at
        assert activation is not None
        point = activation.points[k]
        scope = activation.plan.scopes[point.frame]
        step = activation.plan.steps[point.step] if point.kind == OP else None
        for v in step.operands if step else ():
            try:
                self.operand(activation, v, point.frame) if v is not None else None
            except Skipped as error:
                raise Skipped(next((n for n, u in scope.items() if u == v), error.name)) from None
        self.history.pc = k
        if self.history.changes.waiting:
            self.history.arrived()

    # --- changing the past ---

    def begin_anew(self, step: int) -> None:
        """From this step on; steps before were run elsewhere, or are to be forgotten."""
        self.history.clear()
        if step < self.steps:
            self._begin_step(step)

    def replace_program(self, host: H) -> None:
        """Plans come from another text from the next step's, or restart's, begin on. Named tensors
        that it has not, or has with another type, are no more.
        """
        self.host = host
        self._names_dropped |= self.history.named.replace_source(host)

    def restart_step(self) -> list[str]:
        """Cuts back to the start of the step under the cursor, and makes its plan anew. Gives the
        names of what was set by hand since, which holds no longer.
        """
        history = self.history
        here = history.next_point()
        activation = here[0] if here else history.finished[-1][1]
        while activation.parent is not None:
            activation = activation.parent
        begin = max(activation.start, history.base)
        location = activation.location(0)
        # a named tensor set at the very begin stays
        dropped = history.changes.forget(begin, location)
        history.cut(begin)
        if self._names_dropped:  # what came before cannot be looked at as it was
            history.forget_log()
            self._names_dropped = False
        self._begin_step(activation.turn)
        return dropped

    # --- running a point ---

    def _advance(self, activation: Activation, k: int) -> None:
        history, point = self.history, activation.points[k]
        if point.kind == OP:
            if activation.plan.steps[point.step].op.traits.host:
                history.log.append((activation, k))
                try:
                    self._enter(activation, k, point)
                except BaseException:
                    history.log.pop()
                    raise
                return
            self._run(activation, point, k)
        history.log.append((activation, k))
        history.pc = k + 1
        if history.pc == len(activation.points):
            try:
                self._leave(activation)
            except BaseException:  # it still stands before the point
                history.log.pop()
                history.at, history.pc = activation, k
                raise
        if len(history.log) > self.most:
            history.forget_oldest()

    def _begin_step(self, number: int) -> None:
        points = self._points_of(self.host, self.graph, self.types)
        root = Activation(self.host, points, None, 0, GraphCall(self.graph, ROOT, number))
        self.history.named.begin_step(self.history.frontier)
        self._open(root, self.inputs)

    def _points_of(self, host: PlanSource, graph: str, types: tuple[TensorType, ...]) -> Points:
        plan = host.plan_for(graph, types, self.policy)
        points = self._points.get(id(plan))
        if points is None:
            points = self._points[id(plan)] = Points(plan)
            launches = [launch for step in plan.steps for launch in step.launches or ()]
            if Compiler.on_compile:
                Compiler.expect(partial(self.executor.device.uncompiled, launches))
            self.executor.device.compile_ahead(launches)
        return points

    def _open(self, activation: Activation, inputs: Sequence[Node]) -> None:
        history = self.history
        now = activation.start = history.frontier
        for value, node in zip(activation.plan.inputs, inputs, strict=True):
            history.give(activation, value, now, node, -1)
        for value, name in activation.points.initial_tensors:
            activation.env[value] = (now, history.named.at(name, now))
        history.at, history.pc = activation, 0

    def _run(self, activation: Activation, point: Point, k: int) -> None:
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
            self.history.give(activation, v, since, node, k)
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
        if self.history.begun is not None:
            producer, launches, _, done = self.history.begun
            for one in launches[done:]:
                self.executor.launch(producer, one)
            self.history.begun = None
        else:
            producer = met or Producer(plan, step, operands)
            names = [plan.values[v].name for v in step.results]
            slots = self._slots(activation, step) if self.policy.alloc == "reuse" else None
            self.executor.run(producer, names, point.stream, slots)
        for v, node in zip(step.results, producer.results, strict=True):
            node.home = (activation, v)
        return producer.results

    def _slots(self, activation: Activation, step: Step) -> Any:
        """The places of the results in the plan's arena."""
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
        code = self.history.code_of(status)
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

    def _begin(self, activation: Activation, point: Point) -> Begun | None:
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
        return Begun(producer, *self.executor.begin(producer, names, slots), 0)

    def operands(self, activation: Activation, step: Step) -> Operands:
        """The operands of a step. Raises `Skipped`."""
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

    # --- control flow ---

    def _enter(self, activation: Activation, k: int, point: Point) -> None:
        """Runs the graph that a step of control flow calls first."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        check_depth(plan, step, activation.level)
        self.executor.settle()
        operands = [o for o in self.operands(activation, step) if o is not None]
        selects = control_of(step).selects
        selector = self.executor.array(operands[0]) if selects else None
        call = first_call(plan, step, selector)
        self._call(activation, k, call, tuple(operands[selects:]))

    def _call(self, parent: Activation, k: int, call: GraphCall, inputs: tuple[Node, ...]) -> None:
        step = parent.plan.steps[parent.points[k].step]
        points = self._points_of(parent.host, call.graph, passed_types(step))
        self._open(Activation(parent.host, points, parent, k, call, inputs), inputs)

    def _leave(self, activation: Activation) -> None:
        """The plan is at its end: back to who called it."""
        parent, k = activation.parent, activation.call
        if parent is None:
            history = self.history
            history.finished.append((history.frontier, activation))
            history.at = None
            if activation.turn + 1 < self.steps and not history.status_code():
                self.executor.settle()  # no event says when a named tensor has its last value
                self._begin_step(activation.turn + 1)
            return
        self.executor.settle()
        outputs, holds = self._outputs(activation), False
        if activation.role == TEST:
            holds = bool(self.executor.array(outputs[0])) and not self.history.status_code()
            outputs = activation.carried
        step = parent.plan.steps[parent.points[k].step]
        call = next_call(parent.plan, step, activation.graph_call, holds)
        if call is None:
            self._deliver(parent, k, outputs)
        else:
            self._call(parent, k, call, outputs)

    def _outputs(self, activation: Activation) -> tuple[Node, ...]:
        return tuple(self.operand(activation, v, 0) for v in activation.plan.outputs)

    def _deliver(self, parent: Activation, k: int, outputs: Sequence[Node]) -> None:
        """Control flow is done: its results are there."""
        history, plan = self.history, parent.plan
        step, now = plan.steps[parent.points[k].step], self.history.frontier
        for v, node in zip(step.results, outputs, strict=True):
            history.give(parent, v, now, node, k + 0.5)
        for v in step.changed:
            name = plan.buffers[plan.values[v].buffer].name
            parent.env[v] = (now, history.named.at(name, now))
        history.deliver([(parent, v) for v in (*step.results, *step.changed)])
        history.at, history.pc = parent, k + 1
