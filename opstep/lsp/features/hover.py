"""``textDocument/hover``: what stands under the pointer."""

from __future__ import annotations

from lsprotocol import types

from opstep.lsp.hovers import hover_text
from opstep.lsp.occurrences import at
from opstep.lsp.project import Project
from opstep.lsp.registry import feature


@feature(types.TEXT_DOCUMENT_HOVER)
def hover(project: Project, params: types.HoverParams) -> types.Hover | None:
    """Markdown about the word at a position."""
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    said = hover_text(project, found) if found is not None else ""
    if found is None or not said:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, said)
    return types.Hover(content, file.range(found.start, found.end))
