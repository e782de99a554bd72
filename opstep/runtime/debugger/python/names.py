"""Python's variables in the functions that a program was imported from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opstep.runtime.debugger.python.calls import Around, FunctionCall, is_forward, passed
from opstep.runtime.debugger.python.files import Function
from opstep.runtime.debugger.python.returned import Returned
from opstep.runtime.debugger.python.stack import is_in_backward
from opstep.runtime.ir.graph import Graph

if TYPE_CHECKING:
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.debugger.python.lines import PythonFrame, PythonLines


class PythonNames:
    """Of a program's functions; kept, as a stop asks for the same ones again."""

    def __init__(self, lines: PythonLines):
        self._lines = lines
        self._calls: dict[tuple, FunctionCall] = {}
        self.returned = Returned(lines, self.call)

    def meant(self, frame: Frame) -> dict[str, str | None]:
        """`of`, with all other names in the text of the frame's file: what these are in Python is
        not known, and it need not be what the graph calls so.
        """
        assert frame.python is not None
        return dict.fromkeys(frame.python.at.file.identifiers) | self.of(frame)

    def unknown(self, frame: Frame) -> list[str]:
        """The variables that may have a value there, of which it is not known."""
        python = frame.python
        if python is None or python.function is None or is_in_backward(frame):
            return []
        call = self.call(frame.graph, python.origin.runs[: python.level], python.function)
        at = python.at.file.statement(python.at.line)
        return [n for n, v in self.of(frame).items() if v is None and call.may_be_there(n, at)]

    def of(self, frame: Frame) -> dict[str, str | None]:
        """The variables of a frame of Python, each with the name of its value in the graph; None
        for one of which it is not known, or that is no tensor.
        """
        python = frame.python
        assert python is not None
        if python.function is None:
            return {}
        call = self.call(frame.graph, python.origin.runs[: python.level], python.function)
        derived = getattr(frame.statement, "derived_from", None)
        if is_in_backward(frame) or (derived is not None and not python.level):
            return dict.fromkeys(call.names)  # a gradient has the functions of all calls
        own = self._lines.origin(frame.graph, frame.statement)
        if own is None:  # the graph returns
            return dict.fromkeys(call.names)
        found = self._at(call, frame, python)
        there = {n: v for n, v in found.items() if v is not None and frame.lookup(v) is not None}
        return {name: there.get(name) for name in call.names}

    def call(self, graph: Graph, around: Around, function: Function | None) -> FunctionCall:
        key = id(graph), around, function
        if key not in self._calls:
            self._calls[key] = FunctionCall(
                self._lines, self.returned, graph, around, function, self.call
            )
        return self._calls[key]

    def _at(self, call: FunctionCall, frame: Frame, python: PythonFrame) -> dict[str, str | None]:
        run = python.origin.runs[python.level]
        line = call.executions.get(run)
        begun = line is not None and frame.lookup(line.made[0].results[0].name.text) is not None
        return call.at(run, self._given(frame, python), begun)

    def _given(self, frame: Frame, python: PythonFrame) -> Mapping[str, str | None]:
        """The arguments of a function, as far as it is known what they were."""
        function = python.function
        assert function is not None
        inputs = {b.name.text for b in frame.graph.inputs}
        if python.level:
            origin, level = python.origin, python.level - 1
            if (
                python.level == 1
                and _calls_module(python)
                and not frame.activation.caller(frame.frame)
            ):
                return _inputs(function, inputs)
            outer = python._replace(at=origin.lines[level], level=level)
            if outer.function is None:
                return {}
            call = self.call(frame.graph, origin.runs[:level], outer.function)
            values = self._at(call, frame, outer)
            line = call.executions.get(origin.runs[level])
            pairs = passed(outer.at, function, line.made[-1]) if line else []
            return {a: values.get(name) for a, name in pairs}
        if frame.activation.caller(frame.frame) or _calls_module(python):
            return {}  # the importer's names of its inputs need not be those of arguments
        return _inputs(function, inputs)


def _inputs(function: Function, inputs: set[str]) -> dict[str, str]:
    """The arguments that inputs of the graph are; not where another has the name, too."""
    several = {name.rpartition("_")[0] for name in inputs if name.rpartition("_")[2].isdigit()}
    return {a: a for a in function.arguments if a in inputs and a not in several}


def _calls_module(python: PythonFrame) -> bool:
    """Whether a script is the outermost function, and calls the module there whose arguments the
    graph's are.
    """
    functions = [line.function for line in python.origin.lines[:2]]
    return len(functions) == 2 and not is_forward(functions[0]) and is_forward(functions[1])
