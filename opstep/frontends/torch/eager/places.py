"""The place at which an op runs: its Python frames, its module, its node of autograd."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from opstep.frontends.scripts.script import executed
from opstep.frontends.torch.sources import Frame

Stack = tuple[tuple[types.CodeType, int], ...]  # code and instruction, the innermost frame first

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = tuple(sysconfig.get_paths()[k] + os.sep for k in ("purelib", "platlib"))
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) + os.sep
_DEBUGGER = f"{os.sep}debugpy{os.sep}"
# Of those that run other lines on a person's behalf: the line to blame is the one that they run.
_INNER = ("__torch_dispatch__", "__torch_function__")
_ENGINE = ("_engine_run_backward", "_make_grads")  # below them on the stack is who called backward
NO_NODE = -1


class Node(NamedTuple):
    """A node of autograd: its number in the thread that made it, and what it is called."""

    number: int = NO_NODE
    thread: int = 0
    name: str = ""

    @property
    def is_late(self) -> bool:
        """Whether it got its number after its op had run."""
        return self.name.rpartition("::")[2].startswith(("CopySlices", "AsStrided"))


_NOWHERE = Node()


class Place(NamedTuple):
    """The place of one op. `module`: the id of the innermost one that is called, 0 outside of all;
    `node`: the one that autograd is at; `updating`: an optimizer is at its step.
    """

    stack: Stack
    module: int = 0
    node: Node = Node()
    updating: bool = False

    @property
    def phase(self) -> str:
        if self.node.number != NO_NODE:
            return "backward"
        return "update" if self.updating and not _is_in_closure(self.stack) else "forward"


class Made(NamedTuple):
    """The op that made a node, `stack` and `module` of its call. `node`: the node that autograd was
    at when this one was made, of a double backward.
    """

    stack: Stack
    module: int
    node: Node
    op: str = ""


def makers(node: Node, made: Callable[[Node], Made | None]) -> tuple[Made, ...]:
    """The ops whose derivatives an op is part of: that of its node, of a double backward also that
    of the node at which that one was made.
    """
    found: list[Made] = []
    while node.number != NO_NODE and len(found) < 8 and (one := made(node)) is not None:
        found.append(one)
        node = one.node
    return tuple(found)


def _outer(depth: int) -> types.FrameType | None:
    """The frame that many above the caller's; None in autograd's own threads, which have few."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def stack_now(depth: int = 1) -> Stack:
    """That of this thread, without the `depth` innermost frames."""
    found = []
    frame = _outer(depth)
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


_stacks: dict[tuple[int, ...], Stack] = {}  # each once


def stack_kept(depth: int = 1) -> Stack:
    """As `stack_now`, of what the script has called: the same object each time it is the same."""
    key: list[int] = []
    frame = _outer(depth)
    while frame is not None and (code := frame.f_code) is not executed.__code__:
        key.append(id(code))
        key.append(frame.f_lasti)
        frame = frame.f_back
    found = _stacks.get(at := tuple(key))
    if found is None:
        found = _stacks[at] = stack_now(depth + 1)
    return found


def line_of(code: types.CodeType, instruction: int) -> int:
    """The line of an instruction, that of the call itself in a statement of several lines."""
    line = next(islice(code.co_positions(), instruction // 2, None), (None,))[0]
    return line or code.co_firstlineno


def is_own(file: str) -> bool:
    """Whether a file is a person's, or of a library that is neither PyTorch, Python, its
    debugger nor opstep.
    """
    is_python = file.startswith(_STANDARD) and not file.startswith(_PACKAGES)
    is_tool = file.startswith(("<", _TORCH, _OURS)) or _DEBUGGER in file
    return not (is_python or is_tool)


def is_library(file: str) -> bool:
    """Whether a file was installed, rather than written beside the script."""
    return file.startswith(_PACKAGES)


def is_engine(code: types.CodeType) -> bool:
    """Whether a function of PyTorch's runs a backward, whose ops are below it on the stack."""
    return code.co_name in _ENGINE and code.co_filename.startswith(_TORCH)


def frames(stack: Stack, inside_engine: bool = False) -> list[Frame]:
    """The frames of a person's own, innermost first. `inside_engine`: only those that the backward
    itself has called.
    """
    found = []
    for code, instruction in stack:
        if code is executed.__code__:
            break
        if inside_engine and is_engine(code):
            break
        if is_own(code.co_filename) and code.co_name not in _INNER:
            found.append(Frame(code.co_filename, line_of(code, instruction), code.co_qualname))
    return found


closures: set[types.CodeType] = set()  # that optimizers were given, which compute losses


def _is_in_closure(stack: Stack) -> bool:
    return any(code in closures for code, _ in stack)


def calls(stack: Stack, name: str) -> bool:
    """Whether a function of PyTorch's or ours with this name is on the stack."""
    return any(c.co_name == name and c.co_filename.startswith((_TORCH, _OURS)) for c, _ in stack)


def current_node() -> Node:
    """The node that autograd is at in this thread; its own thread is not known in Python."""
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return _NOWHERE
    return Node(node._sequence_nr(), 0, node.name())


def forward_frames(stack: Stack, made: Sequence[Made]) -> list[Frame]:
    """The frames of a person's for an op of a backward: those that the backward has called (of a
    hook, a custom `Function`, a checkpoint), else those of the op whose derivative it is; of a
    double backward, of the op whose derivative that is.
    """
    if own := frames(stack, inside_engine=True):
        return own
    for one in made:
        if own := frames(one.stack, inside_engine=one.node.number != NO_NODE):
            return own
    return []
