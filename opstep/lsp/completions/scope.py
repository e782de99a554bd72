"""What can be used where the cursor stands."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from opstep.api.catalogue import Entry
from opstep.lsp.completions.cursor import type_variables
from opstep.lsp.occurrences import op_named
from opstep.runtime.ir.graph import Apply, Binding, Declaration, Graph, Statement
from opstep.runtime.ir.printer import print_type_parameters
from opstep.runtime.ir.types import TensorType, TypeVariable

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item

_MOST_TEXT = 200_000  # characters in which names are looked for
_RESULTS = re.compile(r"^[ \t]*([A-Za-z_][\w, \t]*?)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE)


@dataclass
class Scope:
    """Names that mean something at the cursor.

    `values` are those of the graph that are defined above it, the nearest first; `types` has the
    types of these and of the named tensors, where they are known.
    """

    file: File
    item: Item | None
    values: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    complete: bool = True  # all statements above were looked at

    @classmethod
    def at(cls, file: File, item: Item | None, statement: int, most: int | None = None) -> Scope:
        """The scope of the statement that begins at an offset of the file. With `most`, only so
        many of the statements above it are looked at.
        """
        scope = cls(file, item)
        for name, declaration in file.environment.tensors.items():
            scope.types[name] = declaration.type
        if item is None:
            return scope
        node = item.node
        if isinstance(node, Graph):
            before = bisect_left(node.body, statement - item.start, key=lambda s: s.span.start)
            names = [b.name.text for b in node.inputs]
            first = 0 if most is None else max(0, before - most)
            above = (node.body[k] for k in range(first, before)) if first else node.body
            names += _defined(islice(above, before - first))
            scope.complete = first == 0
            scope.types.update((b.name.text, b.type) for b in node.inputs if b.type is not None)
        else:  # the head cannot be read: names alone, without their types
            above = item.text[: max(0, statement - item.start)]
            start = max(above.find("{") + 1, len(above) - _MOST_TEXT)
            found = _RESULTS.finditer(above, start)
            names = [name.strip() for match in found for name in match[1].split(",")]
        verified = item.verified
        if verified is not None:
            scope.types.update(verified.types)
        scope.values = names[::-1]
        return scope

    @cached_property
    def names_in_use(self) -> set[str]:
        """All names of values in the graph, also of those that are defined below."""
        node = self.item.node if self.item is not None else None
        return {*self.values, *(_defined(node.body) if isinstance(node, Graph) else ())}

    @property
    def variables(self) -> dict[str, TypeVariable]:
        """The type variables of the graph."""
        return type_variables(self.item) if self.item is not None else {}

    @property
    def tensors(self) -> dict[str, Declaration]:
        """The named tensors of the file."""
        return self.file.environment.tensors

    def graph_names(self) -> list[str]:
        """What can be called: the graphs of the file, then those of the library."""
        own = self.file.graphs
        return [*own, *(name for name in self.file.library.library_graphs if name not in own)]

    def graphs(self) -> Iterator[Graph]:
        """Those of `graph_names` whose heads can be read."""
        graphs_by_name = self.file.environment.graphs
        yield from (g for name in self.graph_names() if (g := graphs_by_name.get(name)) is not None)

    def graph(self, name: str) -> Graph:
        """The graph of that name; KeyError where there is none."""
        return self.file.environment.graphs[name]

    def entry(self, name: str) -> Entry | None:
        """The op or graph that a name calls."""
        return entry_named(self.file, name)


def _defined(statements: Iterable[Statement]) -> list[str]:
    """The names of the results of some statements."""
    return [b.name.text for s in statements if isinstance(s, Apply) for b in s.results]


def entry_named(file: File, name: str) -> Entry | None:
    """The op or graph that a name calls in a file."""
    return op_named(name) or file.environment.graphs.get(name)


def head(graph: Graph) -> str:
    """``name(x: f32[N]) -> f32[N]``"""
    gives = ", ".join(map(str, graph.results))
    name = graph.name.text + print_type_parameters(graph)
    return f"{name}({', '.join(map(shown, graph.inputs))})" + (f" -> {gives}" if gives else "")


def shown(binding: Binding) -> str:
    return f"{binding.name.text}: {binding.type}"
