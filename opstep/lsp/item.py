"""One graph or declaration of a file: parsed and verified by itself, and kept until it changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lsprotocol import types

from opstep.runtime.ir.body import BodyChecker
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.diagnostics import Diagnostic, Reporter, TooMany
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Declaration,
    Graph,
    MeshDeclaration,
    Source,
    Span,
)
from opstep.runtime.ir.lexer import Piece
from opstep.runtime.ir.parser import (
    Closing,
    Head,
    Reader,
    Statements,
    TooManyErrors,
    graph_of,
    tidy,
)
from opstep.runtime.ir.verified import Application, VerifiedGraph
from opstep.runtime.ir.verify import callees_of

if TYPE_CHECKING:
    from opstep.lsp.file import File

LONG = 500_000  # characters; an item that is longer is read in slices, and not at once when asked
SLICE = 256  # statements that are read or checked before whoever waits may come in between


class ItemSource(Source):
    """The text of an item alone: spans of its node count from its beginning."""

    def __init__(self, item: Item, text: str):
        super().__init__(text, item.file.path)
        self.item = item

    def rewrite(self, text: str) -> None:
        """Another text: messages of other items that point here still do."""
        self.text = text
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

    def __init__(self, file: File, piece: Piece, text: str):
        self.file = file
        self.kind = piece.kind  # "param", "state", "mesh", "graph" or ""
        self.name = piece.name
        self.source = ItemSource(self, text)
        self.start = piece.start
        self.after_name = piece.after_name - piece.start
        self._begin(None, None)

    def rewrite(self, piece: Piece, text: str) -> None:
        """Stands for another piece of its kind and name, with another text."""
        head, unchanged = self._head, self._unchanged(_common(self.text, text))
        self.start = piece.start
        self.after_name = piece.after_name - piece.start
        self.source.rewrite(text)
        self._begin(head if unchanged else None, unchanged)

    def _begin(self, head: Head | None, unchanged: Statements | None) -> None:
        """Makes it be read, behind what is `unchanged` of a graph, and verified."""
        self._head = head  # of a graph
        self._node: Graph | Declaration | MeshDeclaration | None = None
        self._syntax: list[Diagnostic] | None = None  # None: not read yet
        self._read_steps = self._read(unchanged)
        self.forget_verified()

    def _unchanged(self, same: int) -> Statements | None:
        """The statements of a graph that are read as they were while its first `same` characters
        stay: those before the first fault, up to the end of a line.
        """
        node = self._node
        if not isinstance(node, Graph):
            return None
        faults = [d.span.start for d in self._syntax or () if d.span is not None]
        limit = min([same, *faults])
        count = bisect_right(node.body, limit, key=lambda s: s.span.end)
        while count:
            end = node.body[count - 1].span.end
            line_end = self.text.find("\n", end, limit)
            rest = self.text[end:line_end].strip()
            if line_end >= 0 and (not rest or rest.startswith("#")):
                return Statements(line_end + 1, list(node.body[:count]), first=False)
            count -= 1
        return None

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
    def node(self) -> Graph | Declaration | MeshDeclaration | None:
        """What could be read of it; None where that is nothing, and while a very long graph is
        still being read.
        """
        if not self._can_read():
            return None
        self._read_all()
        return self._node

    @property
    def syntax(self) -> list[Diagnostic]:
        """Its syntax errors."""
        self._read_all()
        return self._syntax or []

    @property
    def comment(self) -> str:
        """The comment above it, without its signs."""
        node = self.node
        lines = [line.strip() for line in node.comments.above] if node is not None else []
        while "" in lines:  # what touches the item
            del lines[: lines.index("") + 1]
        return "\n".join(lines)

    @property
    def signature(self) -> Graph | Declaration | MeshDeclaration | None:
        """As much of `node` as others see: of a graph that is not read yet, the head."""
        if self.kind == "graph" and self._head is None:
            next(self._read_steps, None)
        if self._head is None or self.is_read:
            return self.node
        return graph_of(self._head, (), Closing(NO_COMMENTS, self._head.brace.end))

    def _can_read(self) -> bool:
        return self.kind != "graph" or self.is_read or len(self.text) <= LONG

    def _read_all(self) -> None:
        if not self.is_read:
            with collector_paused():
                for _ in self._read_steps:
                    pass

    @property
    def is_read(self) -> bool:
        """Whether the parser has been through it."""
        return self._syntax is not None

    def _read(self, unchanged: Statements | None) -> Iterator[None]:
        """Reads it, behind what is `unchanged` of a graph, and yields now and then."""
        reader = Reader(self.source)
        with suppress(TooManyErrors):
            if self.kind == "graph":
                yield from self._read_graph(reader, unchanged)
            else:
                items = []
                reader.items(0, items, True)
                self._node = next((i for i in items if not isinstance(i, Graph)), None)
        self._syntax = reader.diagnostics

    def _read_graph(self, reader: Reader, read: Statements | None) -> Iterator[None]:
        head = self._head
        if head is None or read is None:
            above, start = reader.begin(0)
            head, position = reader.head(tidy(above, True))
            if position is None:
                reader.items(reader.recover(start), [], True)
                return
            self._head, read = head, Statements(position)
            yield
        reader.lex.variables = head.variables
        while not reader.statements(read, SLICE):
            yield
        closing, position = reader.closing(read, head.brace)
        self._node = graph_of(head, tuple(read.body), closing)
        reader.items(position, [], True)  # what is wrong behind it

    # --- what the verifier says -------------------------------------------------------------------

    @property
    def verified(self) -> VerifiedGraph | None:
        """The types in it, as far as they are known; None where it is not a graph."""
        if not self._can_read():
            return None
        self._check_all()
        return self._verified

    @property
    def initialiser(self) -> Application | None:
        """What gives a declared tensor its first value."""
        self._check_all()
        return self._initialiser

    @property
    def problems(self) -> list[Diagnostic]:
        """What the verifier finds wrong in it."""
        self._check_all()
        return self._problems or []

    @property
    def callees(self) -> dict[str, int]:
        """The graphs that it calls, and how often, in the order of the first time; under "" how
        often it applies anything else.
        """
        found: dict[str, int] = {"": 0}
        graphs = self.file.environment.graphs
        if isinstance(self.node, Graph):
            for name, count in callees_of(self.node).items():
                name = name if graphs.has(name) else ""
                found[name] = found.get(name, 0) + count
        return found

    @property
    def is_checked(self) -> bool:
        """Whether the verifier has been through it."""
        return self._problems is not None

    def steps(self) -> Iterator[None]:
        """Reads and checks what is not known yet, and yields now and then. Where it is left before
        its end, the next one goes on from there.
        """
        for _ in self._read_steps:  # yield from would close it where this is left early
            yield
        for _ in self._check_steps:
            yield

    def _check(self) -> Iterator[None]:
        node, environment, reporter = self._node, self.file.environment, Reporter()
        if isinstance(node, Declaration):
            self._initialiser = environment.initialiser(node, self.source, reporter)
        elif isinstance(node, Graph):
            checker = BodyChecker(
                node, self.source, environment.tensors, environment.applier, reporter
            )
            applications: list[Application | None] = []
            with suppress(TooMany):
                checker.check_head()
                for k in range(0, len(node.body), SLICE):
                    applications += checker.check_statements(node.body[k : k + SLICE])
                    yield
                checker.check_returned()
            self._verified = checker.verified(applications)
        self._problems = reporter.diagnostics

    def _check_all(self) -> None:
        if not self.is_checked:
            with collector_paused():
                for _ in self.steps():
                    pass

    def forget_verified(self) -> None:
        """Makes it be verified again: what it uses has changed."""
        self.summary: Summary | None = None  # once it is checked
        self._verified: VerifiedGraph | None = None
        self._initialiser: Application | None = None
        self._problems: list[Diagnostic] | None = None
        self._check_steps = self._check()

    @property
    def may_have_problems(self) -> bool:
        """Whether the verifier has found something wrong, or is not through."""
        return self._problems is None or bool(self._problems)

    # --- places -----------------------------------------------------------------------------------

    def span(self, span: Span) -> types.Range:
        """A span of its node in the file."""
        return self.file.range(self.start + span.start, self.start + span.end)


def _common(before: str, text: str) -> int:
    """How many characters two texts share at the start."""
    low, high = 0, min(len(before), len(text))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
