"""One text of the language, cut into items: an edit makes those anew that it touches.

Items are checked against the ops, the file's graphs and named tensors, and the standard library.
Offsets are characters of the text. Positions are an editor's: lines, and UTF-16 units in a line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from lsprotocol import types

from opstep.lsp.item import Item
from opstep.lsp.lines import Lines
from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.declarations import check_declaration
from opstep.runtime.ir.diagnostics import Reporter
from opstep.runtime.ir.graph import Declaration, Graph, MeshDeclaration, Source, Span
from opstep.runtime.ir.lexer import Piece, cut
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.op import OPS
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


_Key = tuple[bool, str]  # whether it is a graph, and its name
_Interface = tuple[Span | None, object, object]


class File:
    """A text, open in an editor or read from disk.

    `version` is the editor's; None for a file from disk. `path` is what messages show. `library`
    has the graphs that can be called besides its own.
    """

    def __init__(
        self, library: Library, uri: str, path: str, text: str, version: int | None = None
    ):
        self.library = library
        self.uri = uri
        self.path = path
        self.version = version
        self.lines = Lines(text)
        self.items = [Item(self, p, text[p.start : p.end]) for p in cut(text)]
        self.graphs: dict[str, Item] = {}
        self.tensors: dict[str, Item] = {}
        self._environment: Environment | None = None
        self._index()

    @property
    def text(self) -> str:
        return self.lines.text

    # --- changes ----------------------------------------------------------------------------------

    def edit(
        self, changes: Sequence[types.TextDocumentContentChangeEvent], version: int | None
    ) -> None:
        """Takes over an editor's changes, one after the other."""
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = map(self.offset, (change.range.start, change.range.end))
                self.replace(min(start, end), max(start, end), change.text)
            else:
                self.replace(0, len(self.text), change.text)
        self.version = version

    def replace(self, start: int, end: int, new: str) -> None:
        """Puts `new` in place of a part of the text."""
        items = self.items
        moved = len(new) - (end - start)
        # With the neighbours: an edit at a border may join an item with one of them.
        first = max(0, self._number(start) - 1) if items else 0
        last = min(len(items), self._number(end) + 2) if items else 0
        begin = items[first].start if items else 0
        stop = items[last - 1].end if items else 0
        replaced = items[first:last]
        before, mesh = _interfaces(replaced), self.mesh
        self.lines.replace(start, end, new)
        pieces = [piece.moved(begin) for piece in cut(self.text[begin : stop + moved])]
        rebuilt = self._items(pieces, replaced)
        for item in items[last:]:
            item.start += moved
        items[first:last] = rebuilt
        self._index()
        if self.mesh != mesh:
            self._environment = None
            for item in self.items:
                item.forget_verified()
        self._changed(before, rebuilt)

    def _items(self, pieces: list[Piece], replaced: list[Item]) -> list[Item]:
        """The items of some pieces: those that were there before, where they say the same or have
        the name.
        """
        result: dict[Piece, Item] = {}
        for rewritten in (False, True):
            for piece in pieces:
                text = self.text[piece.start : piece.end]
                named = (i for i in replaced if (i.kind, i.name) == (piece.kind, piece.name))
                item = next((i for i in named if rewritten or i.text == text), None)
                if piece not in result and item is not None:
                    replaced.remove(item)
                    result[piece] = item
                    item.start = piece.start
                    if rewritten:
                        item.rewrite(piece, text)
        return [result.get(p) or Item(self, p, self.text[p.start : p.end]) for p in pieces]

    def _changed(self, before: dict[_Key, _Interface], current: list[Item]) -> None:
        """Forgets what was found out about items that use what has changed: `before` are the
        interfaces of items that were where `current` are now.
        """
        after = _interfaces(current)
        names, moved = set(), set()  # of what is seen in another way, of what is elsewhere
        for key in before.keys() | after.keys():
            old, now = before.get(key), after.get(key)
            if old != now:
                same = old is not None and now is not None and old[1:] == now[1:]
                (moved if same else names).add(key[1])
        if self._environment is not None and (names or moved):
            self._environment.forget_calls()
            self._environment.update_tensors()
        if names or moved:
            come_or_gone = before.keys() != after.keys()
            for item in self.items:
                text = item.text
                if any(name in text for name in names) or (
                    item.may_have_problems and (come_or_gone or any(name in text for name in moved))
                ):
                    item.forget_verified()

    def _index(self) -> None:
        self.graphs.clear()
        self.tensors.clear()
        for item in self.items:
            if item.kind == "graph":
                self.graphs.setdefault(item.name, item)
            elif item.kind in ("param", "state"):
                self.tensors.setdefault(item.name, item)

    # --- what is in it ----------------------------------------------------------------------------

    @property
    def environment(self) -> Environment:
        """What its items are checked against."""
        if self._environment is None:
            self._environment = Environment(
                self.graphs, self.tensors, self.library, self.mesh or Mesh()
            )
        return self._environment

    @property
    def mesh(self) -> Mesh | None:
        """The first that is declared."""
        meshes = (i.node for i in self.items if i.kind == "mesh")
        return next((node.mesh for node in meshes if isinstance(node, MeshDeclaration)), None)

    def item_at(self, offset: int) -> Item | None:
        """The item that holds an offset; the end of the text is the last one's."""
        return self.items[self._number(offset)] if self.items else None

    def _number(self, offset: int) -> int:
        return max(0, bisect_right(self.items, offset, key=lambda item: item.start) - 1)

    # --- places -----------------------------------------------------------------------------------

    def offset(self, position: types.Position) -> int:
        return self.lines.offset(position)

    def position(self, offset: int) -> types.Position:
        return self.lines.position(offset)

    def range(self, start: int, end: int) -> types.Range:
        return self.lines.range(start, end)


def _interfaces(items: list[Item]) -> dict[_Key, _Interface]:
    """What others see of items, by kind and name: where the name is, and the rest."""
    found: dict[_Key, _Interface] = {}
    for item in items:
        if item.kind and item.kind != "mesh":
            node = item.signature
            key = item.kind == "graph", item.name
            if isinstance(node, Graph):
                inputs = [(b.name.text, b.type) for b in node.inputs]
                found.setdefault(key, (node.name.span, inputs, node.results))
            elif isinstance(node, Declaration):
                found.setdefault(key, (node.name.span, node.kind, (node.type, node.sharding)))
            else:  # its head is broken: that there is such a name is known to messages
                found.setdefault(key, (None, None, None))
    return found
