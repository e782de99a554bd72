"""What is seen of a run where it stands: names and tensors, of which nothing is copied before
somebody opens them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.dap.frames import Held, Stacks
from opstep.dap.registry import DapError
from opstep.editors.views import HostTensor

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.dap.variables import Writer
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.debugger.node import Node
    from opstep.runtime.debugger.scope import Handle
    from opstep.runtime.plan.plan import Plan

NO_VALUE = 2201
MOST_NUMBERED = 16  # frames of large graphs whose numbering is kept


class Looking:
    """``session.here(Looking)``: the names of the frames that were looked at."""

    def __init__(self, session: Session):
        self._numbered = session.kept(Numbered)
        self._names: dict[tuple[int, int], list[str]] = {}

    def names(self, frame: Frame) -> list[str]:
        """The values that are there, in the order of the program; inputs come first."""
        key = id(frame.activation), frame.frame
        if key not in self._names:
            self._names[key] = self._there(frame)
        return self._names[key]

    def forget(self) -> None:
        """Something was set."""
        self._names.clear()

    def _there(self, frame: Frame) -> list[str]:
        """As `Frame.names` finds them, in a time that grows with those that are there: a graph may
        have 100,000.
        """
        activation, position = frame.activation, frame.position
        scope, env = activation.plan.scopes[frame.frame], activation.env
        if activation.replaced:
            return [name for name, v in scope.items() if activation.at(v, position) is not None]
        if len(scope) <= len(env):
            nowhere = (position + 1,)
            return [name for name, v in scope.items() if env.get(v, nowhere)[0] <= position]
        names, places = self._numbered.of(activation.plan, frame.frame)
        there = [places[v] for v, found in env.items() if found[0] <= position and v in places]
        return [names[k] for k in sorted(k for several in there for k in several)]


class Numbered:
    """``session.kept(Numbered)``: the places of values among the names of large graphs."""

    def __init__(self, _: Session):
        self._known: dict[tuple[int, int], tuple[Plan, list[str], dict[int, list[int]]]] = {}

    def of(self, plan: Plan, frame: int) -> tuple[list[str], dict[int, list[int]]]:
        """A frame's names, and the places of each value in them: it may have two."""
        key = id(plan), frame
        if key not in self._known:
            if len(self._known) >= MOST_NUMBERED:
                self._known.clear()
            places: dict[int, list[int]] = {}
            for k, v in enumerate(plan.scopes[frame].values()):
                places.setdefault(v, []).append(k)
            self._known[key] = plan, list(plan.scopes[frame]), places
        return self._known[key][1:]


def renew(session: Session) -> None:
    """A value was set: numbers of frames and scopes hold, what they show is looked up again."""
    session.here(Looking).forget()
    session.here(Stacks).renew()


class Origin(ABC):
    """Where a tensor that is shown comes from."""

    __slots__ = ()
    expression: str  # that gives it again, "" where nothing does

    @abstractmethod
    def node(self) -> Node | None:
        """None for an array of ours."""

    @abstractmethod
    def handle(self) -> Any: ...


class Named(Origin):
    """A tensor by its name in a frame: looked up whenever it is needed, as it can be set."""

    __slots__ = ("expression", "held", "name")

    def __init__(self, held: Held, name: str):
        self.held = held
        self.name = self.expression = name

    def node(self) -> Node:
        """Raises `DapError` where the name has no value any more."""
        found = self.held.frame.lookup(self.name)
        if found is None:
            raise DapError(f"{self.name} has no value here", NO_VALUE)
        return found

    def handle(self) -> Handle:
        from opstep.runtime.debugger.scope import Handle

        return Handle(self.held.frame.machine.executor, self.node())


class Given(Origin):
    """A tensor that an expression gave, or that belongs to no name: a handle, or an array of ours.

    `expression`: what gives it again, "" where nothing does.
    """

    __slots__ = ("_value", "expression", "held")

    def __init__(self, value: Any, expression: str = "", held: Held | None = None):
        self._value = HostTensor(value) if isinstance(value, np.ndarray) else value
        self.expression = expression
        self.held = held

    def node(self) -> Node | None:
        """None for an array of ours."""
        return getattr(self._value, "node", None)

    def handle(self) -> Any:
        return self._value


class Opened(ABC):
    """What a ``variablesReference`` stands for: something with children."""

    named: int  # how many have names
    indexed: int  # how many have numbers

    @abstractmethod
    def page(self, w: Writer, kind: str, start: int, stop: int) -> list[dict[str, Any]]:
        """Children of one kind, "named" or "indexed"."""

    @abstractmethod
    def target(self, name: str) -> tuple[Held, str] | None:
        """The frame in which a child of that name is set, as what; None where it cannot be."""


def indexed(expression: str, place: Sequence[int]) -> str:
    """``x[3, 17]``; "" where nothing stands for x."""
    if not expression or not place:
        return expression
    name = expression if expression.replace(".", "").replace("_", "").isalnum() else ""
    return f"{name or f'({expression})'}[{', '.join(map(str, place))}]"


def target_of(origin: Origin, place: tuple[int, ...]) -> tuple[Held, str] | None:
    """Only what has a name can be set."""
    if isinstance(origin, Named):
        return origin.held, indexed(origin.name, place)
    if isinstance(origin, Given) and origin.held is not None and origin.expression:
        return origin.held, indexed(origin.expression, place)
    return None
