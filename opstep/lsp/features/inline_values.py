"""Inline values: which names an editor looks up at a stop, to show their values in the text.

The extension for VS Code shows values by itself, in colour.
"""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.features.inlay_hints import items_between
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Apply, Assert, Graph, Name, Return, Statement, Update


@feature(types.TEXT_DOCUMENT_INLINE_VALUE)
def inline_value(
    project: Project, params: types.InlineValueParams
) -> list[types.InlineValueVariableLookup]:
    """The values of the stopped graph down to the stopped line, and the operands of that line."""
    file = project.file(params.text_document.uri)
    stopped = params.context.stopped_location
    at = file.offset(types.Position(stopped.end.line, 1 << 20))
    item = file.item_at(at)
    if item is None or not isinstance(item.node, Graph):
        return []
    low, high = file.offset(params.range.start), file.offset(params.range.end)
    graph = item.node
    shown: list[types.InlineValueVariableLookup] = []
    if item not in items_between(file, low, high):
        return []
    for name in _names(graph, file.offset(types.Position(stopped.start.line, 0)) - item.start):
        start, end = item.start + name.span.start, item.start + name.span.end
        if low <= start <= high and start <= at:
            range_ = file.range(start, end)
            shown.append(types.InlineValueVariableLookup(range_, True, name.text))
    return shown


def _names(graph: Graph, line: int) -> Iterator[Name]:
    """Inputs, results of the statements above a line, and what the statement there uses."""
    for b in graph.inputs:
        yield b.name
    for s in graph.body:
        if s.span.end <= line:
            for b in s.results if isinstance(s, Apply) else ():
                yield b.name
            continue
        # The stopped statement: its operands once more, as they are what one looks at, and its own
        # results, which are there when one stands behind it.
        yield from _used(s)
        if isinstance(s, Apply):
            yield from (b.name for b in s.results)
        return


def _used(s: Statement) -> Iterator[Name]:
    if isinstance(s, Apply):
        yield from (o for o in s.operands if isinstance(o, Name))
    elif isinstance(s, Assert):
        yield s.condition
    elif isinstance(s, Update):
        yield from (n for n in (s.target, s.value) if isinstance(n, Name))
    elif isinstance(s, Return):
        yield from s.values
