"""The variables of one call of a Python function.

A variable has a value of the graph where that is proven: an op of a line that reads the variable
has the value as its operand, or an op gave the value that a line assigned. From there it reaches as
far as nothing may have assigned the variable again, or changed tensors in place.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from opstep.runtime.debugger.python.files import Function, Lines, PythonFile
from opstep.runtime.debugger.python.matching import NO_MATCH, FunctionText, Match, matched, written
from opstep.runtime.debugger.python.reach import METHODS, Reach
from opstep.runtime.debugger.python.returned import Execution, NoCall, Returned, is_call_of
from opstep.runtime.ir.graph import Apply, Graph, Name, Statement

if TYPE_CHECKING:
    from opstep.runtime.debugger.python.lines import PythonLine, PythonLines

_NUMBER = re.compile(r"_\d+$")
Around = tuple[int, ...]  # the executions of the lines that have called a function


class Known(NamedTuple):
    """A value that a variable has before (`after`: after) the k-th of a function's executions."""

    k: int
    after: bool
    value: str


class FunctionCall:
    """One call of a function in a graph. Several that nothing tells apart are one: then values
    reach nowhere.
    """

    def __init__(
        self, lines: PythonLines, returned: Returned, graph: Graph, around: Around,
        function: Function | None, calls: Callable[[Graph, Around, Function | None], FunctionCall],
    ):  # fmt: skip
        self._lines, self._returned, self._calls = lines, returned, calls
        self._graph, self._around, self.function = graph, around, function
        self.executions = self._executions()
        self.runs = list(self.executions)
        self._matches: dict[int, Match] = {}
        self._known: dict[str, list[Known]] | None = None
        first = next(iter(self.executions.values()), None)
        self.file = first.line.file if first else PythonFile("", "")
        changed = lines.changed_in_place(self.file)
        self.reach = Reach(self.file, function, changed) if function else None
        self._last = Lines(0, 0, (), None)
        self.is_single = first is not None and self._is_single(first)

    @property
    def names(self) -> list[str]:
        found = self.reach.names if self.reach else {}
        return [n for n in found if n not in ("self", "_")]

    def _is_single(self, first: Execution) -> bool:
        """Whether all that is there is of one call."""
        statements = [self._statement(k) for k in range(len(self.runs))]
        if self._around and any(s.node and _has_inner(s.node) for s in statements):
            return False  # it may be a call of a lambda there
        if any(self.reach and not self.reach.follows(a, b) for a, b in pairwise(statements)):
            return False
        if self._around:
            origins = self._lines.of_graph(self._graph)
            made = (s for line in self.executions.values() for s in line.made)
            modules = {origins[id(s)].module for s in made}
            of_script = first.level == 1 and is_forward(self.function)
            lines = first.origin.lines[: first.level]
            return _called_once(lines, self.function, modules, of_script)
        callers = self._lines.callers(self._graph)
        return all(_called_once(c.lines, self.function, {c.module}, False) for c in callers)

    def may_be_there(self, name: str, at: Lines) -> bool:
        return self.reach is not None and self.reach.may_be_there(name, at)

    def _executions(self) -> dict[int, Execution]:
        """Of the function's lines that computed something, by their numbers."""
        level, origins = len(self._around), self._lines.of_graph(self._graph)
        found: dict[int, Execution] = {}
        for statement in self._graph.body:
            one = origins.get(id(statement))
            if one is None or one.runs[:level] != self._around or len(one.lines) <= level:
                continue
            if one.lines[level].function == self.function and _assigns(statement):
                before = found.get(one.runs[level])
                made = [*before.made, statement] if before else [statement]
                found[one.runs[level]] = Execution(made, one, level)
        return found

    # --- what is known ---

    def at(
        self, run: int, given: Mapping[str, str | None], begun: bool = False
    ) -> dict[str, str | None]:
        """The variables in an execution. `given`: the arguments; `begun`: it has computed
        something.
        """
        if run not in self.executions:
            return {}
        k = self.runs.index(run)
        return {name: self._value(name, k, given.get(name), begun) for name in self.names}

    def at_end(self, statement: Lines) -> dict[str, str | None]:
        """The variables at a statement behind all that computed something."""
        self._last = statement
        return {name: self._value(name, len(self.runs), None, False) for name in self.names}

    def match(self, k: int) -> Match:
        if k == len(self.runs):
            return NO_MATCH
        if k not in self._matches:
            line = self.executions[self.runs[k]]
            found = self.matched(line, written(line.statement))
            self._matches[k] = found._replace(names={**self._handed(line), **found.names})
        return self._matches[k]

    def _handed(self, line: Execution) -> dict[str, str]:
        """The variables that a line hands to a function, of which it is known what that got."""
        last, level = line.made[-1], line.level + 1
        if level < len(line.origin.lines):
            at, inner = line.origin.lines[level], self._graph
            call = self._calls(inner, line.origin.runs[:level], at.function)
            values = call.entered()
        else:
            inner = self._lines.graph(last.callee.text)
            origin = inner and next(iter(self._lines.of_graph(inner).values()), None)
            graphs = [s for s in line.made if self._lines.graph(s.callee.text)]
            if inner is None or not origin or len(graphs) > 1:
                return {}
            at = origin.lines[0]
            assert isinstance(last, Apply)
            operands = {
                b.name.text: o.text
                for b, o in zip(inner.inputs, last.operands, strict=True) if isinstance(o, Name)
            }  # fmt: skip
            entered = self._calls(inner, (), at.function).entered()
            values = {a: operands[v] for a, v in entered.items() if v in operands}
        pairs = passed(line.line, at.function, last) if at.function else []
        return {name: values[a] for a, name in pairs if a in values}

    def entered(self) -> dict[str, str]:
        """The arguments of which a line reads the value that they were given."""
        found: dict[str, str] = {}
        for name, (first, *_) in self._all_known().items() if self.is_single else ():
            is_argument = self.reach and name in self.reach.arguments
            if is_argument and not first.after and self._is_kept(name, -1, first.k):
                found[name] = first.value
        return found

    def matched(self, line: Execution, expression: ast.expr | None) -> Match:
        if line.statement.node is None or self.reach is None:
            return NO_MATCH
        origins = self._lines.of_graph(self._graph)
        own = {
            id(s) for s in line.made
            if len(origins[id(s)].lines) == line.level + 1
            and self._lines.graph(s.callee.text) is None
        }  # fmt: skip
        text = FunctionText(self.file, self.reach.names, self.reach.changes_any)
        return matched(expression, line.made, own, text)

    def _value(self, name: str, k: int, given: str | None, begun: bool) -> str | None:
        assert self.reach is not None
        if name in self.reach.open:
            return None
        read = self.match(k).names.get(name)
        if read is not None and not (begun and self.reach.changes(self._statement(k))):
            return read
        if not self.is_single:
            return None
        known = self._all_known().get(name, [])
        first = [] if given is None else [Known(-1, True, given)]
        last = next((one for one in reversed([*first, *known]) if one.k < k), None)
        if last is None:
            return None
        at, changed = self._statement(last.k), False
        if not last.after:
            if self.reach.assigns(name, at):
                return None
            changed = self.reach.changes(at)
        if not changed and self._is_kept(name, last.k, k):
            return last.value
        return last.value if self._is_read_later(name, last, k, known) else None

    def _is_read_later(self, name: str, last: Known, k: int, known: list[Known]) -> bool:
        """Whether a later line reads the value by that name, which nothing assigns in between: then
        it was not changed in place either.
        """
        assert self.reach is not None
        after = next((one for one in known if one.k > k), None)
        if after is None or after.after or after.value != last.value:
            return False
        if self.reach.assigns(name, self._statement(k)):
            return False
        return self._is_kept(name, last.k, k, False) and self._is_kept(name, k, after.k, False)

    def _is_kept(self, name: str, start: int, end: int, in_place: bool = True) -> bool:
        """From after the execution `start`, -1: the call, until before another begins."""
        assert self.reach is not None
        statements = [self._statement(k) for k in range(start, end + 1)]
        for one, other in pairwise(statements):
            if not self.reach.is_kept(name, one, other, in_place):
                return False
        return not any(
            self.reach.assigns(name, s) or (in_place and self.reach.changes(s))
            for s in statements[1:-1]
        )

    def _statement(self, k: int) -> Lines:
        if k < 0:
            assert self.function is not None
            first = self.function.first
            return Lines(first, first, (), None)
        if k == len(self.runs):
            return self._last
        return self.executions[self.runs[k]].statement

    def _all_known(self) -> dict[str, list[Known]]:
        if self._known is None:
            self._known = {}
            for k in range(len(self.runs)):
                for name, value in self.match(k).names.items():
                    self._known.setdefault(name, []).append(Known(k, False, value))
                for name, value in self._assigned(k):
                    self._known.setdefault(name, []).append(Known(k, True, value))
        return self._known

    # --- what is assigned ---

    def _assigned(self, k: int) -> list[tuple[str, str]]:
        """The names that an execution assigned, with their values."""
        line = self.executions[self.runs[k]]
        match line.statement.node:
            case ast.Assign(targets=targets, value=value):
                found = self.value(line, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets, found = [target], self.value(line, value)
            case _:
                return []
        pairs: list[tuple[ast.expr, object]] = []
        for target in targets:
            if isinstance(target, ast.Tuple):
                parts = found if isinstance(found, list) else []
                if len(parts) == len(target.elts):
                    pairs += zip(target.elts, parts, strict=True)
            else:
                pairs.append((target, found))
        known = [(t.id, v) for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, str)]
        return known or self._of_layer(line, targets)

    def _of_layer(self, line: Execution, targets: Sequence[ast.expr]) -> list[tuple[str, str]]:
        """The results of a recurrent layer: the importer calls its results as they are unpacked."""
        layer = self._lines.graph(line.made[-1].callee.text)
        kinds = layer.comments.above if layer is not None and len(line.made) == 1 else ()
        if not any(kind.startswith("torch.nn.modules.rnn.") for kind in kinds):
            return []
        results = {_NUMBER.sub("", r.name.text): r.name.text for r in line.made[0].results}
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        return [(n, results[n]) for n in names if n in results and names.count(n) == 1]

    def value(self, line: Execution, expression: ast.expr) -> str | list[str | None] | None:
        """The value that an expression of a line gave; of a tuple each."""
        found = self._returned.of_call(self._graph, line, expression)
        if not isinstance(found, NoCall):
            return found
        if isinstance(expression, ast.Tuple | ast.List):
            return [self.matched(line, e).value for e in expression.elts]
        if _is_split(expression) and [s.callee.text for s in line.made] == ["split"]:
            return [r.name.text for r in line.made[0].results]
        return self.matched(line, expression).value


