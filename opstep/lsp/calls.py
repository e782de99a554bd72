"""Which graph calls which: calls by name, and those that while, cond and switch make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opstep.lsp.locations import graph_item
from opstep.lsp.occurrences import DEFINES, Occurrence, Thing, marks_of, occurrences
from opstep.runtime.ir.graph import Apply, Graph

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project


def calls_to(file: File, name: str) -> Iterator[Occurrence]:
    """Where a file's graphs call the graph `name`, in the order of the file."""
    for found in occurrences(file, Thing("graph", name)):
        if found.mark.role != DEFINES:
            yield found


def calls_from(project: Project, file: File, name: str) -> Iterator[Occurrence]:
    """What the graph `name` calls, in the order of its statements. `file` is who asks: a graph of
    its own goes before one of the library.
    """
    location = graph_item(project, file, name)
    if location is None:
        return
    graph = location.item.node
    assert isinstance(graph, Graph)
    for statement in graph.body:
        if isinstance(statement, Apply):
            for mark in marks_of(location.file, location.item, statement):
                if mark.kind == "graph":
                    yield Occurrence(location.file, location.item, mark, statement)
