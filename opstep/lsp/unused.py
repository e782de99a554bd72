"""Values that nothing uses, and params that no graph reads: no errors, but worth a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opstep.lsp.graph_check import unused
from opstep.lsp.item import Item
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Declaration, Graph, Span

if TYPE_CHECKING:
    from opstep.lsp.file import File

UNUSED = "unused"


def unused_in_graph(item: Item) -> Iterator[Diagnostic]:
    """Results and inputs that no statement uses. A name that begins with _ is meant to be so."""
    text, node = item.graph_text, item.node
    if text is None or not isinstance(node, Graph) or item.problems:
        return
    ops, used = item.file.environment.applier.ops, item.uses
    for s, names in unused(text, used):
        op = ops.get(s.callee.text)
        dead = len(names) == len(s.results) and op is not None and not op.host
        for name, span in names:
            if not name.startswith("_"):
                yield _message(item, dead, f"{name} is never used", span)
    for b in node.inputs:
        if b.name.text not in used and not b.name.text.startswith("_"):
            yield _message(item, False, f"input {b.name.text} is never used", b.name.span)


def unused_tensors(file: File, used: set[str]) -> Iterator[Diagnostic]:
    """Params and states that no graph of the file names; `used` are those that one does."""
    if len(used) == len(file.tensors) or not file.graphs:
        return
    for name, item in file.tensors.items():
        if name not in used and isinstance(item.node, Declaration):
            told = f"{item.kind} {name} is used by no graph of this file"
            yield _message(item, True, told, item.node.name.span)


def _message(item: Item, warning: bool, text: str, span: Span) -> Diagnostic:
    """A warning where work is done in vain, else a hint."""
    return Diagnostic("warning" if warning else "hint", text, span, item.source, code=UNUSED)