def _is_split(e: ast.expr) -> bool:
    match e:
        case ast.Call(func=ast.Attribute(attr="split" | "chunk" | "tensor_split")):
            return True
    return False


def _called_once(
    lines: Sequence[PythonLine], function: Function | None, modules: Collection[str],
    of_script: bool,
) -> bool:  # fmt: skip
    """Whether the last of these lines, which call one another, has called a function once.
    `modules`: of what the function computed; `of_script`: it is the `forward` of the module that a
    script calls, of which one pass is there.
    """
    outer = lines[-1]
    node = outer.file.statement(outer.line).node
    if node is None or function is None:
        return False
    if not of_script:
        turns = [line for line in lines if line.file.in_loop(line.line)]
        if any(not line.file.calls_in_turn(line.line) for line in turns):
            return False
        if _has_inner(node):
            return False
    name = function.name.rpartition(".")[2]
    calls = [n for n in _header(node) if isinstance(n, ast.Call)]
    named = [c for c in calls if _name_of(c) == name]
    if named:
        return len(named) == 1 and not any(_mentions(c.args, name) for c in calls)
    texts = [ast.dump(c.func) for c in calls if not _is_of_library(c, outer.file)]
    if len(texts) == 1 or of_script:  # a loss that the script calls has a forward of its own
        return len(texts) == len(set(texts))
    own = [c for c in calls if all(_name_of(c) in m.split(".") for m in modules)]
    return len(own) == 1 and texts.count(ast.dump(own[0].func)) == 1


