"""What is wrong in a file: the parser's and the verifier's messages, and a few of our own.

The errors are those of ``opstep check``, where the text can be read. Where it cannot, what can be
read is verified all the same, as nobody wants messages to come and go while a line is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opstep.lsp.item import Item, Summary
from opstep.lsp.unused import unused_in_graph, unused_tensors, used_names
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.diagnostics import Diagnostic, Reporter, TooMany, in_order
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.parser import MOST_ERRORS, too_many
from opstep.runtime.ir.verify import check_calls, check_names, errors_in_read

if TYPE_CHECKING:
    from opstep.lsp.file import File


def steps(file: File) -> Iterator[None]:
    """Finds out about all items what is not known yet, and yields now and then.

    An edit may come in between: then it is to be begun anew.
    """
    for item in list(file.items):
        if item.summary is None:
            yield from item.steps()
            yield
            item.summary = _summary(item)


def messages(file: File) -> list[Diagnostic]:
    """All messages about a file, in order."""
    with collector_paused():
        for _ in steps(file):
            pass
        summaries = [item.summary for item in file.items if item.summary is not None]
        found = [d for s in summaries for d in s.messages]
        found += _cross_checks.setdefault(file, CrossItemChecks()).messages(file, summaries)
        broken = [item for item in file.items if item.summary and item.summary.broken]
        if broken:
            found = [d for d in found if not _follows(d, broken)]
        else:
            found += unused_tensors(file, set().union(*[s.tensors for s in summaries]))
        return _in_order(file, _not_too_many(found))


def _not_too_many(found: list[Diagnostic]) -> list[Diagnostic]:
    """The first errors, and others for as long as there is room."""
    if len(found) <= MOST_ERRORS:
        return found
    errors = [d for d in found if d.severity == "error"]
    others = [d for d in found if d.severity != "error"][: max(0, MOST_ERRORS - len(errors))]
    reported = [*errors[:MOST_ERRORS], *others]
    return [*reported, too_many(errors[MOST_ERRORS - 1])] if len(errors) > MOST_ERRORS else reported


def _summary(item: Item) -> Summary:
    syntax, node = item.syntax, item.node
    used = used_names(node) if isinstance(node, Graph) else set()
    found = [*item.problems, *unused_in_graph(item, used)]
    if syntax:
        graphs = [node] if isinstance(node, Graph) else []
        beside = (errors_in_read(g, item.source, syntax, item.problems) for g in graphs)
        found = [*syntax, *chain.from_iterable(beside)]
    name = None if node is None else (isinstance(node, Graph), node.name.text)
    return Summary(found, bool(syntax), name, item.callees, used & item.file.tensors.keys())


def _in_order(file: File, found: list[Diagnostic]) -> list[Diagnostic]:
    """By place, each said once."""
    grouped: dict[int, list[Diagnostic]] = {}
    for d in found:
        grouped.setdefault(id(d.source), []).append(d)
    return [d for item in file.items for d in in_order(grouped.pop(id(item.source), ()))] + [
        d for rest in grouped.values() for d in in_order(rest)
    ]


class CrossItemChecks:
    """What is wrong between the items of a file: names that two of them have, calls without end.

    It is found out again when names or calls are others than the last time.
    """

    def __init__(self) -> None:
        self._checked: list[Any] | None = None
        self._steps: dict[str, int] = {}

    def messages(self, file: File, summaries: list[Summary]) -> list[Diagnostic]:
        """All of them; sets the `steps` of each graph."""
        reporter = Reporter()
        present = [(s.name, s.callees) for s in summaries]
        if present == self._checked:
            for name, item in file.graphs.items():
                if item.verified is not None:
                    item.verified.steps = self._steps.get(name, 0)
            return []
        own = {n: i.verified for n, i in file.graphs.items() if i.verified is not None}
        library = file.library.library_graphs
        others = {n: i.verified for n, i in library.items() if i.verified is not None}

        def key(name: str) -> str:
            """Of a graph of the library, which calls its own whatever the file has."""
            return f"library {name}" if name in own else name

        callees = {key(n): {key(c): k for c, k in library[n].callees.items()} for n in others}
        callees |= {n: s.callees for n in own if (s := file.graphs[n].summary)}
        with suppress(TooMany):
            nodes = ((item.node, item.source) for item in file.items)
            check_names(
                ((n, source) for n, source in nodes if n is not None),
                file.environment.applier.ops,
                reporter,
            )
            graphs = own | {key(n): verified for n, verified in others.items()}
            # Also those that another graph of the same name hides, which are not among `graphs`.
            every = [item.verified for item in file.items if item.verified is not None]
            for verified in (*graphs.values(), *every):
                verified.steps = 0  # where calls go round in a circle it is not set
            check_calls(graphs, reporter, callees)
        self._checked = None if reporter.diagnostics else present
        self._steps = {name: verified.steps for name, verified in own.items()}
        return reporter.diagnostics


def _follows(d: Diagnostic, broken: list[Item]) -> bool:
    """Whether a message may be due to an item that could not be read: it is about a line that has
    its name.
    """
    if d.span is None or d.source is None or any(d.source is item.source for item in broken):
        return False
    line = d.source.line(d.source.locate(d.span.start)[0])
    return any(
        item.kind and (item.name in line or (item.kind == "mesh" and "over" in line))
        for item in broken
    )


_cross_checks: WeakKeyDictionary[File, CrossItemChecks] = WeakKeyDictionary()
