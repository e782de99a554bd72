"""Folding: graphs, runs of declarations, comments, broken lists, and regions with markers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.file import File
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Graph

_REGION = re.compile(r"^[ \t]*#[ \t]*(?:(region)\b|(endregion)\b)", re.MULTILINE)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*\n){2,}", re.MULTILINE)

Kind = types.FoldingRangeKind


@feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
def folding_range(project: Project, params: types.FoldingRangeParams) -> list[types.FoldingRange]:
    """All that can be folded, by lines."""
    file = project.file(params.text_document.uri)
    found = [*_items(file), *_comments(file), *_regions(file)]
    one_each = {(f.start_line, -f.end_line): f for f in found}
    return [one_each[key] for key in sorted(one_each)]


def _items(file: File) -> Iterator[types.FoldingRange]:
    first: int | None = None  # of a run of declarations
    last = 0
    for item in file.items:
        node = item.node
        if node is None:
            continue
        text = item.text[node.span.start : node.span.end].rstrip()  # of an open graph, the rest
        begin = item.start + node.span.start
        start, end = _lines(file, begin, begin + len(text))
        if not isinstance(node, Graph):
            touches = first is not None and start - last <= 1 + len(node.comments.above)
            if not touches:
                yield from _fold(first, last)
                first = start
            last = end
            yield from _fold(start, end)
            continue
        yield from _fold(first, last)
        first = None
        yield from _fold(start, end - text.endswith("}"))  # the brace stays in view
        yield from _lists(file, item.start, node)
    yield from _fold(first, last)


def _lists(file: File, offset: int, graph: Graph) -> Iterator[types.FoldingRange]:
    """Statements on several lines; the line of the closing parenthesis stays in view."""
    starts = file.lines.starts
    for s in graph.body:
        if s.span.end - s.span.start < 2:
            continue
        start, end = offset + s.span.start, offset + s.span.end
        if file.text.find("\n", start, end) < 0:
            continue
        first, last = _lines(file, start, end)
        alone = file.text[starts[last] : end].strip().startswith(")")
        yield from _fold(first, last - alone)


def _comments(file: File) -> Iterator[types.FoldingRange]:
    for match in _COMMENTS.finditer(file.text):
        if _REGION.search(match[0]):
            continue  # regions fold by their markers
        first, last = _lines(file, match.start(), match.end() - 1)
        yield from _fold(first, last, Kind.Comment)


def _regions(file: File) -> Iterator[types.FoldingRange]:
    opened: list[int] = []
    for match in _REGION.finditer(file.text):
        line = file.position(match.start()).line
        if match[1]:
            opened.append(line)
        elif opened:
            yield from _fold(opened.pop(), line, Kind.Region)


def _fold(first: int | None, last: int, kind: Kind | None = None) -> Iterator[types.FoldingRange]:
    if first is not None and last > first:
        yield types.FoldingRange(first, last, kind=kind)


def _lines(file: File, start: int, end: int) -> tuple[int, int]:
    return file.position(start).line, file.position(end).line
