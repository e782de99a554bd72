"""Symbols: the outline of a file, and the graphs, params and states of all folders by name."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.file import File
from opstep.lsp.folders import folder_files
from opstep.lsp.hovers.graph import signature
from opstep.lsp.item import Item
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Apply, Binding, Declaration, Graph, Span

KINDS = {
    "graph": types.SymbolKind.Function,
    "param": types.SymbolKind.Field,
    "state": types.SymbolKind.Property,
    "input": types.SymbolKind.Variable,
    "value": types.SymbolKind.Variable,
}
_MOST_FOUND = 500
_MOST_LINES = 5_000  # of a file whose values are listed


@feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, types.DocumentSymbolOptions(label="opstep"))
def outline(project: Project, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    """Params, states and graphs and, in these, inputs and values, with their types.

    Of files with more values than anybody looks through, graphs are shown without them.
    """
    file = project.file(params.text_document.uri)
    detailed = len(file.lines.starts) <= _MOST_LINES
    return [symbol for item in file.items if (symbol := _symbol(item, detailed)) is not None]


def _symbol(item: Item, detailed: bool) -> types.DocumentSymbol | None:
    node = item.node or item.signature
    if isinstance(node, Declaration):
        return types.DocumentSymbol(
            name=node.name.text,
            kind=KINDS[node.kind],
            range=item.span(node.span),
            selection_range=item.span(node.name.span),
            detail=f"{node.kind} {node.type}",
        )
    if not isinstance(node, Graph):
        return None
    return types.DocumentSymbol(
        name=node.name.text,
        kind=KINDS["graph"],
        range=item.span(node.span),
        selection_range=item.span(node.name.span),
        detail=" ".join(signature(item).split()).removeprefix(f"graph {node.name.text}"),
        children=list(_values(item, node)) if detailed else [],
    )


def _values(item: Item, graph: Graph) -> Iterator[types.DocumentSymbol]:
    types_by_name = item.verified.types if item.verified is not None else {}

    def symbol(binding: Binding, kind: str, span: Span) -> types.DocumentSymbol:
        t = types_by_name.get(binding.name.text, binding.type)
        return types.DocumentSymbol(
            name=binding.name.text,
            kind=KINDS[kind],
            range=item.span(span),
            selection_range=item.span(binding.name.span),
            detail=str(t) if t is not None else "",
        )

    for binding in graph.inputs:
        start, end = binding.name.span
        yield symbol(binding, "input", Span(start, max(end, binding.type_span.end)))
    for statement in graph.body:
        if isinstance(statement, Apply):
            for binding in statement.results:
                yield symbol(binding, "value", statement.span)


# --- all folders ----------------------------------------------------------------------------------


@feature(types.WORKSPACE_SYMBOL)
def search(project: Project, params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
    """What has the letters of the query in its name, in their order; the best matches first."""
    found = []
    for file in folder_files(project):
        for item in file.items:
            if item.kind and (rank := _rank(params.query, item.name)) is not None:
                found.append((rank, item.name, file, item))
    found.sort(key=lambda entry: entry[:2])
    return [_found(file, item) for _, _, file, item in found[:_MOST_FOUND]]


def _found(file: File, item: Item) -> types.WorkspaceSymbol:
    end = item.start + item.after_name
    quotes = 2 * (file.text[end - 1] == "`")
    location = types.Location(file.uri, file.range(end - len(item.name) - quotes, end))
    return types.WorkspaceSymbol(
        location=location, name=item.name, kind=KINDS[item.kind], container_name=_base(file)
    )


def _base(file: File) -> str:
    return file.path.replace("\\", "/").rpartition("/")[2]


def _rank(query: str, name: str) -> tuple[int, int] | None:
    """How well a name fits, the least first; None where it does not."""
    pattern, text = query.lower(), name.lower()
    if text.startswith(pattern):
        return 0, len(text)
    if pattern in text:
        return 1, len(text)
    letters = iter(text)
    return (2, len(text)) if all(c in letters for c in pattern) else None
