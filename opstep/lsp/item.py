"""One graph or declaration of a file: parsed and verified by itself, and kept until it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from opstep.runtime.ir.cutting import Piece
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Declaration, Graph, Source, Span
from opstep.runtime.ir.parser import parse_with_diagnostics
from opstep.runtime.ir.verified import Application, VerifiedGraph

if TYPE_CHECKING:
    from opstep.lsp.file import File


class ItemSource(Source):
    """The text of an item alone: spans of its node count from its beginning."""

    def __init__(self, item: Item):
        super().__init__(item.text, item.file.path)
        self.item = item


class Item:
    """A part of a file's text: a graph or declaration, the comments above it, what follows it.

    What stands before all of these is an item as well, of kind "" and without a node. `start`: its
    offset in the file, which moves as the text above it changes. Offsets in `node`, `verified` and
    messages count from there.
    """

    def __init__(self, file: File, piece: Piece):
        self.file = file
        self.start = piece.start
        self.kind = piece.kind  # "param", "state", "graph" or ""
        self.name = piece.name
        self.text = file.text[piece.start : piece.end]
        self.source = ItemSource(self)
        self._node: Graph | Declaration | None = None
        self._syntax: list[Diagnostic] | None = None  # None: not parsed yet
        self._verified: VerifiedGraph | None = None
        self._initialiser: Application | None = None
        self._problems: list[Diagnostic] | None = None  # None: not verified yet

    def __repr__(self) -> str:
        return f"<{self.kind or 'text'} {self.name} at {self.start}>"

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    # --- what the parser says ---------------------------------------------------------------------

    @property
    def node(self) -> Graph | Declaration | None:
        """What could be read of it; None where that is nothing."""
        self._parse()
        return self._node

    @property
    def syntax(self) -> list[Diagnostic]:
        """Its syntax errors."""
        return self._parse()

    @property
    def comment(self) -> str:
        """The comment above it, without its signs."""
        node = self.node
        lines = [line.strip() for line in node.comments.above] if node is not None else []
        while lines and not lines[0]:
            del lines[0]
        kept = lines[lines.index("") + 1 :] if "" in lines else lines  # what touches the item
        return "\n".join(kept)

    def _parse(self) -> list[Diagnostic]:
        if self._syntax is None:
            module, found = parse_with_diagnostics(self.text, self.file.path)
            self._node = module.items[0] if module.items else None
            self._syntax = [_moved(d, self.source) for d in found]
        return self._syntax

    # --- what the verifier says -------------------------------------------------------------------

    @property
    def verified(self) -> VerifiedGraph | None:
        """The types in it, as far as they are known; None where it is no graph."""
        self._verify()
        return self._verified

    @property
    def initialiser(self) -> Application | None:
        """What gives a declared tensor its first value."""
        self._verify()
        return self._initialiser

    @property
    def problems(self) -> list[Diagnostic]:
        """What the verifier finds wrong in it."""
        return self._verify()

    def _verify(self) -> list[Diagnostic]:
        if self._problems is None:
            node, environment = self.node, self.file.environment
            self._problems = []
            if isinstance(node, Graph):
                self._verified, self._problems = environment.graph(node, self.source)
            elif isinstance(node, Declaration):
                self._initialiser, self._problems = environment.declaration(node, self.source)
        return self._problems

    def forget_verified(self) -> None:
        """Makes it be verified again: what it uses has changed."""
        self._verified = self._initialiser = self._problems = None

    # --- places -----------------------------------------------------------------------------------

    def span(self, span: Span) -> types.Range:
        """A span of its node in the file."""
        return self.file.range(self.start + span.start, self.start + span.end)


def _moved(d: Diagnostic, source: Source) -> Diagnostic:
    return Diagnostic(d.severity, d.message, d.span, source, d.hint, d.notes)
