"""What is wrong in a file: the parser's and the verifier's messages, and a few of our own.

The errors are those of ``opstep check``, where the text can be read. Where it cannot, what can be
read is verified all the same, as nobody wants messages to come and go while a line is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from opstep.lsp.item import Item
from opstep.lsp.unused import unused_in_graph, unused_tensors
from opstep.runtime.ir.callgraph import check_calls
from opstep.runtime.ir.diagnostics import Diagnostic, in_order
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.parser import too_many
from opstep.runtime.ir.reading import MOST_ERRORS
from opstep.runtime.ir.reporting import Reporter, TooMany
from opstep.runtime.ir.verified import VerifiedGraph
from opstep.runtime.ir.verify import check_names

if TYPE_CHECKING:
    from opstep.lsp.file import File


def steps(file: File) -> Iterator[None]:
    """Finds out about all items what is not known yet, and yields now and then.

    An edit may come in between: then it is to be begun anew.
    """
    for item in list(file.items):
        if not item.is_ready:
            yield from item.steps()


def messages(file: File) -> list[Diagnostic]:
    """All messages about a file, in order."""
    for _ in steps(file):
        pass
    found: list[Diagnostic] = []
    for item in file.items:
        if item.messages is None:
            item.messages = list(_about(item))
        found += item.messages
    found += _about_all(file)
    broken = [item for item in file.items if item.syntax]
    if broken:
        found = [d for d in found if not _follows(d, broken)]
    else:
        found += unused_tensors(file)
    ordered = in_order_of(file, found)
    if len(ordered) > MOST_ERRORS:
        ordered = ordered[:MOST_ERRORS]
        ordered.append(too_many(ordered[-1]))
    return ordered


def in_order_of(file: File, found: list[Diagnostic]) -> list[Diagnostic]:
    """By place, each said once."""
    grouped: dict[int, list[Diagnostic]] = {}
    for d in found:
        grouped.setdefault(id(d.source), []).append(d)
    return [d for item in file.items for d in in_order(grouped.pop(id(item.source), ()))] + [
        d for rest in grouped.values() for d in in_order(rest)
    ]


def _about(item: Item) -> Iterator[Diagnostic]:
    """Messages about one item alone."""
    syntax = item.syntax
    yield from syntax
    if not syntax:
        yield from item.problems
        yield from unused_in_graph(item)


def _about_all(file: File) -> list[Diagnostic]:
    """What is wrong between items: names that two of them have, calls without end."""
    reporter = Reporter()
    with suppress(TooMany):
        nodes = ((item.node, item.source) for item in file.items)
        check_names(
            ((n, source) for n, source in nodes if n is not None),
            file.environment.applier.ops,
            reporter,
        )
        graphs: dict[str, VerifiedGraph] = {}
        callees = {}
        for name, item in {**file.graphs, **file.project.library_graphs, **file.graphs}.items():
            node = item.node
            if isinstance(node, Graph) and item.verified is not None:
                graphs[name] = item.verified
                item.verified.steps = 0  # in a circle they are what they were
                callees[name] = item.callees
        check_calls(graphs, reporter, callees)
    return reporter.diagnostics


def _follows(d: Diagnostic, broken: list[Item]) -> bool:
    """Whether a message may be due to an item that could not be read: it is about a line that has
    its name.
    """
    if d.span is None or d.source is None or any(d.source is item.source for item in broken):
        return False
    line = d.source.line(d.source.locate(d.span.start)[0])
    return any(item.kind and item.name in line for item in broken)
