"""Where the tensors that are shown come from, and what can be opened in a list of variables.

Nothing of a tensor is copied before somebody opens it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from opstep.dap.frames import FrameHandle
from opstep.dap.registry import DapError
from opstep.editors.views import HostTensor
from opstep.runtime.ir.lexer import is_tensor_name, quote_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.debugger.scope import Handle, Whole

NO_VALUE = 2201

Variable = dict[str, Any]  # of the protocol


class Origin(ABC):
    """Where a tensor that is shown comes from."""

    __slots__ = ()
    expression: str  # that gives it again, "" where nothing does

    @abstractmethod
    def node(self) -> Node | None:
        """None for an array of ours, and for what is put together of several."""

    def nodes(self) -> list[Node]:
        """All that it is made of."""
        return getattr(self.handle(), "nodes", [])

    @abstractmethod
    def handle(self) -> Any: ...


class NamedTensor(Origin):
    """A tensor by its name in a frame: looked up whenever it is needed, as it can be set."""

    __slots__ = ("expression", "frame_handle", "name")

    def __init__(self, frame_handle: FrameHandle, name: str):
        self.frame_handle = frame_handle
        self.name = name
        self.expression = quote_name(name)

    def node(self) -> Node | None:
        """Raises `DapError` where the name has no value any more."""
        return getattr(self.handle(), "node", None)

    def handle(self) -> Handle | Whole:
        from opstep.runtime.debugger.scope import shown

        found = shown(self.frame_handle.frame, self.name)
        if found is None:
            raise DapError(f"{self.name} has no value here", NO_VALUE)
        return found


class ComputedTensor(Origin):
    """A tensor that an expression gave, or that belongs to no name: a handle, or an array of ours.

    `expression`: what gives it again, "" where nothing does.
    """

    __slots__ = ("_value", "expression", "frame_handle")

    def __init__(self, value: Any, expression: str = "", frame_handle: FrameHandle | None = None):
        self._value = HostTensor(value) if isinstance(value, np.ndarray) else value
        self.expression = expression
        self.frame_handle = frame_handle

    def node(self) -> Node | None:
        """None for an array of ours."""
        return getattr(self._value, "node", None)

    def handle(self) -> Any:
        return self._value


class VariableWriter(Protocol):
    """Writes the variables of one response (`variables.Writer`)."""

    session: Session

    def plain(self, name: str, value: str, type: str = "", **more: Any) -> Variable: ...
    def opening(
        self, name: str, value: str, of: Opened, type: str = "", **more: Any
    ) -> Variable: ...
    def tensor(self, name: str, origin: Origin, **more: Any) -> Variable: ...
    def element(self, name: str, value: Any, expression: str = "") -> Variable: ...
    def row(
        self, name: str, array: np.ndarray, origin: Origin, indices: tuple[int, ...]
    ) -> Variable: ...
    def location(self, variable: Variable, find: Callable[[], Any]) -> Variable: ...


class Opened(ABC):
    """What a ``variablesReference`` stands for: something with children."""

    named: int  # how many have names
    indexed: int  # how many have numbers

    @abstractmethod
    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        """Children of one kind, "named" or "indexed"."""

    @abstractmethod
    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        """The frame in which a child of that name is set, as what; None where it cannot be."""


def indexed(expression: str, indices: Sequence[int]) -> str:
    """``x[3, 17]``; "" where nothing stands for x."""
    if not expression or not indices:
        return expression
    name = expression if is_tensor_name(expression) else f"({expression})"
    return f"{name}[{', '.join(map(str, indices))}]"


def target_of(origin: Origin, indices: tuple[int, ...]) -> tuple[FrameHandle, str] | None:
    """Only what has a name can be set."""
    if isinstance(origin, NamedTensor):
        return origin.frame_handle, indexed(origin.expression, indices)
    if isinstance(origin, ComputedTensor) and origin.frame_handle is not None and origin.expression:
        return origin.frame_handle, indexed(origin.expression, indices)
    return None
