"""What Python's variables are, in a function that a graph was imported from."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from opstep.runtime.debugger.python.files import Function, Lines, calls_in, calls_through
from opstep.runtime.debugger.python.returned import NO_CALL, Execution, NoCall, Returned
from opstep.runtime.ir.graph import Apply, Graph, Statement

if TYPE_CHECKING:
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.debugger.python.frame import PythonFrame
    from opstep.runtime.debugger.python.lines import PythonLine, PythonLines


# What is written for a value that is no tensor, but may hold some.
_CONTAINERS = (
    ast.Tuple, ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript)


class Assigned(NamedTuple):
    """A variable that an execution of a line assigned, and the graph's value that it got; or, where
    it got a tuple or a list, one that was computed for that.
    """

    variable: str
    value: str
    is_tensor: bool
    run: int


class PythonNames:
    """Of a program's functions; kept, as a stop asks for the same ones again."""

    def __init__(self, lines: PythonLines):
        self._lines = lines
        self._assigned: dict[tuple, list[Assigned]] = {}
        self.returned = Returned(lines, self._executions, self._latest)

    def of(self, frame: Frame, before: int | None = None) -> dict[str, str | None]:
        """The variables of a frame of Python, each with the name of its latest value in the graph;
        None for one of which it is not known, or that is no tensor. `before`: only those assigned
        before that execution of a line.
        """
        python = frame.python
        assert python is not None
        found = self._arguments(frame)
        for one in self._of_function(frame.graph, python):
            if one.run == before:
                break
            if frame.lookup(one.value) is not None:
                found[one.variable] = one.value if one.is_tensor else None
        if before is None and python.function is not None:
            above = python.at.file.assigned(python.function, python.at.first)
            found |= {name: None for name in above if name not in found}
        return found

    def _arguments(self, frame: Frame) -> dict[str, str | None]:
        python = frame.python
        assert python is not None
        function = python.function
        arguments = function.arguments if function else ()
        found: dict[str, str | None] = {a: None for a in arguments if a != "self"}
        derived = getattr(frame.statement, "derived_from", None)
        if derived is not None and (derived.backward or not python.level):
            return found  # a gradient has the functions of all calls in one graph
        inputs = {b.name.text for b in frame.graph.inputs} & _of_graph(python)
        if not python.level:
            return {a: a for a in arguments if a in inputs}
        origin, level = python.origin, python.level - 1
        outer = python._replace(at=origin.lines[level], level=level)
        values = self.of(frame._replace(python=outer), origin.runs[level])
        found |= {a: values.get(v) for a, v in _passed(outer.at, function) if a in found}
        return {a: a if a in inputs else v for a, v in found.items()}

    def _of_function(self, graph: Graph, python: PythonFrame) -> list[Assigned]:
        """What a function assigns, in order, all through the graph."""
        around, function = python.origin.runs[: python.level], python.function
        key = id(graph), around, function
        if key not in self._assigned:
            self._assigned[key] = self._find(graph, around, function)
        return self._assigned[key]

    def _find(
        self, graph: Graph, around: tuple[int, ...], function: Function | None
    ) -> list[Assigned]:
        found: list[Assigned] = []
        for run, line in self._executions(graph, around, function).items():
            found += [Assigned(*one, run) for one in self._named(graph, line)]
        return found

    def _executions(
        self, graph: Graph, around: tuple[int, ...], function: Function | None
    ) -> dict[int, Execution]:
        """Of a function's lines that computed something, by their numbers."""
        level, origins = len(around), self._lines.of_graph(graph)
        found: dict[int, Execution] = {}
        for statement in graph.body:
            one = origins.get(id(statement))
            if one is None or one.runs[:level] != around or len(one.lines) <= level:
                continue
            if one.lines[level].function == function and _assigns(statement):
                before = found.get(one.runs[level])
                made = [*before.made, statement] if before else [statement]
                found[one.runs[level]] = Execution(made, one, level)
        return found

    def _latest(
        self, graph: Graph, around: tuple[int, ...], function: Function | None
    ) -> dict[str, str | None]:
        """The variables of a function at its end."""
        assigned = self._find(graph, around, function)
        return {one.variable: one.value if one.is_tensor else None for one in assigned}

    def _named(self, graph: Graph, line: Execution) -> list[tuple[str, str, bool]]:
        """The targets of an assignment with the values that they got, and whether they are these
        values.
        """
        assignment = line.statement
        targets, written = assignment.targets, getattr(assignment.node, "value", None)
        made = {r.name.text for s in line.made for r in s.results}
        inner = [(n, n, True) for n in _inner_names(assignment.node) if n in made]
        found = self.returned.of_call(graph, line, written) if targets else NO_CALL
        if isinstance(found, NoCall):
            return inner + _in_order(line.made, assignment)
        values: list[str | None] = [None] * len(targets)
        if _gives_value_first(written):
            values[:1] = [found if isinstance(found, str) else None]
        elif isinstance(found, list):
            if len(found) == len(targets) > 1:
                values = found
        elif len(targets) == 1:
            values = [found]
        last = line.made[-1].results[0].name.text
        outer = zip(targets, values, strict=True)
        return inner + [(t, v or last, v is not None) for t, v in outer if t]


