"""The stack at a position: frames of graphs and turns of loops."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.debugger.activation import OP, Activation, Node, Point
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.python.lines import PythonFrame
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph, Source, Span, Statement
from opstep.runtime.plan.plan import Step


class Frame(NamedTuple):
    """One entry of a stack. `number`: 0 for the innermost; `call`: the same, of the graph's call.
    `python`: the function of Python that is shown in the graph's place.
    """

    number: int
    call: int
    name: str
    graph: Graph
    statement: Statement | None
    source: Source | None
    span: Span
    python: PythonFrame | None
    machine: Machine
    activation: Activation
    frame: int
    depth: int
    position: int

    @property
    def line(self) -> int:
        """From 1."""
        if self.python:
            return self.python.line
        return self.source.locate(self.span.start)[0] if self.source else 0

    @property
    def column(self) -> int:
        if self.python or self.source is None:
            return 1
        return self.source.locate(self.span.start)[1]

    @property
    def end(self) -> tuple[int, int]:
        """Line and column behind its last character."""
        if self.python or self.source is None:
            return self.line, 1
        return self.source.locate(self.span.end)

    @property
    def path(self) -> str:
        """Of its file."""
        if self.python:
            return self.python.at.path
        return self.source.path if self.source else "<text>"

    @property
    def step(self) -> Step | None:
        """The op that it stands at, or right behind; None for a call, or the graph's end."""
        if self.call:
            return None
        for at in (self.machine.history.next_point(), self.machine.history.last_point()):
            if at is None or at[0] is not self.activation or at[1].kind != OP:
                continue
            if at[1].statement is self.statement and at[1].frame == self.frame:
                return self.activation.plan.steps[at[1].step]
        return None

    def same_call(self, other: Frame) -> bool:
        """Whether it is the same call of the same graph as another, if those around them are."""
        one, two = self.activation, other.activation
        same = one.points is two.points and self.frame == other.frame
        return same and (one.call, one.role, one.turn) == (two.call, two.role, two.turn)

    def value(self, name: str) -> int | None:
        """The number of a name's value in the plan."""
        return self.activation.plan.scopes[self.frame].get(name)

    def check_settable(self, name: str) -> None:
        """Raises `InputError` where a name of the graph stands for what cannot be set by it."""
        value = self.value(name)
        if value is None:
            return
        tensor = self.activation.points.named.get(value)
        if tensor:
            raise InputError(f"{name} is {tensor} itself", hint=f"set {tensor}")
        if value not in self.activation.env:
            raise InputError(f"{name} is a literal", hint="set what is computed from it")

    def namesakes(self, name: str) -> list[str]:
        """Other names for the same value here: a call handed it through."""
        value = self.value(name)
        scope = self.activation.plan.scopes[self.frame]
        return [other for other, v in scope.items() if v == value and other != name]

    def lookup(self, name: str) -> Node | None:
        """What a name means here: a local value, or a named tensor."""
        value = self.value(name)
        if value is not None:
            found = self.activation.at(value, self.position, self.frame)
            return found if found is not None else self._literal(value)
        if name and name in self.machine.host.tensors:
            return self.machine.history.tensor(name, self.position)
        return None

    def earlier(self, name: str, changes: int) -> Node | None:
        """What it meant before it was last changed, so many times; None where it was not."""
        value = self.value(name)
        if value is None:
            if name not in self.machine.host.tensors:
                return None
            return self.machine.history.named.before(name, self.position, changes)
        old = self.activation.scoped.get((value, self.frame), [])[:-1] or [
            node
            for when, _, node in self.activation.replaced.get(value, ())
            if when <= self.position
        ]
        return old[-changes] if 0 < changes <= len(old) else None

    def names(self) -> dict[str, Node]:
        """The values that are there, in the order of the program; inputs come first."""
        scope, at = self.activation.plan.scopes[self.frame], self.activation.at
        found = {name: at(value, self.position, self.frame) for name, value in scope.items()}
        return {name: node for name, node in found.items() if node is not None}

    def inputs(self) -> dict[str, Node]:
        """What the graph was given."""
        names = [b.name.text for b in self.graph.inputs]
        found = {name: self.lookup(name) for name in names}
        return {name: node for name, node in found.items() if node is not None}

    def params(self) -> dict[str, Node]:
        """All named tensors of the program, as they are at this position."""
        tensors = self.machine.host.tensors
        return {name: self.machine.history.tensor(name, self.position) for name in tensors}

    def _literal(self, value: int) -> Node | None:
        plan = self.activation.plan
        buffer = plan.buffers[plan.values[value].buffer]
        if buffer.kind != "const" or buffer.literal is None:
            return None
        return self.machine.executor.constant(plan.values[value].type, buffer.literal)


def stack(machine: Machine, at: tuple[Activation, Point] | None, position: int) -> list[Frame]:
    """The frames around a point, innermost first."""
    if at is None:
        return []
    activation, point = at
    frames: list[Frame] = []
    statement, frame = point.statement, point.frame
    while True:
        frames.append(_frame(len(frames), machine, activation, frame, statement, position))
        caller = activation.caller(frame)
        if caller is None:
            return frames
        activation, frame, statement = caller


def innermost(machine: Machine, at: tuple[Activation, Point], position: int) -> Frame:
    """The first of the stack, which alone costs less."""
    activation, point = at
    return _frame(0, machine, activation, point.frame, point.statement, position)


def _frame(
    number: int, machine: Machine, activation: Activation, frame: int, statement, position: int
) -> Frame:
    plan = activation.plan
    graph = plan.frames[frame].graph
    return Frame(
        number,
        number,
        activation.frame_name(frame),
        graph,
        statement,
        plan.frames[frame].source,
        statement.span if statement is not None else _closing(graph),
        None,
        machine,
        activation,
        frame,
        activation.depth + _depth(plan, frame),
        position,
    )


def _depth(plan, frame: int) -> int:
    depth = 0
    while plan.frames[frame].parent >= 0:
        depth, frame = depth + 1, plan.frames[frame].parent
    return depth


def _closing(graph: Graph) -> Span:
    """The brace at a graph's end."""
    return Span(max(graph.span.end - 1, graph.span.start), graph.span.end)
