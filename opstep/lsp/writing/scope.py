"""What can be used where the cursor stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opstep.catalogue import Entry
from opstep.lsp.occurrences import op_named
from opstep.runtime.ir.graph import Apply, Binding, Declaration, Graph
from opstep.runtime.ir.types import TensorType

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item

_RESULTS = re.compile(r"^[ \t]*([A-Za-z_][\w, \t]*?)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE)


@dataclass
class Scope:
    """Names that mean something at the cursor.

    `values` are those of the graph that are defined above it, the nearest first; `types` has the
    types of these and of the named tensors, where they are known. `taken` are all names of values
    in the graph, also of those below.
    """

    file: File
    item: Item | None
    values: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def at(cls, file: File, item: Item | None, statement: int) -> Scope:
        """The scope of the statement that begins at an offset of the file."""
        scope = cls(file, item)
        for name, declaration in file.environment.tensors.items():
            scope.types[name] = declaration.type
        if item is None:
            return scope
        node = item.node
        if isinstance(node, Graph):
            scope._read(node, statement - item.start)
        else:  # the head cannot be read: names alone, without their types
            above = item.text[: max(0, statement - item.start)]
            for match in _RESULTS.finditer(above, above.find("{") + 1):
                scope._define([name.strip() for name in match[1].split(",")])
        verified = item.verified
        if verified is not None:
            scope.types.update(verified.types)
        scope.values.reverse()
        return scope

    def _read(self, graph: Graph, before: int) -> None:
        for binding in graph.inputs:
            self._define([binding.name.text])
            if binding.type is not None:
                self.types[binding.name.text] = binding.type
        for s in graph.body:
            if isinstance(s, Apply):
                names = [b.name.text for b in s.results]
                if s.span.start < before:
                    self._define(names)
                else:
                    self.taken.update(names)

    def _define(self, names: list[str]) -> None:
        self.values += names
        self.taken.update(names)

    @property
    def tensors(self) -> dict[str, Declaration]:
        """The named tensors of the file."""
        return self.file.environment.tensors

    def graphs(self) -> Iterator[Graph]:
        """What can be called: the graphs of the file, then those of the library."""
        known, own = self.file.environment.graphs, self.file.graphs
        names = [*own, *(name for name in self.file.project.library_graphs if name not in own)]
        yield from (known[name] for name in names if name in known)

    def graph(self, name: str) -> Graph:
        """The graph of that name; KeyError where there is none."""
        return self.file.environment.graphs[name]

    def entry(self, name: str) -> Entry | None:
        """The op or graph that a name calls."""
        return entry_named(self.file, name)


def entry_named(file: File, name: str) -> Entry | None:
    """The op or graph that a name calls in a file."""
    return op_named(name) or file.environment.graphs.get(name)


def head(graph: Graph) -> str:
    """``name(x: f32[N]) -> f32[N]``"""
    gives = ", ".join(map(str, graph.results))
    return f"{graph.name.text}({', '.join(map(shown, graph.inputs))})" + (
        f" -> {gives}" if gives else ""
    )


def shown(binding: Binding) -> str:
    return f"{binding.name.text}: {binding.type}"
