"""Where a statement stands, for messages about what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from opstep.runtime.ir.graph import Apply, Graph, Source, Statement
from opstep.runtime.ir.printer import print_statement


class Place(NamedTuple):
    """File and line; "" and 0 where it stands in none. Of a gradient's statement those of the one
    that it was made for, which `backward` is if it is its derivative.
    """

    path: str
    line: int
    backward: str


def phase_of(statement: Statement | None, graph: Graph) -> str:
    """forward or backward, of a statement in the body of a gradient, else "". In a gradient that
    was read from a text, names tell: of graphs ``loss_grad``, of derivatives ``d_x``.
    """
    derived_from = getattr(statement, "derived_from", None)
    if derived_from is not None:
        return "backward" if derived_from.backward else "forward"
    results = getattr(statement, "results", ())
    if not results or not graph.name.text.endswith("_grad"):
        return ""
    return "backward" if results[0].name.text.startswith("d_") else "forward"


def gradients_called(graphs: Mapping[str, Graph], name: str) -> list[Graph]:
    """The gradients that a step of training calls; none by a graph that is no such step."""
    called = dict.fromkeys(s.callee.text for s in graphs[name].body if isinstance(s, Apply))
    return [
        graphs[g]
        for g in called
        if g in graphs and any(phase_of(s, graphs[g]) for s in graphs[g].body)
    ]


def place_of(statement: Statement, source: Source | None) -> Place:
    """`source`: the text of the statement's graph."""
    derived_from = getattr(statement, "derived_from", None)
    backward = ""
    if derived_from is not None:
        source, statement = derived_from.source, derived_from.statement
        backward = print_statement(statement).strip() if derived_from.backward else ""
    line = source.locate(statement.span.start)[0] if source and statement.span.end else 0
    return Place(source.path if source and line else "", line, backward)