def _is_of_library(call: ast.Call, file: PythonFile) -> bool:
    name = _name_of(call)
    is_method = isinstance(call.func, ast.Attribute) and (name in METHODS or name == "backward")
    return is_method or file.is_library(call.func) or hasattr(builtins, name)


def _has_inner(node: ast.stmt) -> bool:
    """Whether a statement has expressions with frames of their own."""
    return any(isinstance(n, ast.comprehension | ast.Lambda) for n in _header(node))


def _header(node: ast.stmt) -> list[ast.AST]:
    """The parts of a statement, without those of statements within it."""
    found, left = [], [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]
    while left:
        one = left.pop()
        found.append(one)
        left += ast.iter_child_nodes(one)
    return found


def _is_unbound(call: ast.Call, owner: str) -> bool:
    """Whether a method may be called as a function of its class: ``Net.forward(self, x)``."""
    match call:
        case ast.Call(args=[ast.Name(id="self"), *_]):
            return True
    match call.func:
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in (owner.rpartition(".")[2], "__class__", "cls")
        case ast.Attribute(value=ast.Call(func=ast.Name(id=name))):
            return name == "type"
    return False


def _mentions(args: list[ast.expr], name: str) -> bool:
    """Whether a function is handed over, to be called by another."""
    return any(isinstance(a, ast.Name) and a.id == name for a in args)


def _name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def is_forward(function: Function | None) -> bool:
    return function is not None and function.name.endswith(".forward")


def _assigns(statement: Statement) -> TypeGuard[Apply]:
    """Whether it computes values; those of a derivative are no variables."""
    if not isinstance(statement, Apply) or not statement.results:
        return False
    if statement.at is not None and statement.at.is_backward:
        return False
    return statement.derived_from is None or not statement.derived_from.backward


def passed(at: PythonLine, function: Function, last: Apply) -> list[tuple[str, str]]:
    """The arguments of a function that a line passes variables for, with these."""
    statement, node = at.file.statement(at.line), at.file.node(function)
    if statement.node is None or node is None or node.decorator_list:
        return []
    name, nodes = function.name.rpartition(".")[2], _header(statement.node)
    found = [n for n in nodes if isinstance(n, ast.Call)]
    calls = [c for c in found if is_call_of(c, name, last, at.file)]
    if len(calls) != 1 or any(isinstance(a, ast.Starred) for a in calls[0].args):
        return []
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if function.name == f"{function.owner}.{name}":  # a method, whose first argument is its object
        if _is_unbound(calls[0], function.owner):
            return []
        names = names[1:]
    pairs = [*zip(names, calls[0].args, strict=False)]
    pairs += [(k.arg, k.value) for k in calls[0].keywords if k.arg]
    return [(name, value.id) for name, value in pairs if isinstance(value, ast.Name)]
