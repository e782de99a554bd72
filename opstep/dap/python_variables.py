"""Python's variables in the functions that a program was imported from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opstep.dap.facts import declared
from opstep.dap.frames import FrameHandle
from opstep.dap.tensor_origins import NamedTensor, Opened, Variable, VariableWriter
from opstep.dap.variables import Names
from opstep.dap.visible_names import VisibleNames
from opstep.runtime.ir.lexer import quote_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame


def value_name(session: Session, frame_handle: FrameHandle, name: str) -> str:
    """The graph's name for a name of an expression in a frame; "" where that is not known."""
    return session.debugger.scope(frame_handle.frame).value_name(name) or ""


class Variables(Opened):
    """Python's variables in a function, with the values that are known to be theirs; and `self`,
    with the named tensors of its module.
    """

    indexed = 0

    def __init__(self, session: Session, frame_handle: FrameHandle):
        frame = frame_handle.frame
        self.frame_handle = frame_handle
        found = session.debugger.stop_point.names.of(frame)
        self.values = {name: value for name, value in found.items() if value is not None}
        self.unknown = session.debugger.stop_point.names.unknown(frame)
        self.tensors = _of_module(frame)
        self.named = len(self.values) + bool(self.tensors) + len(self.unknown)

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        first = [self._self(w)] if self.tensors and not start else []
        shift = bool(self.tensors)
        pairs = list(self.values.items())[max(start - shift, 0) : stop - shift]
        end = shift + len(self.values)
        others = self.unknown[max(start - end, 0) : max(stop - end, 0)]
        return [
            *first,
            *(self._one(w, name, value) for name, value in pairs),
            *(w.plain(name, "not known") for name in others),
        ]

    def _one(self, w: VariableWriter, name: str, value: str) -> Variable:
        node = self.frame_handle.lookup(value)
        assert node is not None
        found = variable(w, self.frame_handle, name, value)
        return w.location(found, lambda: declared(self.frame_handle, value, node))

    def _self(self, w: VariableWriter) -> Variable:
        python = self.frame_handle.frame.python
        of = Attributes(self.frame_handle, self.tensors)
        return w.opening("self", python.module if python else "", of)

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        return (self.frame_handle, quote_name(name)) if name in self.values else None


class Attributes(Opened):
    """The named tensors of a module, by their names in it."""

    indexed = 0

    def __init__(self, frame_handle: FrameHandle, tensors: Mapping[str, str]):
        self.frame_handle = frame_handle
        self.tensors = tensors
        self.named = len(tensors)

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        pairs = list(self.tensors.items())[start:stop]
        return [w.tensor(name, NamedTensor(self.frame_handle, full)) for name, full in pairs]

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        full = self.tensors.get(name)
        return None if full is None else (self.frame_handle, quote_name(full))


def _of_module(frame: Frame) -> dict[str, str]:
    """The named tensors of a function's module: the name in it, and the whole name."""
    python = frame.python
    function = python.function if python else None
    if python is None or function is None or function.arguments[:1] != ("self",):
        return {}
    prefix = f"{python.module}." if python.module else ""
    tensors = frame.machine.host.tensors
    return {n.removeprefix(prefix): n for n in tensors if n.startswith(prefix)}


def variable(w: VariableWriter, frame_handle: FrameHandle, name: str, value: str) -> Variable:
    """A variable of Python; its type tells what the graph calls its value."""
    origin = NamedTensor(frame_handle, value)
    origin.expression = quote_name(name)
    found = w.tensor(name, origin)
    if name != value and "type" in found:
        found["type"] += f" ({value})"
    return found


def all_values(session: Session, frame_handle: FrameHandle) -> Names:
    """All that the graph of a function has computed, by the graph's names."""
    graph = frame_handle.of_graph()
    inputs = {b.name.text for b in graph.frame.graph.inputs}
    names = [n for n in session.per_stop(VisibleNames).names(graph.frame) if n not in inputs]
    shadowed = session.debugger.scope(frame_handle.frame).variables
    return Names(graph, names, graph.lookup, {n for n in names if shadowed.get(n, n) != n})
