"""One graph or declaration of a file: parsed and verified by itself, and kept until it changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lsprotocol import types

from opstep.lsp.graph_check import GraphCheck
from opstep.lsp.graph_text import GraphText
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.cutting import Piece
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import NO_COMMENTS, Declaration, Graph, Source, Span
from opstep.runtime.ir.reading import Closing, Reader, TooManyErrors, graph_of
from opstep.runtime.ir.verified import Application, VerifiedGraph

if TYPE_CHECKING:
    from opstep.lsp.file import File

LONG = 500_000  # characters; an item that is longer is read in slices, and not at once when asked


class ItemSource(Source):
    """The text of an item alone: spans of its node count from its beginning."""

    def __init__(self, item: Item, text: str):
        super().__init__(text, item.file.path)
        self.item = item

    def replace(self, start: int, end: int, new: str) -> None:
        self.text = self.text[:start] + new + self.text[end:]
        self._starts = None


class Summary(NamedTuple):
    """What the file must know of an item. `tensors`: those named tensors that a graph names."""

    messages: list[Diagnostic]
    broken: bool
    name: tuple[bool, str] | None  # whether it is a graph; None where nothing could be read
    callees: dict[str, int]
    tensors: set[str]


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
        self.behind_name = piece.behind_name - piece.start
        self.source = ItemSource(self, file.text[piece.start : piece.end])
        self.graph_text = GraphText(self.source) if piece.kind == "graph" else None
        self.graph_check = GraphCheck(self.graph_text) if self.graph_text else None
        self.summary: Summary | None = None  # once it is checked
        self._steps: Iterator[None] | None = None  # that read the graph
        self._declaration: Declaration | None = None
        self._syntax: list[Diagnostic] | None = None  # of what is no graph; None: not read yet
        self._initialiser: Application | None = None
        self._problems: list[Diagnostic] | None = None  # likewise

    def __repr__(self) -> str:
        return f"<{self.kind or 'text'} {self.name} at {self.start}>"

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def end(self) -> int:
        return self.start + len(self.source.text)

    # --- what the parser says ---------------------------------------------------------------------

    @property
    def node(self) -> Graph | Declaration | None:
        """What could be read of it; None where that is nothing, and while a very long graph is
        still being read.
        """
        if not self._can_read():
            return None
        self._read_all()
        return self.graph_text.node if self.graph_text is not None else self._declaration

    @property
    def syntax(self) -> list[Diagnostic]:
        """Its syntax errors."""
        self._read_all()
        return self.graph_text.syntax if self.graph_text is not None else self._syntax or []

    @property
    def comment(self) -> str:
        """The comment above it, without its signs."""
        node = self.node
        lines = [line.strip() for line in node.comments.above] if node is not None else []
        while "" in lines:  # what touches the item
            del lines[: lines.index("") + 1]
        return "\n".join(lines)

    @property
    def signature(self) -> Graph | Declaration | None:
        """As much of `node` as others see: of a graph that is not read yet, the head."""
        text = self.graph_text
        if text is None or text.done:
            return self.node
        if text.head is None:
            next(self._reading(), None)
        if text.head is None or text.done:
            return text.node
        return graph_of(text.head, (), Closing(NO_COMMENTS, text.head.brace.end))

    def _can_read(self) -> bool:
        text = self.graph_text
        return text is None or text.done or len(self.text) <= LONG

    def _read_all(self) -> None:
        if not self.is_read:
            with collector_paused():
                for _ in self._reading():
                    pass

    @property
    def is_read(self) -> bool:
        """Whether the parser has been through it."""
        return self.graph_text.done if self.graph_text is not None else self._syntax is not None

    def _reading(self) -> Iterator[None]:
        """Reads it, where that has not been done, and yields now and then. It goes on where it was
        left.
        """
        if self.graph_text is not None:
            if self._steps is None:
                self._steps = self.graph_text.steps()
            for _ in self._steps:  # yield from would close it where this is left early
                yield
        elif self._syntax is None:
            reader, items = Reader(self.source), []
            with suppress(TooManyErrors):
                reader.items(0, items, True)
            self._declaration = next((i for i in items if isinstance(i, Declaration)), None)
            self._syntax = reader.diagnostics

    # --- what the verifier says -------------------------------------------------------------------

    @property
    def verified(self) -> VerifiedGraph | None:
        """The types in it, as far as they are known; None where it is no graph."""
        if not self._can_read():
            return None
        self._check_all()
        return self.graph_check.verified if self.graph_check is not None else None

    @property
    def initialiser(self) -> Application | None:
        """What gives a declared tensor its first value."""
        self._check_all()
        return self._initialiser

    @property
    def problems(self) -> list[Diagnostic]:
        """What the verifier finds wrong in it."""
        self._check_all()
        return self.graph_check.problems if self.graph_check is not None else self._problems or []

    @property
    def callees(self) -> dict[str, int]:
        """The graphs that it calls, and how often, in the order of the first time; under "" how
        often it applies anything else.
        """
        found: dict[str, int] = {"": 0}
        graphs = self.file.environment.graphs
        for block in self.graph_text.blocks if self.graph_text is not None else ():
            for name, count in block.callees.items():
                name = name if graphs.has(name) else ""
                found[name] = found.get(name, 0) + count
        return found

    @property
    def uses(self) -> set[str]:
        """All values and named tensors that are read in it, or updated."""
        blocks = self.graph_text.blocks if self.graph_text is not None else ()
        return set().union(*[block.uses for block in blocks])

    @property
    def is_ready(self) -> bool:
        """Whether all that can be found out is known."""
        if self.graph_check is not None and self.graph_text is not None:
            return self.graph_text.done and (self.graph_check.done or self.graph_text.node is None)
        return self._problems is not None

    def steps(self) -> Iterator[None]:
        """Reads and checks what is not known yet, and yields now and then."""
        yield from self._reading()
        environment = self.file.environment
        if self.graph_check is not None:
            node = self.graph_text.node if self.graph_text is not None else None
            if not self.graph_check.done and node is not None:
                yield from self.graph_check.steps(node, environment.tensors, environment.applier)
        elif self._problems is None:
            self._problems = []
            if self._declaration is not None:
                self._initialiser, self._problems = environment.declaration(
                    self._declaration, self.source
                )

    def _check_all(self) -> None:
        if not self.is_ready:
            with collector_paused():
                for _ in self.steps():
                    pass

    def forget_verified(self) -> None:
        """Makes it be verified again: what it uses has changed."""
        self._initialiser = self._problems = self.summary = None
        if self.graph_check is not None:
            self.graph_check.forget()

    @property
    def has_problems(self) -> bool:
        """Whether the verifier has found something wrong."""
        if self.graph_check is not None:
            return bool(self.graph_check.done and self.graph_check.problems)
        return bool(self._problems)

    # --- places and changes -----------------------------------------------------------------------

    def span(self, span: Span) -> types.Range:
        """A span of its node in the file."""
        return self.file.range(self.start + span.start, self.start + span.end)

    def replace(self, start: int, end: int, new: str) -> None:
        """Puts `new` in place of a part of its text, which leaves where it begins and ends."""
        self.source.replace(start, end, new)
        text, check = self.graph_text, self.graph_check
        if text is None or check is None or not text.done or not text.edit(start, end, len(new)):
            self.graph_text = GraphText(self.source) if self.kind == "graph" else None
            self.graph_check = GraphCheck(self.graph_text) if self.graph_text else None
            self._syntax = self._steps = None
        else:
            check.done = False
        self._initialiser = self._problems = self.summary = None
