"""What a Python source file says of its lines: functions, statements, loops, assignments."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from opstep.runtime.debugger.line_mapping import text_on_disk

_LIBRARIES = ("torch", "jax")
Loop = ast.For | ast.AsyncFor | ast.comprehension


class Function(NamedTuple):
    """`name` is qualified with the classes and functions around it; `owner` is those alone."""

    name: str
    owner: str
    arguments: tuple[str, ...]
    first: int
    last: int


class Lines(NamedTuple):
    """The lines of a statement; of one with a body those above it. `targets`: the names that it
    assigns, in order, "" for what is no name, or nobody's.
    """

    first: int
    last: int
    targets: tuple[str, ...]
    node: ast.stmt | None


class PythonFile:
    """A file as it was read. One that cannot be parsed has lines without functions."""

    def __init__(self, path: str, text: str):
        self.path = path
        self.lines = text.splitlines()
        self._functions: list[Function] = []
        self._around: dict[int, Function | None] = {}
        self._statements: dict[int, Lines] = {}
        self._loops: list[tuple[int, int, set[str]]] = []  # lines, names that it goes through
        self._turns: list[tuple[int, int]] = []  # the lines of all loops that are statements
        self._nodes: dict[Function, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.library: set[str] = set()  # names of functions and modules of libraries
        self.identifiers: set[str] = set()
        with suppress(SyntaxError, ValueError, RecursionError):
            parsed = ast.parse(text)
            self.identifiers = _names(parsed) - {"self"}
            self._read(parsed, "", "")

    def function(self, line: int) -> Function | None:
        """The innermost around a line."""
        if line not in self._around:
            around = [f for f in self._functions if f.first <= line <= f.last]
            self._around[line] = max(around, key=lambda f: f.first, default=None)
        return self._around[line]

    def node(self, function: Function) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        return self._nodes.get(function)

    def is_library(self, e: ast.expr) -> bool:
        """Whether it is a module of PyTorch's or JAX's: ``torch.nn.functional``, ``jnp``."""
        while isinstance(e, ast.Attribute):
            e = e.value
        return isinstance(e, ast.Name) and e.id in self.library

    def statement(self, line: int) -> Lines:
        """The one that a line belongs to."""
        return self._statements.get(line) or Lines(line, line, (), None)

    def calls_in_turn(self, line: int) -> bool:
        """Whether the statement of a line calls what a loop around it goes through."""
        (start, end, _, node), function = self.statement(line), self.function(line)
        if node is None:
            return False
        first = function.first if function else 0
        loops = (names for a, b, names in self._loops if first <= a <= end and start <= b)
        calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
        return bool(set().union(*loops) & set().union(*map(_names, calls)))

    def in_loop(self, line: int) -> bool:
        """Whether a line may be executed several times in one call of its function."""
        function = self.function(line)
        first = function.first if function else 0
        return any(first < a <= line <= b for a, b in self._turns)

    def _read(self, node: ast.AST, around: str, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._note_statement(child)
                self.library.update(_imported(child))
            if isinstance(child, ast.While | ast.For | ast.AsyncFor):
                self._turns.append((child.lineno, child.end_lineno or child.lineno))
            if isinstance(child, Loop):
                self._loops.append((*_span_of_loop(child), _names(child.target)))
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{around}{child.name}"
                arguments = (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs)
                end = child.end_lineno or child.lineno
                names = tuple(a.arg for a in arguments)
                function = Function(name, owner, names, child.lineno, end)
                self._functions.append(function)
                self._nodes[function] = child
                self._read(child, f"{name}.", owner)
            elif isinstance(child, ast.ClassDef):
                self._read(child, f"{around}{child.name}.", f"{around}{child.name}")
            else:
                self._read(child, around, owner)

    def _note_statement(self, node: ast.stmt) -> None:
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            last = max(node.lineno, body[0].lineno - 1)
        found = Lines(node.lineno, last, _targets(node), node)
        if any(line in self._statements for line in range(node.lineno, last + 1)):
            found = Lines(node.lineno, last, (), None)  # several share a line
        for line in range(node.lineno, last + 1):
            self._statements[line] = found


def _imported(node: ast.stmt) -> list[str]:
    """The names that an import gives to parts of PyTorch and JAX."""
    match node:
        case ast.Import(names=names):
            known = [a for a in names if a.name.partition(".")[0] in _LIBRARIES]
            return [a.asname or a.name.partition(".")[0] for a in known]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            known = names if module.partition(".")[0] in _LIBRARIES else []
            return [a.asname or a.name for a in known]
    return []


def _span_of_loop(node: Loop) -> tuple[int, int]:
    if isinstance(node, ast.comprehension):  # what is repeated stands before it
        return node.target.lineno, node.iter.end_lineno or node.iter.lineno
    return node.lineno, node.end_lineno or node.lineno


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _targets(node: ast.stmt) -> tuple[str, ...]:
    match node:
        case ast.Assign(targets=[*_, ast.Tuple(elts=elements)]):
            return tuple(e.id if isinstance(e, ast.Name) and e.id != "_" else "" for e in elements)
        case (
            ast.Assign(targets=[*_, ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.AugAssign(target=ast.Name(id=name))
        ):
            return (name,)
    return ()


def python_file(path: str) -> PythonFile | None:
    """A file as it is now; None where it cannot be read."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(256)
def _read(path: str, modified: int, size: int) -> PythonFile | None:
    text = text_on_disk(path)
    return None if text is None else PythonFile(path, text)
