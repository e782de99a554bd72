"""Python lines of ATen ops: stack traces that PyTorch kept, and the variables assigned there."""

from __future__ import annotations

import ast
import re
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import fx

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)')
_TORCH = str(Path(torch.__file__).parent) + "/"
# Of decorators: they stand between a call of a module and its `forward`.
_WRAPPER = re.compile(r"\w*wrap\w*|inner|__call__|_fn|decorate_context|forward_\w+|<lambda>")


class Frame(NamedTuple):
    file: str
    line: int
    function: str


def frames_of(node: fx.Node) -> tuple[Frame, ...]:
    """The chain of Python frames that led to an op, outermost first; PyTorch's own are left out."""
    return _parsed(node.meta.get("stack_trace") or "")


@lru_cache(1 << 14)
def _parsed(trace: str) -> tuple[Frame, ...]:
    found = [Frame(f, int(n), name) for f, n, name in _FRAME.findall(trace)]
    return tuple(
        f
        for f in found
        if not f.file.startswith((_TORCH, "<")) and not _WRAPPER.fullmatch(f.function)
    )


@lru_cache(1024)
def portable(file: str) -> str:
    """The path of an installed library's file from where it is installed: the same on every
    machine. Other paths stay.
    """
    for folder in _LIBRARIES:
        if file.startswith(folder):
            return file[len(folder) :]
    return file


_LIBRARIES = sorted(
    {f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib", "stdlib")}, key=len
)[::-1]


class Assignment(NamedTuple):
    """A Python statement: its lines, and the names that it assigns ("" for anything else)."""

    first: int
    last: int
    targets: tuple[str, ...]


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
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        statement = Assignment(node.lineno, node.end_lineno or node.lineno, _targets(node))
        for line in range(statement.first, statement.last + 1):
            found[line] = statement
    return found


def _targets(node: ast.stmt) -> tuple[str, ...]:
    match node:
        case ast.Assign(targets=[*_, ast.Tuple(elts=elements)]):
            return tuple(_name(e) for e in elements)
        case ast.Assign(targets=[*_, target]):
            return (_name(target),)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return (_name(target),)
    return ()


def _name(target: ast.expr) -> str:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name != "_":
            return name
    return ""
