"""One run of a plan under the debugger, and the values that it has so far."""

from __future__ import annotations

from typing import Any

from opstep.runtime.debugger.executor import Arena
from opstep.runtime.debugger.node import Node
from opstep.runtime.debugger.points import Points


class Activation:
    """One run of a plan, which is of `host`. `role`: root, test, body or branch; `turn`: of its loop, or the step of
    the run; `carried`: the state of a loop when it began. `env` has each value that is there, with
    the position from which on it is.
    """

    def __init__(
        self, host: Any, points: Points, parent: Activation | None, call: int, role: str, turn: int
    ):
        self.host = host
        self.points = points
        self.plan = points.plan
        self.parent = parent
        self.call = call  # the point of the parent that made it
        self.role = role
        self.turn = turn
        self.depth = 0 if parent is None else parent.depth + parent.points[call].depth + 1
        self.level = 0 if parent is None else parent.level + 1
        self.carried: tuple[Node, ...] = ()
        self.env: dict[int, tuple[int, Node]] = {}
        self.replaced: dict[int, list[tuple[int, int, Node]]] = {}  # value -> (set at, since, old)
        self.start = 0
        self.arena: Arena | None = None
        self.events: dict[int, Any] = {}

    @property
    def graph(self) -> str:
        return self.plan.graph

    def at(self, value: int, position: int) -> Node | None:
        """What the value was at a position; None where it was not there yet."""
        for when, since, old in self.replaced.get(value, ()):
            if position < when:
                return old if since <= position else None
        found = self.env.get(value)
        return found[1] if found and found[0] <= position else None
