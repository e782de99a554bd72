"""Python lines of ATen ops: stack traces that PyTorch kept, and the variables assigned there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

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
