"""Runs plans a point at a time, with all state in the open, so that it can go back.

Up to the frontier of its `History` to go forward only moves the cursor; at the frontier it runs the
next point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from opstep.runtime.calls import check_depth, first_call, next_call
from opstep.runtime.debugger.activation import ROOT, Activation, PlanSource
from opstep.runtime.debugger.changes import Location, location_of
from opstep.runtime.debugger.edits import Edits
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import History
from opstep.runtime.debugger.meeting import Door, Waiting
from opstep.runtime.debugger.node import Node
from opstep.runtime.debugger.operations import Operations, Skipped
from opstep.runtime.debugger.points import OP, Point, Points
from opstep.runtime.debugger.versions import TensorSource, TensorVersions
from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.control import TEST, GraphCall
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.control import control_of, passed_types
from opstep.runtime.plan.plan import Policy

FURTHER = 50_000  # points that are run at most to stand again where one stood
MOST = 1_000_000  # points that are remembered; then the older half is forgotten
LEAST = 20_000  # of them, however small the budget is
POINT = 1000  # bytes that remembering one takes, beside its tensors


class MachineHost(PlanSource, TensorSource, Protocol):
    """Where a machine's plans and named tensors come from."""


H = TypeVar("H", bound=MachineHost)


class Machine(Generic[H]):
    """Runs a graph `steps` times on the same inputs.

    `history`: what was run, and where one stands in it; `executor`: computes and keeps results;
    `operations`: runs ops; `edits`: what was set by hand. `on_lost` is told the names of values
    that were set, and hold no longer. `door`: to other ranks, if there are any.
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
        self.history = History(self.executor, TensorVersions(self.host, self.executor))
        self.edits = Edits(self.history, self.executor, self._on_lost)
        self.operations = Operations(
            self.history, self.edits, self.executor, self.policy, self.door
        )
        if self.door is not None:
            self.history.on_cut = self.door.cut
        self.inputs = tuple(self.executor.new_node(t, a, n) for t, a, n in self._arrays)
        self._names_dropped = False  # whether another text lacks named tensors that there were
        self._begin_step(0)

    # --- what it gave ---

    def outputs(self) -> tuple[Node, ...]:
        """Of the step that ended last."""
        _, last = self.history.finished[-1]
        return self._outputs(last)

    def failed(self) -> int:
        """The code of the assert that failed in the step that ended last; 0 for none."""
        return self.operations.status_code()

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
            self.edits.arrived()
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
        done = None
        if history.cursor == history.frontier and here is not None and here[1].kind == OP:
            done = self.operations.launch(*here)
        if done is None:
            self.forward()
        return done

    def jump(self, k: int) -> None:
        """On to another point of the activation under the cursor, without what lies between.
        Raises `Skipped` where an operand of its op has no value.
        """
        self.cut()
        self.executor.settle()  # what is left out records no event that others wait for
        activation = self.history.at
        assert activation is not None
        point = activation.points[k]
        scope = activation.plan.scopes[point.frame]
        step = activation.plan.steps[point.step] if point.kind == OP else None
        for v in step.operands if step else ():
            try:
                self.operations.operand(activation, v, point.frame) if v is not None else None
            except Skipped as error:
                raise Skipped(next((n for n, u in scope.items() if u == v), error.name)) from None
        self.history.pc = k
        if self.history.changes.waiting:
            self.edits.arrived()

    # --- changing the past ---

    def cut(self, position: int | None = None) -> None:
        """Forgets what came behind a position, by default the cursor."""
        self.operations.forget_launches()
        self.history.cut(position)

    def set(
        self, activation: Activation, value: int, frame: int, name: str, array: np.ndarray,
        part: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """See `Edits.set`."""
        self.operations.forget_launches()
        self.edits.set(activation, value, frame, name, array, part)

    def set_named(self, name: str, array: np.ndarray, part: np.ndarray | None = None) -> None:
        """See `Edits.set_named`."""
        self.operations.forget_launches()
        self.edits.set_named(name, array, part)

    def begin_anew(self, step: int) -> None:
        """From this step on; steps before were run elsewhere, or are to be forgotten."""
        self.operations.forget_launches()
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
        location = location_of(activation, 0)
        dropped = history.changes.forget(
            begin, location
        )  # a named tensor set at the very begin stays
        self.cut(begin)
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
            self.operations.run(activation, point, k)
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
            self.edits.give(activation, value, now, node, -1)
        for value, name in activation.points.initial_tensors:
            activation.env[value] = (now, history.named.at(name, now))
        history.at, history.pc = activation, 0

    # --- control flow ---

    def _enter(self, activation: Activation, k: int, point: Point) -> None:
        """Runs the graph that a step of control flow calls first."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        check_depth(plan, step, activation.level)
        self.executor.settle()
        operands = [o for o in self.operations.operands(activation, step) if o is not None]
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
            self._finish_step(activation)
            return
        self.executor.settle()
        outputs, holds = self._outputs(activation), False
        if activation.role == TEST:
            holds = bool(self.executor.array(outputs[0])) and not self.operations.status_code()
            outputs = activation.carried
        step = parent.plan.steps[parent.points[k].step]
        call = next_call(parent.plan, step, activation.graph_call, holds)
        if call is None:
            self._deliver(parent, k, outputs)
        else:
            self._call(parent, k, call, outputs)

    def _finish_step(self, activation: Activation) -> None:
        history = self.history
        history.finished.append((history.frontier, activation))
        if activation.turn + 1 < self.steps and not self.operations.status_code():
            self.executor.settle()  # no event says when a named tensor has its last value
            self._begin_step(activation.turn + 1)
        else:
            history.at = None

    def _outputs(self, activation: Activation) -> tuple[Node, ...]:
        operand = self.operations.operand
        return tuple(operand(activation, v, 0) for v in activation.plan.outputs)

    def _deliver(self, parent: Activation, k: int, outputs: Sequence[Node]) -> None:
        """Control flow is done: its results are there."""
        history, plan = self.history, parent.plan
        step, now = plan.steps[parent.points[k].step], self.history.frontier
        for v, node in zip(step.results, outputs, strict=True):
            self.edits.give(parent, v, now, node, k + 0.5)
        for v in step.changed:
            name = plan.buffers[plan.values[v].buffer].name
            parent.env[v] = (now, history.named.at(name, now))
        history.deliver([(parent, v) for v in (*step.results, *step.changed)])
        history.at, history.pc = parent, k + 1
