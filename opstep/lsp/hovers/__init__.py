"""What is said about a word when the pointer rests on it, as Markdown. `hover_text` chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.lsp.hovers import attribute, graph, operation, value, words

if TYPE_CHECKING:
    from opstep.lsp.occurrences import Occurrence
    from opstep.lsp.project import Project

_BY_KIND = {
    "op": operation.text,
    "graph": graph.text,
    "value": value.text,
    "param": value.of_tensor,
    "state": value.of_tensor,
    "attribute": attribute.text,
    "symbol": words.symbol,
    "dtype": words.dtype,
    "keyword": words.keyword,
    "constant": words.constant,
    "number": words.number,
}


def hover_text(project: Project, found: Occurrence) -> str:
    """Markdown about the word; "" where there is nothing to say."""
    about = _BY_KIND.get(found.kind)
    return about(project, found) if about is not None else ""
