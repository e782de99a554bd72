"""The stack of Python: frames of graphs as those of the functions that they were imported from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.python.lines import Origin, PythonFrame, PythonLines
from opstep.runtime.ir.graph import Graph

_BACKWARD = re.compile(r"(^|_)backward(_\d+)?$")


def python_stack(lines: PythonLines, frames: Sequence[Frame], level: int | None) -> list[Frame]:
    """A stack of graphs, innermost first, with the functions of Python in place of those that were
    imported. `level`: the innermost function that is entered at the point.
    """
    modules = _modules(frames)
    found: list[Frame] = []
    for frame, module in zip(frames, modules, strict=True):
        origin = lines.shown(frame.graph, frame.statement)
        backward = is_in_backward(frame)
        for python in _functions(origin, module, level if not frame.call else None):
            derived = backward or (python.level and _is_derived(frame))
            name = f"{python.name} backward" if derived else python.name
            found.append(frame._replace(number=len(found), name=name, python=python))
        if origin is None:
            found.append(frame._replace(number=len(found)))
    return found


def is_in_backward(frame: Frame) -> bool:
    """Whether it computes gradients of its lines: as part of a graph, or because the graph is the
    backward of a model that PyTorch compiles.
    """
    derived = getattr(frame.statement, "derived_from", None)
    return (derived is not None and derived.backward) or is_backward_graph(frame.graph)


def _is_derived(frame: Frame) -> bool:
    """Whether it computes gradients of a function that its lines call."""
    at = getattr(frame.statement, "at", None)
    return at is not None and at.is_backward


def is_backward_graph(graph: Graph) -> bool:
    """Whether a graph is the backward of a model that PyTorch compiles, or a part of that."""
    return _BACKWARD.search(graph.name.text) is not None


def _functions(origin: Origin | None, module: str, level: int | None) -> list[PythonFrame]:
    """Of one call of a graph, innermost first."""
    if origin is None:
        return []
    top = len(origin.lines) - 1 if level is None else min(level, len(origin.lines) - 1)
    found = []
    for k in range(top, -1, -1):
        at = origin.lines[k]
        begins = level is not None and k == top and origin.begins <= k
        line = at.first if begins else at.line
        within = "" if not k or _same_owner(origin, k) else origin.module
        found.append(PythonFrame(at, line, k, origin, _joined(module, within), within))
    return found


def _same_owner(origin: Origin, level: int) -> bool:
    """Whether a function is a method of the class whose `forward` the graph is, or none. Around it
    may be functions of a script.
    """
    functions = [line.function for line in origin.lines]
    owner = next((f.owner for f in functions if f and f.owner), "")
    inner = functions[level]
    return not inner or inner.owner in ("", owner)


def _modules(frames: Sequence[Frame]) -> list[str]:
    """The path of the module of each call, innermost first."""
    path, found = "", []
    for frame in reversed(frames):
        found.append(path)
        at = getattr(frame.statement, "at", None)
        path = _joined(path, at.owner if at else "")
    return found[::-1]


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner else outer or inner
