"""Inlay hints: the types of values behind their names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.file import File
from opstep.lsp.item import Item
from opstep.lsp.occurrences import op_named
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.lsp.settings import flag
from opstep.runtime.ir.graph import Apply, Binding, Graph, Name
from opstep.runtime.ir.op import Op, OperandSpec

_MOST = 60  # characters of a type; longer ones are cut, and stand whole in the tooltip


@feature(types.TEXT_DOCUMENT_INLAY_HINT)
def inlay_hint(project: Project, params: types.InlayHintParams) -> list[types.InlayHint]:
    """The hints of a range."""
    file = project.file(params.text_document.uri)
    low, high = file.offset(params.range.start), file.offset(params.range.end)
    show_types = flag(project, "inlayHints.types", True)
    show_operands = flag(project, "inlayHints.operands", False)
    hints: list[types.InlayHint] = []
    for item in items_between(file, low, high):
        node = item.node
        if isinstance(node, Graph):
            for s in statements_between(node, low - item.start, high - item.start):
                for b in s.results if show_types else ():
                    hints += _result(file, item, b)
                if show_operands:
                    hints += _operands(file, item, s)
    start, end = params.range.start, params.range.end
    return [h for h in hints if _key(start) <= _key(h.position) <= _key(end)]


def items_between(file: File, low: int, high: int) -> Iterator[Item]:
    """The items that a range touches."""
    items = file.items
    first = max(0, bisect_left(items, low, key=lambda item: item.start) - 1)
    for k in range(first, len(items)):
        item = items[k]
        if item.start > high:
            break
        yield item


def statements_between(graph: Graph, low: int, high: int) -> Iterator[Apply]:
    """The applies of a graph that a range of its text touches."""
    body = graph.body
    first = max(0, bisect_left(body, low, key=lambda s: s.span.start) - 1)
    for k in range(first, len(body)):  # a slice would copy the rest of a long graph
        s = body[k]
        if s.span.start > high:
            break
        if isinstance(s, Apply):
            yield s


def _result(file: File, item: Item, binding: Binding) -> Iterator[types.InlayHint]:
    if binding.type is not None:
        return
    name, verified = binding.name, item.verified
    t = verified.types.get(name.text) if verified is not None else None
    if t is None:
        return
    label = f": {t}"
    position = file.position(item.start + name.span.end)
    edit = types.TextEdit(types.Range(position, position), label)
    cut = len(label) > _MOST
    yield types.InlayHint(
        position,
        label[: _MOST - 1] + "…" if cut else label,
        types.InlayHintKind.Type,
        [edit] if t.dtype.has_name else None,
        label[2:] if cut else None,
    )


def _operands(file: File, item: Item, s: Apply) -> Iterator[types.InlayHint]:
    """The names of operands, where an op takes several and a value is not called so itself."""
    callee = op_named(s.callee.text) or file.environment.graphs.get(s.callee.text)
    names = _names(callee, len(s.operands)) if callee is not None else []
    if len(s.operands) < 2:
        return
    for operand, name in zip(s.operands, names, strict=False):
        if isinstance(operand, Name) and operand.text == name:
            continue
        yield types.InlayHint(
            file.position(item.start + operand.span.start),
            f"{name}:",
            types.InlayHintKind.Parameter,
            padding_right=True,
        )


def _names(callee: type[Op] | Graph, count: int) -> list[str]:
    """The names of `count` operands; none for ops that take any number of them."""
    if isinstance(callee, Graph):
        return [b.name.text for b in callee.inputs]
    if any(_variadic(o) for o in callee.operands):
        return [o.name for o in callee.operands if not _variadic(o)] if count > 1 else []
    return [o.name for o in callee.operands]


def _variadic(spec: OperandSpec) -> bool:
    return spec.variadic


def _key(position: types.Position) -> tuple[int, int]:
    return position.line, position.character
