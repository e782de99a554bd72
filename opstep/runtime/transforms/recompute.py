"""Statements that are executed again, as text: ``h_again = tanh(x)``, and who reads that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    NOWHERE,
    Apply,
    Assert,
    Binding,
    Comments,
    Graph,
    Name,
    Statement,
)
from opstep.runtime.transforms.builder import Builder


def with_repeats(
    graph: Graph, order: Iterable[tuple[Statement, int]], tensors: Iterable[str], comment: str = ""
) -> Graph:
    """The graph with its statements in this order, each with the number of times that it was
    executed before. What follows a repetition reads its results. `tensors`: names that are taken.
    """
    names = {b.name.text for b in graph.inputs} | set(tensors)
    names |= {b.name.text for s in graph.body if isinstance(s, Apply) for b in s.results}
    fresh = Builder(used_names=names).fresh
    now: dict[str, str] = {}

    def renamed(operand):
        new = now.get(operand.text) if isinstance(operand, Name) else None
        return operand if new is None else Name(new, operand.span)

    body: list[Statement] = []
    for statement, repeated in order:
        if isinstance(statement, Apply):
            operands = tuple(map(renamed, statement.operands))
            changed = replace(statement, operands=operands)
            if repeated:
                for b in statement.results:
                    now[b.name.text] = fresh(f"{b.name.text}_again")
                results = tuple(Binding(Name(now[b.name.text]), b.type) for b in statement.results)
                changed = replace(changed, results=results, comments=NO_COMMENTS, span=NOWHERE)
            statement = changed
        elif isinstance(statement, Assert):
            statement = replace(statement, condition=renamed(statement.condition))
        body.append(statement)
    above = (*graph.comments.above, *([comment] if comment else []))
    return replace(graph, body=tuple(body), comments=Comments(above, graph.comments.trailing))
