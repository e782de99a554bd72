"""Lines and functions of Python files, read from their text."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """`name`: ``Net.forward``. `line`: of the first statement. `begin`, `end`: its lines."""

    name: str
    line: int
    begin: int
    end: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class PythonFile:
    """`alone`: its classes that inherit from no other."""

    lines: list[str]
    functions: tuple[Function, ...]
    alone: frozenset[str] = frozenset()

    def around(self, line: int) -> Function | None:
        """The innermost function that a line is in."""
        found = [f for f in self.functions if f.begin <= line <= f.end]
        return max(found, key=lambda f: f.begin, default=None)


@lru_cache(maxsize=64)
def python_file(path: str) -> PythonFile | None:
    """None where it cannot be read. A file that is no Python has lines alone."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    try:
        tree = ast.parse(text)
        functions = tuple(_functions(tree))
    except (SyntaxError, ValueError, RecursionError):
        return PythonFile(text.splitlines(), ())
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    alone = frozenset(c.name for c in classes if not c.bases)
    return PythonFile(text.splitlines(), functions, alone)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        inner = prefix
        if isinstance(node, _Function):
            yield _function(node, prefix)
            inner = f"{prefix}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inner = f"{prefix}{node.name}."
        yield from _functions(node, inner)


def _function(node: _Function, prefix: str) -> Function:
    body = node.body
    is_documented = len(body) > 1 and ast.get_docstring(node, clean=False) is not None
    a = node.args
    every = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
    names = tuple(one.arg for one in every if one is not None)
    end = node.end_lineno or node.lineno
    first = body[1 if is_documented else 0]
    decorators = [d.lineno for d in getattr(first, "decorator_list", [])]
    line = min([first.lineno, *decorators])
    return Function(f"{prefix}{node.name}", line, node.lineno, end, names)
