"""What the items of a file are checked against: the ops, the file's graphs and named tensors, and
the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.declarations import check_declaration
from opstep.runtime.ir.graph import Declaration, Graph, Source
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.reporting import Reporter
from opstep.runtime.ir.shards import on_mesh
from opstep.runtime.ir.verified import Application

if TYPE_CHECKING:
    from opstep.lsp.item import Item


class Library(Protocol):
    """Has the graphs of the standard library."""

    @property
    def library_graphs(self) -> Mapping[str, Item]: ...


class Graphs(Mapping[str, Graph]):
    """The graphs that can be called, by name; each is parsed when it is first asked for."""

    def __init__(self, own: Mapping[str, Item], library: Library):
        self.own = own
        self.library = library

    def item(self, name: str) -> Item | None:
        """The item of a graph: the file's own goes before one of the library."""
        item = self.own.get(name)
        if item is None or item.signature is None:
            item = self.library.library_graphs.get(name)
        return item if item is not None and item.signature is not None else None

    def has(self, name: str) -> bool:
        """Whether a text says that there is a graph of that name; it may be broken."""
        return name in self.own or name in self.library.library_graphs

    def __getitem__(self, name: str) -> Graph:
        item = self.item(name)
        if item is None:
            raise KeyError(name)
        assert isinstance(item.signature, Graph)
        return item.signature

    def __iter__(self) -> Iterator[str]:
        yield from {**self.library.library_graphs, **self.own}

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
    """What the items of one file are checked against."""

    def __init__(
        self, graphs: Mapping[str, Item], tensors: Mapping[str, Item], library: Library, mesh: Mesh
    ):
        import opstep.kernels  # noqa: F401 - registers the ops

        self._items = tensors
        self.tensors: dict[str, Declaration] = {}
        self._sources: dict[str, Source | None] = {}
        self.graphs = Graphs(graphs, library)
        self.applier = Applier(
            {**CONTROL, **OPS}, self.graphs, Sources(self.graphs), self._sources, mesh
        )
        self.update_tensors()

    def update_tensors(self) -> None:
        """The named tensors as they are now."""
        self.tensors.clear()
        self._sources.clear()
        declared = {n: i.node for n, i in self._items.items() if isinstance(i.node, Declaration)}
        self.tensors.update(on_mesh(declared.items(), self.applier.mesh)[0])
        self._sources.update((n, self._items[n].source) for n in declared)

    def initialiser(
        self, declaration: Declaration, source: Source, reporter: Reporter
    ) -> Application | None:
        """The op that makes the first value of a declared tensor."""
        return check_declaration(declaration, source, self.applier, reporter)

    def forget_calls(self) -> None:
        """Signatures of graphs have changed: what was found out about calls is no longer so."""
        cache = self.applier.cache
        self.applier.unknown.clear()
        for key in [k for k, found in cache.items() if found.op is None or found.op.traits.host]:
            del cache[key]
