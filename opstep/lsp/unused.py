"""Values that nothing uses, and params that no graph reads: no errors, but worth a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opstep.lsp.item import Item
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Name, Span, Update, names_read

if TYPE_CHECKING:
    from opstep.lsp.file import File

UNUSED = "unused"


def unused_in_graph(item: Item, used: set[str]) -> Iterator[Diagnostic]:
    """Results and inputs that no statement uses; `used` are the names that one does. A name that
    begins with _ is meant to be so.
    """
    node = item.node
    if not isinstance(node, Graph) or item.problems:
        return
    ops = item.file.environment.applier.ops
    for s in node.body:
        if not isinstance(s, Apply):
            continue
        names = [b.name for b in s.results if b.name.text not in used]
        for name in names:
            if not name.text.startswith("_"):
                op = ops.get(s.callee.text)
                dead = len(names) == len(s.results) and op is not None and not op.traits.host
                yield _message(item, dead, f"{name.text} is never used", name.span)
    for b in node.inputs:
        if b.name.text not in used and not b.name.text.startswith("_"):
            yield _message(item, False, f"input {b.name.text} is never used", b.name.span)


def used_names(graph: Graph) -> set[str]:
    """All values and named tensors that are read in a graph, or updated."""
    applies = [s for s in graph.body if isinstance(s, Apply)]
    found = {o.text for s in applies for o in s.operands if isinstance(o, Name)}
    for s in graph.body:
        if not isinstance(s, Apply):
            found.update(names_read(s))
        if isinstance(s, Update):
            found.add(s.target.text)
    return found


def unused_tensors(file: File, used: set[str]) -> Iterator[Diagnostic]:
    """Params and states that no graph of the file names; `used` are those that one does."""
    if len(used) == len(file.tensors) or not file.graphs:
        return
    for name, item in file.tensors.items():
        if name not in used and isinstance(item.node, Declaration):
            message = f"{item.kind} {name} is used by no graph of this file"
            yield _message(item, True, message, item.node.name.span)


def _message(item: Item, warning: bool, text: str, span: Span) -> Diagnostic:
    """A warning where work is done in vain, else a hint."""
    return Diagnostic("warning" if warning else "hint", text, span, item.source, code=UNUSED)