def _inner_names(node: ast.stmt | None) -> list[str]:
    """Those in tuples within the one that is assigned, as ``y, (h, c)``: the importer calls the
    values so.
    """
    target = node.targets[-1] if isinstance(node, ast.Assign) else None
    parts = target.elts if isinstance(target, ast.Tuple) else []
    within = [n for part in parts if isinstance(part, ast.Tuple) for n in ast.walk(part)]
    return [n.id for n in within if isinstance(n, ast.Name)]


def _gives_value_first(written: ast.expr | None) -> bool:
    """``value_and_grad(f)(x)``, which gives what f does, and derivatives."""
    match written:
        case ast.Call(func=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name == "value_and_grad"
    return False


def _of_graph(python: PythonFrame) -> set[str]:
    """The arguments of a function that are those of its graph: of the outermost; or, where a script
    calls a module there, of the module's `forward`. Names that both have could be either's.
    """
    functions = [line.function for line in python.origin.lines[:2]]
    arguments = [set(f.arguments if f else ()) for f in functions]
    if len(functions) == 2 and not _is_forward(functions[0]) and _is_forward(functions[1]):
        return arguments[python.level] - arguments[1 - python.level] if python.level < 2 else set()
    return set() if python.level else arguments[0]


def _is_forward(function: Function | None) -> bool:
    return function is not None and function.name.endswith(".forward")


def _assigns(statement: Statement) -> TypeGuard[Apply]:
    """Whether it computes values; those of a derivative are no variables."""
    if not isinstance(statement, Apply) or not statement.results:
        return False
    if statement.at is not None and statement.at.is_backward:
        return False
    return statement.derived_from is None or not statement.derived_from.backward


def _in_order(made: list[Apply], assignment: Lines) -> list[tuple[str, str, bool]]:
    """The targets with the values that the last op, or ops, made."""
    targets, written = assignment.targets, getattr(assignment.node, "value", None)
    if isinstance(written, _CONTAINERS) and not _is_one_each(written, made, targets):
        return [(t, made[-1].results[0].name.text, False) for t in targets if t]
    values = [r.name.text for r in made[-1].results]
    if len(targets) > 1 and len(values) == 1 and len(made) >= len(targets):
        values = [s.results[0].name.text for s in made[-len(targets) :]]
    return [(t, v, True) for t, v in zip(targets, values, strict=False) if t]


def _is_one_each(written: ast.expr, made: list[Apply], targets: tuple[str, ...]) -> bool:
    """Whether each target gets what one of the ops made: ``a, b = x + 1, x * 2``."""
    parts = written.elts if isinstance(written, ast.Tuple | ast.List) else []
    computed = [any(isinstance(n, _OPERATIONS) for n in ast.walk(part)) for part in parts]
    return all(computed) and len(made) == len(parts) == len(targets) > 1


def _passed(at: PythonLine, function: Function | None) -> list[tuple[str, str]]:
    """The arguments of a function that a line passes variables for, with these."""
    node = at.file.statement(at.line).node
    if node is None or function is None:
        return []
    name = function.name.rpartition(".")[2]
    calls = list(calls_in(node, name)) or list(calls_through(node, name))
    if len(calls) != 1:
        return []
    names = function.arguments[function.arguments[:1] == ("self",) :]
    pairs = [*zip(names, calls[0].args, strict=False)]
    pairs += [(k.arg, k.value) for k in calls[0].keywords if k.arg]
    return [(name, value.id) for name, value in pairs if isinstance(value, ast.Name)]
