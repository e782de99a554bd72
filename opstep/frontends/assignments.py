"""Variables that lines of Python assign: importers call values after them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """A Python statement: its lines, and the names that it assigns ("" for anything else); as
    `structure` with the tuples that they are in.

    `turn`: in a loop, how many operations one turn has at least; else 0. `operation`: the last one
    of what is assigned, as PyTorch calls it; "" where it has no name.
    """

    first: int
    last: int
    targets: tuple[str, ...]
    turn: int = 0
    structure: Any = ""
    operation: str = ""

    def name_at(self, place: Sequence[int]) -> str:
        """What gets the part at that place of the tuples that are assigned."""
        found = self.structure
        for k in place:
            found = found[k] if isinstance(found, tuple) and 0 <= k < len(found) else ""
        return found if isinstance(found, str) else ""


def assignment(file: str, line: int) -> Assignment | None:
    """The statement at a line; None where the source cannot be read."""
    return _statements(file).get(line)


@lru_cache(256)
def _statements(file: str) -> dict[int, Assignment]:
    """By line: the innermost simple statement that covers it."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, Assignment] = {}
    repeated: set[ast.stmt] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            repeated.update(node.body)
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        turn = _operations(node) if node in repeated else 0
        structure = _structure(node.targets[-1]) if isinstance(node, ast.Assign) else ""
        lines = node.lineno, node.end_lineno or node.lineno
        statement = Assignment(*lines, _targets(node), turn, structure, _operation(node))
        for line in range(statement.first, statement.last + 1):
            found[line] = statement
    return found


def _operations(node: ast.stmt) -> int:
    written = sum(isinstance(n, ast.BinOp | ast.AugAssign) for n in ast.walk(node))
    return max(written, 1)


def _operation(node: ast.stmt) -> str:
    match node:
        case ast.AugAssign(op=op) | ast.Assign(value=ast.BinOp(op=op)):
            name = type(op).__name__.lower()
            return {"mult": "mul", "matmult": "mm"}.get(name, name)
        case ast.Assign(value=ast.Call(func=function)):
            return _name(function)
    return ""


def _targets(node: ast.stmt) -> tuple[str, ...]:
    match node:
        case ast.Assign(targets=[*_, ast.Tuple(elts=elements)]):
            return tuple(_name(e) for e in elements)
        case ast.Assign(targets=[*_, target]):
            return (_name(target),)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return (_name(target),)
    return ()


def _structure(target: ast.expr) -> Any:
    if isinstance(target, ast.Tuple):
        return tuple(map(_structure, target.elts))
    return _name(target)


def _name(target: ast.expr) -> str:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name != "_":
            return name
    return ""
