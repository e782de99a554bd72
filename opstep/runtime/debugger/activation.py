"""One run of a plan under the debugger, and the values that it has so far."""

from __future__ import annotations

from typing import Protocol

from opstep.runtime.debugger.executor import Arena
from opstep.runtime.debugger.node import Node
from opstep.runtime.debugger.points import Points
from opstep.runtime.device.protocols import Device, Event
from opstep.runtime.ir.control import GraphCall
from opstep.runtime.ir.graph import Statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Policy

ROOT = "root"


class PlanSource(Protocol):
    """Where plans come from, and the device that they are for."""

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
        self.scoped: dict[
            tuple[int, int], list[Node]
        ] = {}  # by value and frame: versions set there
        self.start = 0
        self.arena: Arena | None = None
        self.events: dict[int, Event] = {}

    @property
    def graph(self) -> str:
        return self.plan.graph

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
        """What an op of a frame finds as a value; None where it is not there yet."""
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
        """What the value was at a position, in a frame if one is given; None where it was not there
        yet.
        """
        if self.scoped and (value, frame) in self.scoped and self.env[value][0] <= position:
            return self.scoped[value, frame][-1]
        for when, since, old in self.replaced.get(value, ()):
            if position < when:
                return old if since <= position else None
        found = self.env.get(value)
        return found[1] if found and found[0] <= position else None
