"""What the items of a file are checked against: the ops, the file's graphs and named tensors, and
the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.declarations import check_declaration
from opstep.runtime.ir.graph import Declaration, Graph, Source
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.reporting import Reporter
from opstep.runtime.ir.verified import Application

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.item import Item


class Graphs(Mapping[str, Graph]):
    """The graphs that can be called, by name; each is parsed when it is first asked for."""

    def __init__(self, file: File):
        self.file = file

    def item(self, name: str) -> Item | None:
        """The item of a graph: the file's own goes before one of the library."""
        item = self.file.graphs.get(name)
        if item is None or item.signature is None:
            item = self.file.project.library_graphs.get(name)
        return item if item is not None and item.signature is not None else None

    def has(self, name: str) -> bool:
        """Whether a text says that there is a graph of that name; it may be broken."""
        return name in self.file.graphs or name in self.file.project.library_graphs

    def __getitem__(self, name: str) -> Graph:
        item = self.item(name)
        if item is None:
            raise KeyError(name)
        assert isinstance(item.signature, Graph)
        return item.signature

    def __iter__(self) -> Iterator[str]:
        yield from {**self.file.project.library_graphs, **self.file.graphs}

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Sources(Mapping[str, "Source | None"]):
    """The text of each graph."""

    def __init__(self, graphs: Graphs):
        self.graphs = graphs

    def __getitem__(self, name: str) -> Source:
        item = self.graphs.item(name)
        if item is None:
            raise KeyError(name)
        return item.source

    def __iter__(self) -> Iterator[str]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)


class Environment:
    """Of one file."""

    def __init__(self, file: File):
        import opstep.kernels  # noqa: F401 - registers the ops

        self.file = file
        self.tensors: dict[str, Declaration] = {}
        self._sources: dict[str, Source | None] = {}
        self.graphs = Graphs(file)
        self.applier = Applier({**CONTROL, **OPS}, self.graphs, Sources(self.graphs), self._sources)
        self.take_tensors()

    def take_tensors(self) -> None:
        """The named tensors as they are now."""
        self.tensors.clear()
        self._sources.clear()
        for name, item in self.file.tensors.items():
            if isinstance(item.node, Declaration):
                self.tensors[name] = item.node
                self._sources[name] = item.source

    def initialiser(
        self, declaration: Declaration, source: Source, reporter: Reporter
    ) -> Application | None:
        """The op that makes the first value of a declared tensor."""
        return check_declaration(declaration, source, self.applier, reporter)

    def forget_calls(self) -> None:
        """Signatures of graphs have changed: what was found out about calls is no longer so."""
        cache = self.applier.cache
        self.applier.unknown.clear()
        for key in [k for k, found in cache.items() if found.op is None or found.op.host]:
            del cache[key]
