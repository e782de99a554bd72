"""Calls of `nn.Module` in a flat graph: a tree of who called whom, found from what PyTorch keeps
with each op (its module stack and its Python frames).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from torch import fx

from opstep.frontends.torch.sources import Frame, frames_of
from opstep.runtime.debugger.python.files import python_file

_ROOT = re.compile(r"^[LG]\['\w+'\]\.?")  # what holds the model where Dynamo met it
CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
FEW = 2  # ops: a module of no more is part of its caller's graph


@dataclass(eq=False)
class Call:
    """A call of a module: the ops and calls in it, in order. `path` is the module's name in the
    model (``h.3.attn``), `kind` its class (``…modeling_gpt2.GPT2Attention``), `depth` how many
    modules are around it.
    """

    path: str
    kind: str
    depth: int
    items: list[fx.Node | Call] = field(default_factory=list)
    parent: Call | None = field(default=None, repr=False)

    def nodes(self) -> Iterator[fx.Node]:
        """All ops, those of calls inside as well."""
        for item in self.items:
            if isinstance(item, Call):
                yield from item.nodes()
            else:
                yield item

    def chain(self) -> list[Call]:
        """The calls around it and itself, outermost first."""
        return [*self.parent.chain(), self] if self.parent else [self]

    @property
    def class_name(self) -> str:
        return self.kind.rpartition(".")[2]

    @property
    def inlined(self) -> bool:
        """Whether it is too small, or too common, for a graph of its own."""
        if self.class_name in CONTAINERS and self.kind.startswith("torch.nn."):
            return True
        return sum(1 for _ in zip(self.nodes(), range(FEW + 1), strict=False)) <= FEW


def call_tree(nodes: Iterable[fx.Node], by_line: bool = False) -> Call:
    """The calls that ops belong to. An op without a module stack goes where the last one went.
    `by_line`: a module that is called from another line is called again.
    """
    root = Call("", "", 0)
    current = root
    for node in nodes:
        stack = _stack(node)
        if stack is not None:
            if stack and not root.kind:
                root.kind = stack[0][1]
            current = _enter(current, stack[1:], node if by_line else None)
        current.items.append(node)
    return root


def _stack(node: fx.Node) -> list[tuple[str, str]] | None:
    """(path, class) of the modules around an op, outermost first."""
    found = node.meta.get("nn_module_stack")
    if not found:
        return None
    return [(_path(name), _kind(kind)) for name, kind in found.values()]


def set_root(nodes: Iterable[fx.Node]) -> None:
    """In a graph that Dynamo made: what is compiled is around all modules, which it does not say,
    or says of a model that a function calls.
    """
    for node in nodes:
        if node.meta.get("stack_trace"):
            stack = node.meta.get("nn_module_stack") or {}
            inner = {k: v for k, v in stack.items() if _path(v[0])}
            node.meta["nn_module_stack"] = {"": ("", ""), **inner}


def _path(name: str) -> str:
    """``L['self'].h.0`` and ``h.0`` are the same; ``@1`` marks a second call."""
    return _ROOT.sub("", name)


def _kind(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _enter(current: Call, stack: Sequence[tuple[str, str]], node: fx.Node | None) -> Call:
    chain = current.chain()
    depth = 0
    while depth < min(len(chain) - 1, len(stack)) and chain[depth + 1].path == stack[depth][0]:
        depth += 1
    if node is not None and depth:
        depth = _called_alike(node, next(current.nodes()), chain[: depth + 1])
    call = chain[depth]
    for path, kind in stack[depth:]:
        inner = Call(path, kind, call.depth + 1, parent=call)
        call.items.append(inner)
        call = inner
    return call


def _called_alike(node: fx.Node, other: fx.Node, chain: Sequence[Call]) -> int:
    """How many of the calls around an op, below the outermost, were called from the lines that they
    were called from for another.
    """
    if frames_of(node) == frames_of(other):
        return len(chain) - 1
    ours, theirs = split_frames(node, chain), split_frames(other, chain)
    for depth in range(len(chain) - 1):
        if not ours[depth + 1] or not theirs[depth + 1]:  # where it begins is not known
            break
        if ours[depth] != theirs[depth]:
            return depth
    return len(chain) - 1


def split_frames(node: fx.Node, calls: Sequence[Call]) -> list[tuple[Frame, ...]]:
    """For each of the calls around an op, outermost first: the frames from its `forward` up to the
    next one's. The frames of modules whose `forward` cannot be found stay with their caller; what
    is around all modules, where that is none itself, has all frames up to theirs.
    """
    frames = frames_of(node)
    starts: list[int | None] = []
    position = 0
    for call in calls:
        found = _forward(frames, position, call.kind) if call.kind else 0
        starts.append(found)
        position = found + 1 if found is not None and call.kind else position
    split, end = [], len(frames)
    for start in reversed(starts):
        split.append(() if start is None else frames[start:end])
        end = end if start is None else start
    return split[::-1]


def _forward(frames: Sequence[Frame], position: int, kind: str) -> int | None:
    """The frame of a class's `forward`."""
    code = _code_of(kind)
    rest = range(position, len(frames))
    if code is None:  # of a class that is not found: by its name
        found = [k for k in rest if frames[k].function == "forward"]
        own = [k for k in found if _owner(frames[k]) == kind.rpartition(".")[2]]
        return next(iter(own or found), None)
    file, first, last = code
    return next(
        (k for k in rest if frames[k].file == file and first <= frames[k].line <= last), None
    )


def _owner(frame: Frame) -> str:
    """The class that a frame's function is a method of."""
    file = python_file(frame.file)
    function = file.function(frame.line) if file else None
    return function.owner.rpartition(".")[2] if function else ""


def forward_of(kind: str) -> Any:
    """The `forward` of a class; None where the class is not imported here."""
    module, _, name = kind.rpartition(".")
    while module and module not in sys.modules:
        module, _, outer = module.rpartition(".")
        name = f"{outer}.{name}"
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    forward = getattr(found, "forward", None)
    return None if forward is None else inspect.unwrap(forward)


def _code_of(kind: str) -> tuple[str, int, int] | None:
    """File, first and last line of a class's `forward`, as the class is now."""
    code = getattr(forward_of(kind), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, _last_line(code))


@lru_cache(1024)
def _last_line(code: CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
