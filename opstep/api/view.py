"""A graph to look at: as text, and in a notebook as HTML with the types of its values."""

from __future__ import annotations

from html import escape

from opstep.runtime.ir.graph import Apply, Graph
from opstep.runtime.ir.verified import VerifiedGraph

_STYLE = "font-family: ui-monospace, monospace; line-height: 1.5; border-collapse: collapse"
_CELL = "text-align: left; padding: 0 1.5em 0 0; border: none; white-space: pre"
_TYPE = f"{_CELL}; color: #7a7a7a"


def graph_html(types: dict[str, str], graph: Graph, text: str) -> str:
    """`text` is the graph printed; `types` gives the type of each value by its name."""
    rows = []
    statements = iter(graph.body)
    for line in text.splitlines():
        note = ""
        if _begins_statement(line):
            statement = next(statements, None)
            if isinstance(statement, Apply):
                names = [r.name.text for r in statement.results]
                note = ", ".join(types.get(n, "") for n in names)
        rows.append(
            f'<tr><td style="{_CELL}">{escape(line)}</td>'
            f'<td style="{_TYPE}">{escape(note)}</td></tr>'
        )
    return f'<table style="{_STYLE}">{"".join(rows)}</table>'


def _begins_statement(line: str) -> bool:
    """Whether a line of a printed graph is the first of a statement: statements stand two columns
    in, the rest of a broken one and of a broken signature farther, a `)` of its own excepted.
    """
    return line.startswith("  ") and line[2:3] not in ("", " ", "#", ")")


class GraphView:
    """A graph as text, and as HTML in a notebook: each line with the types of what it computes."""

    def __init__(self, graph: Graph, verified: VerifiedGraph):
        self.graph = graph
        self.verified = verified

    def __repr__(self) -> str:
        from opstep.runtime.ir.printer import print_graph

        return print_graph(self.graph)

    def _repr_html_(self) -> str:
        types = {name: str(t) for name, t in self.verified.types.items()}
        return graph_html(types, self.graph, repr(self))
