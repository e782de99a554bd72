"""What a function of Python returned: values of the graph that it was imported to."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opstep.runtime.debugger.python.files import Function, Lines
from opstep.runtime.debugger.python.lines import Origin, PythonLine, PythonLines
from opstep.runtime.ir.graph import Apply, Graph, Return

Value = str | None  # by its name in the graph; None where that is not known
Values = Value | list[Value]  # of a tuple, or a list, those in it


class NoCall:
    """No function of the program's is called, or what it returned is not known."""


NO_CALL = NoCall()

_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript)


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


Executions = Callable[[Graph, tuple[int, ...], Function | None], Mapping[int, Execution]]
Variables = Callable[[Graph, tuple[int, ...], Function | None], Mapping[str, Value]]


class Returned:
    """`executions` and `variables`: those of a function, by a graph, the executions of lines around
    it, and itself.
    """

    def __init__(self, lines: PythonLines, executions: Executions, variables: Variables):
        self._lines = lines
        self._executions = executions
        self._variables = variables

    def of_call(self, graph: Graph, line: Execution, written: ast.expr | None) -> Values | NoCall:
        """What the function that an expression calls gave it; `NO_CALL` where it is none, or that
        is not known, so that it is what was computed last.
        """
        match written:
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(index))):
                found = self.of_call(graph, line, call)
                if not isinstance(found, list):
                    return found
                return found[index] if -len(found) <= index < len(found) else None
            case ast.Call(func=ast.Name(id=name)) if hasattr(builtins, name):
                return NO_CALL
            case ast.Call():
                return self._of_callee(graph, line)
        return NO_CALL

    def results(self, call: Any) -> list[str] | None:
        """Which results of a call of a graph its function returned; None where that is not known:
        others are kept for the backward.
        """
        found = self._of_graph(call)
        if isinstance(found, NoCall):
            return None
        values = found if isinstance(found, list) else [found]
        known = [v for v in values if isinstance(v, str)]
        return known if len(known) == len(values) else None

    def _of_callee(self, graph: Graph, line: Execution) -> Values | NoCall:
        origin, level = line.origin, line.level + 1
        if level == len(origin.lines):
            return self._of_graph(line.made[-1])
        function = origin.lines[level].function
        return self._of_function(graph, origin.runs[:level], function, origin.lines[level])

    def _of_graph(self, call: Apply) -> Values | NoCall:
        """The results of a call of a graph, in the order in which its function returns them."""
        inner = self._lines.graph(call.callee.text)
        origin = next(iter(self._lines.of_graph(inner).values()), None) if inner else None
        if inner is None or origin is None or not isinstance(inner.body[-1], Return):
            return NO_CALL
        found = self._of_function(inner, (), origin.lines[0].function, origin.lines[0])
        given = [v.text for v in inner.body[-1].values]
        results = dict(zip(given, (r.name.text for r in call.results), strict=True))
        if isinstance(found, list):
            return [None if v is None else results.get(v) for v in found]
        return results.get(found) if isinstance(found, str) else found

    def _of_function(
        self, graph: Graph, around: tuple[int, ...], function: Function | None, at: PythonLine
    ) -> Values | NoCall:
        returns = _returns(function, at)
        executed = list(self._executions(graph, around, function).values())
        last = executed[-1] if executed and executed[-1].statement.node in returns else None
        if last is None and len(returns) != 1:
            return NO_CALL
        node = last.statement.node if last else returns[0]
        assert isinstance(node, ast.Return)
        variables = self._variables(graph, around, function)
        if isinstance(node.value, ast.Tuple | ast.List):
            return self._each(graph, node.value.elts, last, variables)
        return self._one(graph, node.value, last, variables)

    def _one(
        self, graph: Graph, written: ast.expr | None, line: Execution | None,
        variables: Mapping[str, Value],
    ) -> Values | NoCall:  # fmt: skip
        if isinstance(written, ast.Name):
            return variables.get(written.id)
        if line is None or not isinstance(written, _OPERATIONS):
            return NO_CALL if line else None
        found = self.of_call(graph, line, written)
        results: list[Value] = [r.name.text for r in line.made[-1].results]
        if not isinstance(found, NoCall):
            return found
        return results[0] if len(results) == 1 else results

    def _each(
        self, graph: Graph, written: Sequence[ast.expr], line: Execution | None,
        variables: Mapping[str, Value],
    ) -> list[Value]:  # fmt: skip
        """What is in a tuple: variables, and what its line computed, if it is clear what for."""
        computed = [e for e in written if any(isinstance(n, _OPERATIONS) for n in ast.walk(e))]
        made = line.made if line else []
        values: dict[ast.expr, object] = {e: _of_module(e, made) for e in computed}
        if len(made) == len(computed):
            values = dict(zip(computed, map(_single, made), strict=True))
        if line is not None and len(computed) == 1:
            values = {computed[0]: self._one(graph, computed[0], line, variables)}
        found = (variables.get(e.id) if isinstance(e, ast.Name) else values.get(e) for e in written)
        return [v if isinstance(v, str) else None for v in found]


def _single(made: Apply) -> Value:
    return made.results[0].name.text if len(made.results) == 1 else None


def _of_module(written: ast.expr, made: Sequence[Apply]) -> Value:
    """What ``self.name(…)`` computed, where all of it is one module's."""
    match written:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            inside = [s for s in made if s.at and f".{s.at.module}.".endswith(f".{name}.")]
            return _single(inside[-1]) if inside else None
    return None


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
