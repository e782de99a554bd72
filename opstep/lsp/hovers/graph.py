"""About a graph: its signature, the comment above it, what it comes to."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from opstep.lsp.calls import calls_from, calls_to
from opstep.lsp.hovers.markdown import block, code, count, escape, link, paragraphs
from opstep.lsp.locations import graph_item
from opstep.lsp.occurrences import Occurrence, head_of
from opstep.runtime.ir.graph import Apply, Graph

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item
    from opstep.lsp.project import Project

_MOST_NAMES = 8


def text(project: Project, found: Occurrence) -> str:
    location = graph_item(project, found.file, found.name)
    if location is None:
        return f"There is no graph {code(found.name)}."
    file, item = location
    graph = item.node
    assert isinstance(graph, Graph)
    return paragraphs(
        [
            block(signature(item)),
            comment_of(item),
            _size(graph),
            _calls(project, file, found),
            _binding(found),
            _location(file, item, found),
        ]
    )


def signature(item: Item) -> str:
    """The head of a graph as it is written."""
    graph = item.node
    assert isinstance(graph, Graph)
    start, end = head_of(graph, item.text)
    return inspect.cleandoc(item.text[start:end]).rstrip("{ \t\r\n")


def comment_of(item: Item) -> str:
    """The comment right above a graph or declaration."""
    return "  \n".join(map(escape, item.comment.splitlines()))


def _size(graph: Graph) -> str:
    return f"{count(sum(isinstance(s, Apply) for s in graph.body), 'op')}."


def _calls(project: Project, file: File, found: Occurrence) -> str:
    calls = list(dict.fromkeys(c.name for c in calls_from(project, file, found.name)))
    callers = list(dict.fromkeys(c.item.name for c in calls_to(found.file, found.name)))
    parts = []
    if calls:
        parts.append(f"Calls {_names(calls)}.")
    parts.append(f"Called by {_names(callers)}." if callers else "Not called in this file.")
    return " ".join(parts)


def _names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(map(code, names[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")


def _binding(found: Occurrence) -> str:
    """What the callee's symbols are in this call."""
    from opstep.lsp.hovers.operation import application_at

    application = application_at(found)
    if application is None or application.graph is None or not application.symbols:
        return ""
    return f"Here {', '.join(code(f'{s} = {d}') for s, d in application.symbols.items())}."


def _location(file: File, item: Item, found: Occurrence) -> str:
    if file is not found.file:
        return f"*Standard library, {link(file, item.start)}.*"
    return f"*{link(file, item.start + item.node.name.span.start)}*" if item.node else ""
