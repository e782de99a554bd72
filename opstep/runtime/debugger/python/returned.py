"""What a function of Python returned: values of the graph that it was imported to."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from opstep.runtime.debugger.python.files import Function, Lines, PythonFile
from opstep.runtime.debugger.python.lines import Origin, PythonLine, PythonLines
from opstep.runtime.debugger.python.matching import Match
from opstep.runtime.ir.graph import Apply, Graph, Return

Value = str | None  # by its name in the graph; None where that is not known
Values = Value | list[Value]  # of a tuple, or a list, those in it


class NoCall:
    """No function of the program's is called, or what it returned is not known."""


NO_CALL = NoCall()


class Execution(NamedTuple):
    """Of a line of a function: what it computed, in order, and the last one's origin."""

    made: list[Apply]
    origin: Origin
    level: int

    @property
    def line(self) -> PythonLine:
        return self.origin.lines[self.level]

    @property
    def statement(self) -> Lines:
        return self.line.file.statement(self.line.line)


class _Call(Protocol):
    """`calls.FunctionCall`."""

    function: Function | None
    executions: dict[int, Execution]
    runs: list[int]
    is_single: bool

    def at(self, run: int, given: Mapping[str, str | None]) -> dict[str, str | None]: ...
    def at_end(self, statement: Lines) -> dict[str, str | None]: ...
    def matched(self, line: Execution, expression: ast.expr | None) -> Match: ...


class _Calls(Protocol):
    """Gives the call of a function, in a graph, by the executions of lines around it."""

    def __call__(
        self, graph: Graph, around: tuple[int, ...], function: Function | None
    ) -> _Call: ...


class Returned:
    def __init__(self, lines: PythonLines, calls: _Calls):
        self._lines = lines
        self._calls = calls

    def of_call(self, graph: Graph, line: Execution, written: ast.expr | None) -> Values | NoCall:
        """The result of the function that an expression calls; `NO_CALL` where it is none of the
        program's.
        """
        match written:
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(index))):
                found = self.of_call(graph, line, call)
                if not isinstance(found, list):
                    return found if isinstance(found, NoCall) else None
                return found[index] if -len(found) <= index < len(found) else None
            case ast.Call(func=ast.Call(func=function)) if line.level + 1 < len(line.origin.lines):
                value = self._of_callee(graph, line)
                if _name(function) == "value_and_grad" and isinstance(value, str):
                    return [value, None]
                return None
            case ast.Call() as call:
                file = line.line.file
                if line.level + 1 == len(line.origin.lines):
                    found = self._of_graph(line.made[-1])
                    unknown = not is_call_of(call, "forward", line.made[-1], file)
                    return None if unknown and not isinstance(found, NoCall) else found
                inner = line.origin.lines[line.level + 1].function
                name = inner.name.rpartition(".")[2] if inner else ""
                known = is_call_of(call, name, line.made[-1], file)
                return self._of_callee(graph, line) if known else None
        return NO_CALL

    def results(self, call: Any) -> list[str] | None:
        """Which results of a call of a graph its function returned; None where that is not known:
        others are kept for the backward.
        """
        found = self._of_graph(call)
        values = found if isinstance(found, list) else [found]
        known = [v for v in values if isinstance(v, str)]
        return known if len(known) == len(values) else None

    def _of_callee(self, graph: Graph, line: Execution) -> Values:
        origin, level = line.origin, line.level + 1
        function = origin.lines[level].function
        call = self._calls(graph, origin.runs[:level], function)
        return self._of_function(call, graph, origin.lines[level])

    def _of_graph(self, call: Apply) -> Values | NoCall:
        """The results of a call of a graph, in the order in which its function returns them."""
        inner = self._lines.graph(call.callee.text)
        if inner is None:
            return NO_CALL
        origin = next(iter(self._lines.of_graph(inner).values()), None)
        if origin is None or not isinstance(inner.body[-1], Return):
            return None
        at = origin.lines[0]
        found = self._of_function(self._calls(inner, (), at.function), inner, at)
        given = [v.text for v in inner.body[-1].values]
        results = dict(zip(given, (r.name.text for r in call.results), strict=True))
        if isinstance(found, list):
            return [None if v is None else results.get(v) for v in found]
        return results.get(found) if isinstance(found, str) else None

    def _of_function(self, call: _Call, graph: Graph, at: PythonLine) -> Values:
        returns = _returns(call.function, at)
        last = call.executions[call.runs[-1]] if call.runs else None
        if last is None or (last.statement.node not in returns and len(returns) != 1):
            return None
        if not call.is_single:
            return None
        node = last.statement.node if last.statement.node in returns else returns[0]
        assert isinstance(node, ast.Return)
        if node is last.statement.node:
            variables = call.at(call.runs[-1], {})
        else:
            last, variables = None, call.at_end(at.file.statement(node.lineno))
        if isinstance(node.value, ast.Tuple | ast.List):
            found = [self._one(call, graph, e, last, variables) for e in node.value.elts]
            return [v if isinstance(v, str) else None for v in found]
        return self._one(call, graph, node.value, last, variables)

    def _one(
        self, call: _Call, graph: Graph, written: ast.expr | None, line: Execution | None,
        variables: Mapping[str, str | None],
    ) -> Values:  # fmt: skip
        if isinstance(written, ast.Name):
            return variables.get(written.id)
        if line is None or written is None:
            return None
        found = self.of_call(graph, line, written)
        return call.matched(line, written).value if isinstance(found, NoCall) else found


def is_call_of(call: ast.Call, function: str, last: Apply, file: PythonFile) -> bool:
    """Whether it is this call, of those in an expression, that executes a function: a module's
    `forward` where the last op is of that module.
    """
    name = _name(call.func)
    if function not in ("forward", "__call__"):
        return name == function
    if last.at is not None and name in last.at.owner.split("."):
        return True
    calls = [n for n in ast.walk(call) if isinstance(n, ast.Call)]
    return sum(not file.is_library(n.func) for n in calls) == 1 and not hasattr(builtins, name)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _returns(function: Function | None, at: PythonLine) -> list[ast.stmt]:
    """The ``return`` statements of a function."""
    if function is None:
        return []
    found = {}
    for line in range(function.first, function.last + 1):
        node = at.file.statement(line).node
        if isinstance(node, ast.Return) and at.file.function(line) == function:
            found[id(node)] = node
    return list(found.values())
