"""Where a thing is named: references, and the highlights of a word in its file.

Files of programs do not refer to each other. What they share are ops, element types and the graphs
of the standard library: the references of these are looked for in every file that is open or lies
in a workspace folder. All else is looked for in the file that has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.folders import folder_files
from opstep.lsp.locations import graph_item, is_library
from opstep.lsp.occurrences import DEFINES, READS, WRITES, Occurrence, Thing, at, occurrences
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Span

_NOTHING = ("keyword", "number", "string", "comment", "constant", "unknown")
_NEAR = 20_000  # characters
_KINDS = {
    DEFINES: types.DocumentHighlightKind.Write,
    WRITES: types.DocumentHighlightKind.Write,
    READS: types.DocumentHighlightKind.Read,
}


@feature(types.TEXT_DOCUMENT_REFERENCES)
def references(project: Project, params: types.ReferenceParams) -> list[types.Location]:
    """All places that name what is under the cursor."""
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    if found is None or found.kind in _NOTHING:
        return []
    with_declaration = params.context.include_declaration
    return [
        types.Location(o.file.uri, o.file.range(o.start, o.end))
        for o in everywhere(project, found)
        if with_declaration or o.mark.role != DEFINES
    ]


def everywhere(project: Project, found: Occurrence) -> Iterator[Occurrence]:
    """The occurrences of a thing in all files that can mean it."""
    thing = found.thing
    if not is_shared(project, found):
        yield from occurrences(found.file, thing)
        return
    files = {file.uri: file for file in (found.file, *project.library, *folder_files(project))}
    word = re.compile(rf"(?<![\w.]){re.escape(thing.name)}(?![\w.])", re.ASCII)
    for file in files.values():
        if thing.kind == "graph" and thing.name in file.graphs and not is_library(project, file):
            continue  # it has a graph of its own with that name
        if word.search(file.text):
            yield from occurrences(file, thing)


def is_shared(project: Project, found: Occurrence) -> bool:
    """Whether other files can mean the same thing."""
    if found.kind in ("op", "attribute", "dtype"):
        return True
    if found.kind != "graph":
        return False
    location = graph_item(project, found.file, found.name)
    return location is not None and is_library(project, location.file)


@feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
def highlight(
    project: Project, params: types.DocumentHighlightParams
) -> list[types.DocumentHighlight]:
    """The occurrences in this file, told apart by whether they define, write or read. In long
    files only those nearby: editors ask with every step of the cursor.
    """
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    if found is None or found.kind in _NOTHING:
        return []
    near = Span(found.start - _NEAR, found.start + _NEAR)
    return [
        types.DocumentHighlight(file.range(o.start, o.end), _kind(o, found.thing))
        for o in occurrences(file, found.thing, near)
    ]


def _kind(o: Occurrence, thing: Thing) -> types.DocumentHighlightKind:
    if thing.kind in ("op", "attribute", "dtype"):
        return types.DocumentHighlightKind.Text
    return _KINDS[o.mark.role]


@feature(
    types.TEXT_DOCUMENT_LINKED_EDITING_RANGE,
)
def linked(
    project: Project, params: types.LinkedEditingRangeParams
) -> types.LinkedEditingRanges | None:
    """The occurrences of a value or a symbol in its graph, to be typed over together."""
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    if found is None or found.part is None or found.thing.kind not in ("value", "symbol"):
        return None
    ranges = [file.range(o.start, o.end) for o in occurrences(file, found.thing)]
    return types.LinkedEditingRanges(ranges, r"[A-Za-z_][A-Za-z0-9_]*") if len(ranges) > 1 else None
