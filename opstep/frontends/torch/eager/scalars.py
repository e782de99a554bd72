"""Names of the numbers that a script reads of its tensors: that of the variable that is read, else
that of the one which the line assigns.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

import torch

from opstep.frontends.assignments import assignment
from opstep.frontends.torch.eager.places import is_library

_READS = ("item", "tolist")
_TAKES = ("float", "int", "round", "print", "str", "repr", "format")
_SAME = ("detach", "cpu", "float", "double", "clone", "squeeze")  # as what they are called on


def scalar_name(frame: types.FrameType | None, t: torch.Tensor) -> str:
    """Of what the frame's instruction reads; "" where its line does not say, or is a library's."""
    if frame is None or is_library(frame.f_code.co_filename):
        return ""
    code = frame.f_code
    line, candidates = _read_at(code, frame.f_lasti)
    if len(candidates) > 1:
        candidates = [c for c in candidates if _is(c, frame, t)]
    if len(candidates) != 1:
        return ""
    if name := _name(candidates[0]):
        return name
    found = assignment(code.co_filename, line)
    return found.targets[0] if found and len(found.targets) == 1 else ""


@lru_cache(1024)
def _read_at(code: types.CodeType, instruction: int) -> tuple[int, list[ast.expr]]:
    """Its line, and the expressions whose numbers it may read."""
    place = next(islice(code.co_positions(), instruction // 2, None), None)
    node = _nodes(code.co_filename).get(place) if place else None
    return (place and place[0]) or 0, list(_read_by(node)) if node is not None else []


def _read_by(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose numbers a call or a text may read."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[]) if attr in _READS:
            yield value
        case ast.Call(func=ast.Name(id=name), args=args) if name in _TAKES:
            yield from (a for a in args if not isinstance(a, ast.Constant | ast.JoinedStr))
        case ast.JoinedStr(values=values):
            yield from (v.value for v in values if isinstance(v, ast.FormattedValue))
        case ast.FormattedValue(value=value):
            yield value


def _is(expression: ast.expr, frame: types.FrameType, t: torch.Tensor) -> bool:
    """Whether a variable holds the tensor."""
    if not isinstance(expression, ast.Name):
        return False
    found = frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    return type(found) is torch.Tensor and found.data_ptr() == t.data_ptr()


def _name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _SAME:
            return _name(value)
        case ast.Attribute(value=value, attr="data"):
            return _name(value)
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


@lru_cache(64)
def _nodes(file: str) -> dict[tuple[int | None, ...], ast.AST]:
    """Calls and texts by their places: first line, last line, first column, last column."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset): n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call | ast.JoinedStr | ast.FormattedValue)
    }
