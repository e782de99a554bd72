"""Runs plans a point at a time, with all state in the open, so that it can go back.

Up to the frontier of its `History` to go forward only moves the cursor; at the frontier it runs the
next point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.changes import Place, place_of
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import LEAST, MOST, POINT, History, Host
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import OP, Point, Points
from opstep.runtime.device.binding import error_at
from opstep.runtime.interpreter import DEEPEST
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Policy, Step

FURTHER = 50_000  # points that are run at most to stand again where one stood


class Machine(History):
    """Runs a graph `steps` times on the same inputs."""

    def __init__(
        self, host: Host, graph: str, inputs: Sequence[np.ndarray], types: Sequence[TensorType],
        names: Sequence[str], policy: Policy, steps: int, budget: int,
    ):  # fmt: skip
        super().__init__(host, Executor(host.device, policy, budget))
        self.graph = graph
        self.types = tuple(types)
        self.policy = policy
        self.steps = steps
        self.inputs = tuple(
            self.executor.make(t, a, n) for t, a, n in zip(types, inputs, names, strict=True)
        )
        self.most = min(MOST, max(LEAST, budget // POINT))  # points that are remembered
        self.found_again = 0  # ops whose results were taken from the past
        self.asked_again = 0
        self._points: dict[int, Points] = {}
        self._gone = False  # whether another text lacks named tensors that there were
        self._begin_step(0)

    # --- where it stands ---

    def outputs(self) -> tuple[Node, ...]:
        """Of the step that ended last."""
        _, last = self.finished[-1]
        return tuple(self._operand(last, v, 0) for v in last.plan.outputs)

    # --- moving ---

    def forward(self) -> bool:
        """Passes one point; False at the end."""
        if self.cursor < self.frontier:
            self.cursor += 1
            return True
        if self.at is None:
            return False
        self._advance()
        self.cursor = self.frontier
        if self.changes.waiting:
            self._arrived()
        return True

    def run_to(self, place: Place, position: int) -> None:
        """Passes points until a place is reached, or passed, which had this position; not for ever,
        as what was set may have made a loop endless.
        """
        left = max(position - self.cursor, 0) + FURTHER
        while left and self.place() < place and self.forward():
            left -= 1

    def forward_launch(self) -> tuple[int, int] | None:
        """Runs one launch of the op that is next: how many of how many are done, or None where it
        has passed the point.
        """
        here = self.here()
        if self.cursor < self.frontier or here is None or here[1].kind != OP:
            self.forward()
            return None
        if self.partial is None:
            self.partial = self._begun(*here)
        if self.partial is None:
            self.forward()
            return None
        producer, bound, done = self.partial
        if done + 1 < len(bound):
            self.executor.launch(producer, bound[done])
            self.partial = (producer, bound, done + 1)
            return done + 1, len(bound)
        self.forward()
        return None

    def _begun(self, activation: Activation, point: Point) -> Any:
        """An op whose launches are run one at a time; None where there is only one."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        if step.op.host or step.op.family == "internal" or len(step.launches or ()) < 2:
            return None
        operands = self._operands(activation, step)
        if (activation.points.key(step), operands) in self.memo:
            return None
        producer = Producer(plan, step, operands)
        names = [plan.values[v].name for v in step.results]
        places = self._places(activation, step) if self.policy.alloc == "reuse" else None
        return producer, self.executor.begin(producer, names, places), 0

    def jump(self, k: int) -> None:
        """On to another point of the activation under the cursor, without what lies between.
        Raises `Skipped` where an operand of its op has no value.
        """
        self.cut()
        self.executor.settle()  # what is left out records no event that others wait for
        activation = self.at
        assert activation is not None
        point = activation.points[k]
        scope = activation.plan.scopes[point.frame]
        step = activation.plan.steps[point.step] if point.kind == OP else None
        for v in step.operands if step else ():
            try:
                self._operand(activation, v, point.frame) if v is not None else None
            except Skipped as error:
                raise Skipped(next((n for n, u in scope.items() if u == v), error.name)) from None
        self.pc = k
        if self.changes.waiting:
            self._arrived()

    def begin_anew(self, step: int) -> None:
        """Steps were run elsewhere: nothing before this one is known here."""
        self.base = self.frontier
        self.cursor = self.base
        self.log.clear()
        self.finished.clear()
        self.memo.clear()
        self.changes.clear()
        self.named = {"": [(self.base, self.fine)]}
        self.at = None
        if step < self.steps:
            self._begin_step(step)

    def replace_program(self, host: Host) -> None:
        """Plans come from another text from the next step's, or restart's, begin on. Named tensors
        that it has not, or has with another type, are no more.
        """
        self.host = host
        for name, versions in list(self.named.items()):
            if name and not (
                name in host.tensors and host.tensors[name].type == versions[0][1].type
            ):
                del self.named[name]
                self._gone = True

    def restart_step(self) -> list[str]:
        """Cuts back to the start of the step under the cursor, and makes its plan anew. Gives the
        names of what was set by hand since, which holds no longer.
        """
        here = self.here()
        activation = here[0] if here else self.finished[-1][1]
        while activation.parent is not None:
            activation = activation.parent
        begin = max(activation.start, self.base)
        place = place_of(activation, 0)
        lost = self.changes.forget(
            begin, place
        )  # a named tensor that was set at the very begin stays
        self.cut(begin)
        if self._gone:  # what came before cannot be looked at as it was
            self.log.clear()
            self.finished.clear()
            self.base, self._gone = begin, False
        self._begin_step(activation.turn)
        return lost

    # --- running a point ---

    def _advance(self) -> None:
        activation, k = self.at, self.pc
        assert activation is not None
        point = activation.points[k]
        if point.kind == OP:
            step = activation.plan.steps[point.step]
            if step.op.host:
                self.log.append((activation, k))
                try:
                    self._enter(activation, k, point)
                except BaseException:
                    self.log.pop()
                    raise
                return
            self._op(activation, point)
        self.log.append((activation, k))
        self.pc = k + 1
        if self.pc == len(activation.points):
            try:
                self._leave(activation)
            except BaseException:  # it still stands before the point
                self.log.pop()
                self.at, self.pc = activation, k
                raise
        if len(self.log) > self.most:
            self._forget_oldest()

    def _op(self, activation: Activation, point: Point) -> None:
        plan, step = activation.plan, activation.plan.steps[point.step]
        operands = self._operands(activation, step)
        stream = self.executor.on(point.stream)
        # An op waits and records also where it computes nothing: others rely on what it waited for.
        for event in point.waits:
            if event in activation.events:  # else what records it was jumped over
                stream.wait(activation.events[event])
                self.executor.busy(activation.events[event])
        if step.op.family == "internal":
            results = self._internal(activation, point, operands)
        else:
            results = self._computed(activation, point, operands)
        for event in point.records:
            made = activation.events[event] = self.host.device.event()
            stream.record(made)
            self.executor.busy(made)
        since = self.frontier + 1
        for v, node in zip(step.results, results, strict=True):
            self._give(activation, v, since, node, self.pc)
            if step.op.name in ("update", "assert") and step.op.family == "internal":
                self._versions(plan.buffers[plan.values[v].buffer].name).append((since, node))

    def _computed(self, activation: Activation, point: Point, operands) -> tuple[Node, ...]:
        plan, step = activation.plan, activation.plan.steps[point.step]
        if self.memo:
            self.asked_again += 1
            found = self.memo.get((activation.points.key(step), operands))
            if found is not None:
                self.found_again += 1
                return found
        producer = Producer(plan, step, operands)
        if self.partial is not None:
            producer, bound, done = self.partial
            for one in bound[done:]:
                self.executor.launch(producer, one)
            self.partial = None
        else:
            names = [plan.values[v].name for v in step.results]
            places = self._places(activation, step) if self.policy.alloc == "reuse" else None
            self.executor.run(producer, names, point.stream, places)
        for v, node in zip(step.results, producer.results, strict=True):
            node.home = (activation, v)
        return producer.results

    def _places(self, activation: Activation, step) -> Any:
        """Where the plan puts the results in its arena."""
        plan = activation.plan
        if activation.arena is None:
            activation.arena = self.executor.arena(plan.arena)
        offsets = [plan.buffers[plan.values[v].buffer].offset for v in step.results]
        if any(o < 0 for o in offsets):
            return None
        scratch = plan.buffers[step.workspace].offset if step.workspace >= 0 else -1
        return activation.arena, offsets, scratch

    def _internal(self, activation: Activation, point: Point, operands) -> tuple[Node, ...]:
        """Updates, asserts and copies: as nodes never change, these only name them anew."""
        plan, step = activation.plan, activation.plan.steps[point.step]
        if step.op.name == "snapshot":
            return operands[:1]
        if step.op.name == "assert":
            condition, status = operands
            if status is not self.fine or bool(self.executor.array(condition)):
                return (status,)
            return (self.executor.make(STATUS, step.attrs["code"], "status"),)
        value, status = operands
        (result,) = step.results
        if status is not self.fine:
            return (self.tensor(plan.values[result].name, self.frontier),)
        wanted = plan.values[result].type
        if value.type == wanted:
            return (value,)
        producer = Producer(plan, step, (value, self.fine))
        self.executor.settle()
        self.executor.run(producer, [plan.values[result].name], point.stream)
        self.executor.settle()
        return producer.results

    def _operands(self, activation: Activation, step: Step) -> tuple[Node | None, ...]:
        return tuple(
            None if v is None else self._operand(activation, v, step.frame) for v in step.operands
        )

    def _operand(self, activation: Activation, value: int, frame: int) -> Node:
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

    def _begin_step(self, number: int) -> None:
        root = self._activation(self.graph, self.types, None, 0, "root", number)
        self.named[""] = [(self.frontier, self.fine)]
        self._open(root, self.inputs)

    def _activation(self, graph, types, parent, call, role, turn) -> Activation:
        if parent is not None and parent.level > DEEPEST:
            step = parent.plan.steps[parent.points[call].step]
            raise error_at(
                parent.plan, step, f"calls are nested more than {DEEPEST} deep", DeviceError
            )
        host = self.host if parent is None else parent.host  # what began in a text ends in it
        plan = host.plan_for(graph, types, self.policy)
        points = self._points.get(id(plan))
        if points is None:
            points = self._points[id(plan)] = Points(plan)
        return Activation(host, points, parent, call, role, turn)

    def _open(self, activation: Activation, inputs: Sequence[Node]) -> None:
        now = activation.start = self.frontier
        for value, node in zip(activation.plan.inputs, inputs, strict=True):
            self._give(activation, value, now, node, -1)
        for value, name in activation.points.found:
            activation.env[value] = (now, self.tensor(name, now))
        self.at, self.pc = activation, 0

    def _enter(self, activation: Activation, k: int, point: Point) -> None:
        """Runs the graph that a step of control flow calls first."""
        self.executor.settle()
        step = activation.plan.steps[point.step]
        operands = [o for o in self._operands(activation, step) if o is not None]
        types = tuple(t for t in step.operand_types if t is not None)
        if step.op.name == "while":
            self._turn(activation, k, "test", 0, tuple(operands))
            return
        chosen = self.executor.array(operands[0])
        if step.op.name == "cond":
            graph = step.attrs["then" if bool(chosen) else "else"]
        else:
            cases, number = step.attrs["cases"], int(chosen)
            if not 0 <= number < len(cases):
                message = f"index {number} is none of the {len(cases)} cases 0 to {len(cases) - 1}"
                raise error_at(activation.plan, step, message)
            graph = cases[number]
        child = self._activation(graph.name, types[1:], activation, k, "branch", 0)
        self._open(child, operands[1:])

    def _turn(self, parent: Activation, k: int, role: str, turn: int, carried) -> None:
        step = parent.plan.steps[parent.points[k].step]
        types = tuple(t for t in step.operand_types if t is not None)
        child = self._activation(step.attrs[role].name, types, parent, k, role, turn)
        child.carried = carried
        self._open(child, carried)

    def _leave(self, activation: Activation) -> None:
        """The plan is at its end: back to who called it."""
        parent, k = activation.parent, activation.call
        if parent is None:
            self.finished.append((self.frontier, activation))
            if activation.turn + 1 < self.steps and self._status() is self.fine:
                self._begin_step(activation.turn + 1)
            else:
                self.at = None
            return
        self.executor.settle()
        outputs = tuple(self._operand(activation, v, 0) for v in activation.plan.outputs)
        step = parent.plan.steps[parent.points[k].step]
        if activation.role == "test":
            goes_on = bool(self.executor.array(outputs[0])) and self._status() is self.fine
            if not goes_on:
                self._deliver(parent, k, activation.carried)
            elif activation.turn >= step.attrs["limit"]:
                raise error_at(
                    parent.plan, step, f"the loop has not ended after {activation.turn} turns",
                    hint="raise limit=, or see whether its test can become false",
                )  # fmt: skip
            else:
                self._turn(parent, k, "body", activation.turn, activation.carried)
        elif activation.role == "body":
            self._turn(parent, k, "test", activation.turn + 1, outputs)
        else:
            self._deliver(parent, k, outputs)

    def _deliver(self, parent: Activation, k: int, outputs: Sequence[Node]) -> None:
        """Control flow is done: its results are there."""
        plan, step = parent.plan, parent.plan.steps[parent.points[k].step]
        now, given = self.frontier, []
        for v, node in zip(step.results, outputs, strict=True):
            self._give(parent, v, now, node, k + 0.5)
            given.append((parent, v))
        for v in step.changed:
            parent.env[v] = (now, self.tensor(plan.buffers[plan.values[v].buffer].name, now))
            given.append((parent, v))
        self._delivered[now] = given
        self.at, self.pc = parent, k + 1

    def _status(self) -> Node:
        return self.tensor("", self.frontier)

    def failed(self) -> int:
        """The code of the assert that failed in the step that ended last; 0 for none."""
        status = self._status()
        return 0 if status is self.fine else int(self.executor.array(status))


class Skipped(OpstepError):
    """An operand has no value, as its op was jumped over."""

    def __init__(self, name: str):
        super().__init__(f"{name} has no value: its op was jumped over")
        self.name = name
