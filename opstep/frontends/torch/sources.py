"""Python lines of ATen ops: stack traces that PyTorch kept, and the variables assigned there."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx

from opstep.api.origins import portable
from opstep.runtime.ir.graph import Provenance, SourceLine

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)')
_CONTAINERS = torch.nn.modules.container.__file__
_MODULES = str(Path(_CONTAINERS).parent)
_TORCH = str(Path(torch.__file__).parent) + "/"
# Of decorators: they stand between a call of a module and its `forward`.
_WRAPPER = re.compile(r"\w*wrap\w*|inner|__call__|_fn|decorate_context|forward_\w+|<lambda>")
# Frames of a line's own: a loop that is an expression.
_INLINE = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}


def is_pytorch(file: str) -> bool:
    """Whether a Python file is one of PyTorch's own."""
    return file.startswith(_TORCH)


class Frame(NamedTuple):
    file: str
    line: int
    function: str


def frames_of(node: fx.Node) -> tuple[Frame, ...]:
    """The chain of Python frames that led to an op, outermost first; PyTorch's own are left out."""
    return _parsed(node.meta.get("stack_trace") or "")


def last_line(frames: Sequence[Frame]) -> tuple[str, int]:
    """File and line of the innermost frame; 0 where there is none."""
    return frames[-1][:2] if frames else ("", 0)


@lru_cache(1 << 14)
def library_line(trace: str) -> tuple[Frame, ...]:
    """The line of PyTorch's modules for what no other line is known of: where a container calls
    another module, or what such a module does, an `nn.LSTM`.
    """
    found = [Frame(f, int(n), name) for f, n, name in _FRAME.findall(trace)]
    found = [f for f in found if f.file.startswith(_MODULES)]
    return tuple([f for f in found if f.file == _CONTAINERS][-1:] or found[-1:])


@lru_cache(1 << 14)
def _parsed(trace: str) -> tuple[Frame, ...]:
    found = [Frame(f, int(n), name) for f, n, name in _FRAME.findall(trace)]
    found = [f for f in found if not f.file.startswith((_TORCH, "<"))]
    found = [
        f for k, f in enumerate(found)
        if f.function not in _INLINE or not k or found[k - 1][:2] != f[:2]
    ]  # fmt: skip
    return tuple(f for k, f in enumerate(found, 1 - len(found)) if not k or not _is_wrapper(f))


def _is_wrapper(frame: Frame) -> bool:
    """Whether it only calls the next one."""
    return bool(_WRAPPER.fullmatch(frame.function))


class Assignment(NamedTuple):
    """A Python statement: its lines, and the names that it assigns ("" for anything else); as
    `structure` with the tuples that they are in.

    `turn`: in a loop, how many operations one turn has at least; else 0.
    """

    first: int
    last: int
    targets: tuple[str, ...]
    turn: int = 0
    structure: Any = ""

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
        statement = Assignment(*lines, _targets(node), turn, structure)
        for line in range(statement.first, statement.last + 1):
            found[line] = statement
    return found


def _operations(node: ast.stmt) -> int:
    written = sum(isinstance(n, ast.BinOp | ast.AugAssign) for n in ast.walk(node))
    return max(written, 1)


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


def origin(frames: Sequence[Frame], module: str) -> Provenance | None:
    """Where a statement comes from; `frames` have the outermost first."""
    if not frames:
        return None
    return Provenance(tuple(SourceLine(portable(f.file), f.line) for f in frames[::-1]), module)


def label(path: str) -> str:
    """What a module is called where its whole name would be too long: ``layer.0`` is one; "" for a
    number alone.
    """
    parts = path.split(".")
    if len(parts) == 1 and parts[0].isdigit():
        return ""
    return "_".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


def relative(path: str, outer: str) -> str:
    """A module's name as seen from another around it."""
    return (
        path[len(outer) + 1 :]
        if outer and path.startswith(outer + ".")
        else path
        if path != outer
        else ""
    )
