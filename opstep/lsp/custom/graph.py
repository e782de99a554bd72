"""``opstep/graph``: the data flow of one graph, for a view that draws it.

Nodes are the graph's inputs, the named tensors that it reads, and its statements; an edge leads
from what makes a value to each use of it. A file with errors is answered as far as it was
understood: a value whose type is not known has an edge without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opstep.lsp.registry import feature
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Declaration,
    Graph,
    Literal,
    Name,
    Return,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.op import OPS, Ref
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.types import TensorType

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item
    from opstep.lsp.project import Project

Json: TypeAlias = "dict[str, Any]"


@feature("opstep/graph")
def graph(project: Project, params: Json) -> Json:
    """The data flow of a graph: ``{uri, graph}``, or ``{uri, line}`` for the graph at a line.

    A graph that the file does not have is looked for in the library. Lines count from 0.
    """
    file = project.file(str(params.get("uri", "")))
    name = params.get("graph")
    if not isinstance(name, str) or not name:
        name = graph_at(file, params.get("line"))
    item = file.graphs.get(name) or project.library_graphs.get(name)
    if item is None:
        raise InputError(f"there is no graph {name} in {file.path}")
    return Drawing(project, item).progress()


def graph_at(file: File, line: Any) -> str:
    """The graph whose text holds a line; else the one above it, else main or the first."""
    graphs = [item for item in file.items if item.kind == "graph"]
    if not graphs:
        hint = "a graph begins with: graph main(x: f32[N]) -> f32[N] {"
        raise InputError(f"{file.path} has no graph", hint=hint)
    if isinstance(line, int):
        above = [item for item in graphs if file.position(item.start).line <= line]
        if above:
            return above[-1].name
    return "main" if "main" in file.graphs else graphs[0].name


class Drawing:
    """One graph on the way to its picture."""

    def __init__(self, project: Project, item: Item):
        if not isinstance(item.node, Graph):
            raise InputError(f"the graph {item.name} cannot be read: correct its first line")
        self.project = project
        self.file = item.file
        self.item = item
        self.graph: Graph = item.node
        self.types: Mapping[str, TensorType] = item.verified.types if item.verified else {}
        self.nodes: list[Json] = []
        self.edges: list[Json] = []
        self.producers: dict[str, str] = {}  # the node that makes a value
        self.type_texts: dict[TensorType, str] = {}
        self.problems = _problems(item)

    def progress(self) -> Json:
        for k, binding in enumerate(self.graph.inputs):
            name = binding.name.text
            self._node(f"input:{k}", "input", name, binding.name.span, values=[name])
        for k, statement in enumerate(self.graph.body):
            self._statement(f"s{k}", statement)
        lines = self._lines(self.graph.span)
        return {
            "uri": self.file.uri,
            "graph": self.item.name,
            "version": self.file.version,
            "lines": lines,
            "inputs": [b.name.text for b in self.graph.inputs],
            "nodes": self.nodes,
            "edges": self.edges,
            "graphs": list(self.file.graphs),
        }

    # --- nodes ------------------------------------------------------------------------------------

    def _statement(self, id: str, s: Statement) -> None:
        if isinstance(s, Apply):
            self._apply(id, s)
        elif isinstance(s, Update):
            self._node(id, "update", s.target.text, s.span, args=_literals([s.value]))
            self._use(id, 0, s.value)
        elif isinstance(s, Assert):
            message = [print_value(s.message)] if s.message else []
            self._node(id, "assert", s.condition.text, s.span, args=message)
            self._use(id, 0, s.condition)
        elif isinstance(s, Return):
            names = [v.text for v in s.values]
            self._node(id, "return", ", ".join(names), s.span)
            for k, value in enumerate(s.values):
                self._use(id, k, value)

    def _apply(self, id: str, s: Apply) -> None:
        op = s.callee.text
        called = [] if op in OPS or op in CONTROL else [op]
        kind = "call" if called else "control" if op in CONTROL else "op"
        if called and not self._is_graph(op):
            called, kind = [], "op"
        called += _named_graphs(s, self._is_graph) if kind == "control" else []
        args = _literals(s.operands) + [f"{a.name.text}={print_value(a.value)}" for a in s.attrs]
        values = [b.name.text for b in s.results]
        self._node(id, kind, ", ".join(values), s.span, op=op, args=args, calls=called)
        self.nodes[-1]["values"] = self._typed(values)
        for k, operand in enumerate(s.operands):
            self._use(id, k, operand)
        for name in values:
            self.producers.setdefault(name, id)

    def _node(
        self,
        id: str,
        kind: str,
        name: str,
        span: Span,
        op: str = "",
        args: Sequence[str] = (),
        calls: Sequence[str] = (),
        values: Iterable[str] = (),
    ) -> None:
        first, last = lines = self._lines(span)
        node: Json = {"id": id, "kind": kind, "name": name, "op": op, "lines": lines}
        node |= {"args": list(args), "calls": list(calls), "values": self._typed(values)}
        at = self.file.position(self.item.start + span.start)
        node["column"] = at.character
        problems = [text for a, b, text in self.problems if a <= last and first <= b]
        if problems:
            node["problem"] = problems[0]
        self.nodes.append(node)
        for value in values:
            self.producers.setdefault(value, id)

    def _typed(self, names: Iterable[str]) -> list[Json]:
        return [{"name": name, "type": self._type(name)} for name in names]

    def _type(self, name: str) -> str | None:
        found = self.types.get(name)
        if found is None:  # an input keeps its type, whatever is wrong with the graph
            found = next((b.type for b in self.graph.inputs if b.name.text == name), None)
        if found is None:
            return None
        text = self.type_texts.get(found)
        if text is None:
            text = self.type_texts[found] = str(found)
        return text

    # --- edges ------------------------------------------------------------------------------------

    def _use(self, id: str, index: int, operand: Name | Literal) -> None:
        """An edge to an operand from what makes it; there is none where nothing does."""
        if not isinstance(operand, Name):
            return
        name = operand.text
        if name not in self.producers:
            self._tensor(name)
        source = self.producers.get(name)
        if source is None or source == id:
            return
        edge = {"from": source, "to": id, "value": name, "type": self._type(name), "place": index}
        self.edges.append(edge)

    def _tensor(self, name: str) -> None:
        """A node for a named tensor, where it is read first."""
        item = self.file.tensors.get(name)
        if item is None or not isinstance(item.node, Declaration):
            return
        declaration = item.node
        position = self.file.position(item.start + declaration.name.span.start)
        value = {"name": name, "type": str(declaration.type)}
        self.nodes.append(
            {
                "id": f"tensor:{name}",
                "kind": declaration.kind,
                "name": name,
                "op": "",
                "lines": [position.line, position.line],
                "column": position.character,
                "args": [],
                "calls": [],
                "values": [value],
            }
        )
        self.types = {**self.types, name: declaration.type}
        self.producers[name] = f"tensor:{name}"

    # --- where things are -------------------------------------------------------------------------

    def _is_graph(self, graph: str) -> bool:
        return graph in self.file.graphs or graph in self.project.library_graphs

    def _lines(self, span: Span) -> list[int]:
        """The first and the last line of a part of the graph's text, from 0."""
        start = self.item.start
        ends = (span.start, max(span.start, span.end - 1))
        return [self.file.position(start + at).line for at in ends]


def _literals(operands: Iterable[Name | Literal]) -> list[str]:
    return [print_value(o.value) for o in operands if isinstance(o, Literal)]


def _named_graphs(s: Apply, is_graph: Any) -> list[str]:
    """Graphs that control flow may call: what its attributes name."""
    found: dict[str, None] = {}
    for attr in s.attrs:
        several = isinstance(attr.value, tuple) and not isinstance(attr.value, Ref)
        for value in attr.value if several else (attr.value,):
            if isinstance(value, Ref) and is_graph(value.name):
                found[value.name] = None
    return list(found)


def _problems(item: Item) -> list[tuple[int, int, str]]:
    """What is wrong in the graph: first line, last line, text."""
    found = []
    for d in [*item.syntax, *item.problems]:
        if d.span is not None:
            at = item.span(d.span)
            found.append((at.start.line, at.end.line, d.message))
    return found
