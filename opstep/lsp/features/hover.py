"""``textDocument/hover``: what stands under the pointer."""

from __future__ import annotations

from lsprotocol import types

from opstep.lsp.hovers import attribute, graph, operation, value, words
from opstep.lsp.occurrences import at
from opstep.lsp.project import Project
from opstep.lsp.registry import feature

_BY_KIND = {
    "op": operation.text,
    "graph": graph.text,
    "value": value.text,
    "param": value.of_tensor,
    "state": value.of_tensor,
    "attribute": attribute.text,
    "symbol": words.symbol,
    "dtype": words.dtype,
    "family": words.family,
    "axis": words.axis,
    "keyword": words.keyword,
    "constant": words.constant,
    "number": words.number,
}


@feature(types.TEXT_DOCUMENT_HOVER)
def hover(project: Project, params: types.HoverParams) -> types.Hover | None:
    """Markdown about the word at a position."""
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    about = _BY_KIND.get(found.kind) if found is not None else None
    text = about(project, found) if about is not None and found is not None else ""
    if found is None or not text:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(content, file.range(found.start, found.end))
