"""Where nodes come from: lines of PyTorch's Python and names of modules, where the exporter left
them.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from opstep.frontends.onnx.restoring import AT, metadata_of, origin_of
from opstep.runtime.ir.graph import Provenance, SourceLine

if TYPE_CHECKING:
    from onnx import NodeProto

STACK, SCOPES = "pkg.torch.onnx.stack_trace", "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
FX = "pkg.torch.onnx.fx_node"
_FX = re.compile(r"%(\w+) .*?target=torch\.ops\.\w+\.(\w+)")
_NUMBERED = re.compile(r"val_\d+")  # a name that says nothing
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ')
_LIBRARY = re.compile(r"site-packages/(torch|transformers)/|/torch/nn/modules/")
_PRINTABLE = re.compile(r"[^\x20-\x7e]|[\"\\]")


class Origins:
    """Reads them, each text once."""

    def of(self, node: NodeProto) -> Provenance | None:
        if not node.metadata_props:
            return None
        found = metadata_of(node)
        if AT in found:
            return origin_of(found[AT])
        return _origin(found.get(STACK, ""), found.get(SCOPES, ""))


@cache
def lines_of(stack: str) -> tuple[tuple[str, int], ...]:
    """Files and lines of a stack trace, innermost first, without those of libraries."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(stack)]
    own = [f for f in frames if not _LIBRARY.search(f[0])] or frames[-1:]
    return tuple((file, line) for file, line in reversed(own) if line > 0)


@cache
def _origin(stack: str, scopes: str) -> Provenance | None:
    lines = tuple(SourceLine(_PRINTABLE.sub("_", f), line) for f, line in lines_of(stack))
    return Provenance(lines, _module(scopes)) if lines else None


def fx_of(node: NodeProto) -> tuple[str, str]:
    """The name that PyTorch's graph has for the result of the op that a node is a part of, and the
    op; "" where that is not known.
    """
    found = _FX.match(metadata_of(node).get(FX, ""))
    return (found[1], found[2]) if found else ("", "")


def names_of(node: NodeProto) -> dict[str, str]:
    """Names for results that are only numbered: of what they are a part, and by which operator."""
    numbered = [o for o in node.output if _NUMBERED.fullmatch(o)]
    if not numbered:
        return {}
    name = "_".join(filter(None, (fx_of(node)[0], node.op_type.lower())))
    return dict.fromkeys(numbered, name)


def _module(scopes: str) -> str:
    """The innermost module: of ``['', 'encoder', 'encoder.0', 'linear']`` it is ``encoder.0``."""
    names = module_path(scopes)
    return _PRINTABLE.sub("_", names[-1]) if names else ""


@cache
def module_path(scopes: str) -> tuple[str, ...]:
    """The modules around a node, outermost first. The last of the exporter's names is the op's."""
    return tuple(n for n in _names(scopes)[:-1] if n)


def classes_of(classes: str) -> tuple[str, ...]:
    """Their classes, from the model's own on."""
    return _names(classes)[:-1]


@cache
def _names(text: str) -> tuple[str, ...]:
    try:
        names = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return ()
    return tuple(names)
