"""Text to syntax tree: recursive descent over tokens, one statement a line.

`cut` says where items begin: a fault in one never reaches into the next, and one in a statement not
into the next line. All errors of a file are reported in one go.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.diagnostics import Diagnostic, OpstepError, did_you_mean, in_order
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Binding,
    Comments,
    Graph,
    Item,
    Module,
    Name,
    Source,
    Span,
    Statement,
    TypeParameter,
)
from opstep.runtime.ir.items import parse_declaration, parse_mesh
from opstep.runtime.ir.lexer import LIKE_STATEMENT, Lexer, SyntaxFault, comment_text, cut
from opstep.runtime.ir.reading import read_source
from opstep.runtime.ir.statements import (
    comments_of,
    new_name,
    parse_statement,
    parse_type_parameters,
)
from opstep.runtime.ir.types import TensorType, TypeVariable
from opstep.runtime.ir.values import close_list, open_list, parse_type

ITEM_KEYWORDS = ("param", "state", "mesh", "graph")  # mesh is one only here
MOST_ERRORS = 1_000  # of a text; a binary would give one a line

_TRIVIA = re.compile(r"(?:[ \t\r\f\v]*(?:#[^\n]*)?\n)++").match
_COMMENT = re.compile(r"#[^\n]*")
_LIKE_BODY = re.compile(r"[ \t]*(?!(?:param|state|graph)\b|mesh[ \t]+[A-Za-z_])[A-Za-z_]").match
_LIKE_GRAPH = re.compile(r"\w+[ \t]+[\w.]+[ \t]*\([^#\n]*\{[ \t]*(?:#[^\n]*)?\r?\n", re.ASCII).match
_HEADER_END = re.compile(r"[^#\n]*\{[ \t]*(?:#[^\n]*)?\r?\n").match


def parse(text: str, path: str = "<text>") -> Module:
    """The syntax tree of a file. Raises OpstepError with all syntax errors of the text."""
    module, diagnostics = parse_with_diagnostics(text, path)
    if diagnostics:
        raise OpstepError(diagnostics)
    return module


def parse_with_diagnostics(text: str, path: str = "<text>") -> tuple[Module, list[Diagnostic]]:
    """What could be read of a text, and its errors: for tools that live with broken files."""
    reader = Reader(Source(text, path))
    items: list[Item] = []
    closing: tuple[str, ...] = ()
    separated = True
    with collector_paused(), suppress(TooManyErrors):
        for piece in cut(reader.text):
            reader.limit_to(piece.end)
            closing, separated = reader.items(piece.start, items, separated)
    found = reader.diagnostics
    if len(found) >= MOST_ERRORS:
        found.append(too_many(found[-1]))
    return Module(tuple(items), comments_of(closing), reader.source), list(in_order(found))


def too_many(last: Diagnostic) -> Diagnostic:
    """The note behind the last error that is reported."""
    message = f"there are more than {MOST_ERRORS} errors; the rest is not read"
    return Diagnostic("note", message, last.span, last.source)


def load(path: str | os.PathLike) -> Module:
    """The syntax tree of the file at `path`."""
    return parse(read_source(path), os.fspath(path))


class TooManyErrors(Exception):
    """Too many errors to be worth reading."""


@dataclass
class Head:
    """``graph name<T: float>(inputs) -> results {``, as much of it as could be read."""

    start: int
    name: Name | None
    type_parameters: list[TypeParameter]
    inputs: list[Binding]
    results: list[TensorType]
    results_span: Span
    brace: Span
    comments: Comments

    @property
    def variables(self) -> dict[str, TypeVariable]:
        """The type variables by name, for the lexer that reads the body."""
        return {p.name.text: p.variable for p in self.type_parameters}


@dataclass
class Closing:
    """How a body ends: the comments at its brace, and the offset behind it."""

    comments: Comments
    end: int


@dataclass
class Statements:
    """The statements of a body, as far as it was read: up to `position`.

    `comments` stand above what comes next. `first`: no statement stands before that.
    """

    position: int
    body: list[Statement] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    first: bool = True


class Reader:
    """Reads items of a text, from one offset up to a `limit`, which an item cannot cross."""

    def __init__(self, source: Source):
        text = source.text
        self.source = source
        self.text = text if text.endswith("\n") else text + "\n"
        self.lex = Lexer(Source(self.text, source.path))
        self.limit = self.lex.limit
        self.diagnostics: list[Diagnostic] = []

    def limit_to(self, limit: int) -> None:
        """From now on nothing behind `limit` is looked at, as if the text ended there."""
        self.limit = self.lex.limit = min(limit, len(self.text))

    def report(self, fault: SyntaxFault) -> None:
        size = len(self.source.text)
        span = Span(min(fault.span.start, size), min(fault.span.end, size))
        self.diagnostics.append(
            Diagnostic("error", fault.message, span, self.source, fault.hint, fault.notes)
        )
        if len(self.diagnostics) >= MOST_ERRORS:
            raise TooManyErrors

    def _next_line(self, position: int) -> int:
        """Where the line behind a position begins."""
        return self.text.find("\n", position, self.limit) + 1 or self.limit

    # --- items ------------------------------------------------------------------------------------

    def items(
        self, position: int, items: list[Item], separated: bool
    ) -> tuple[tuple[str, ...], bool]:
        """Reads all items from `position` to the limit.

        `separated`: what stands before is set apart from a graph, so that a blank line there is not
        kept. Returns the comments behind the last item, and that for what comes then.
        """
        lex = self.lex
        while True:
            lex.variables = {}
            above, position = self.begin(position)
            word = lex.value if lex.kind == "name" else ""
            if lex.kind == "end":
                return tidy(above, separated, last=True), separated
            separated = separated or word == "graph"
            item = None
            try:
                if word == "graph":
                    item, position = self._graph(position, tidy(above, separated))
                elif word == "mesh":
                    item, position = parse_mesh(lex, tidy(above, separated))
                elif word in ITEM_KEYWORDS:
                    item, position = parse_declaration(lex, tidy(above, separated))
                else:
                    fault = self._no_item(word)
                    if not _LIKE_GRAPH(self.text, lex.start, self.limit):
                        raise fault
                    self.report(fault)  # and read over it: its statements are not at fault
                    _, position = self._graph(position, ())
            except SyntaxFault as fault:
                self.report(fault)
                position = self.recover(position)
            if item is not None:
                items.append(item)
            separated = word == "graph"

    def begin(self, position: int) -> tuple[list[str], int]:
        """Stands on the first token behind blank lines and comment lines, which are returned."""
        if position == 0 and self.text.startswith("\ufeff"):
            position = 1
        above, position = self._trivia(position)
        self.lex.seek(position)
        return above, position

    def _no_item(self, word: str) -> SyntaxFault:
        lex = self.lex
        if lex.kind == "}":
            return SyntaxFault("this } closes nothing", lex.span)
        hint = did_you_mean(word, ITEM_KEYWORDS) if word else ""
        if not hint and LIKE_STATEMENT(self.text, lex.start):
            hint = "statements stand inside the braces of a graph"
        elif word in ("def", "fn", "func", "function"):
            hint = "did you mean graph?"
        elif lex.value == "//":
            hint = "comments begin with #"
        return lex.fault("param, state, mesh or graph", hint)

    def _trivia(self, position: int) -> tuple[list[str], int]:
        """Blank lines and comment lines from `position` on."""
        match = _TRIVIA(self.text, position, self.limit)
        if match is None:
            return [], position
        lines = []
        for line in match[0].split("\n")[:-1]:
            line = line.lstrip(" \t\r\f\v")
            lines.append((comment_text(line) or " ") if line else "")
        return lines, match.end()

    def recover(self, start: int) -> int:
        """Where to go on after a fault in what began at `start`: a later line."""
        text, lex = self.text, self.lex
        here = text.rfind("\n", 0, lex.start) + 1
        if lex.nesting and here > start:  # a list ran on into what may be the next statement
            position = min(here, self.limit)
        else:
            position = self._next_line(lex.start)
        if lex.nesting and _is_open(text[start:position]):
            while position < self.limit and not LIKE_STATEMENT(text, position):
                position = self._next_line(position)
        return position

    # --- graphs -----------------------------------------------------------------------------------

    def _graph(self, start: int, above: tuple[str, ...]) -> tuple[Graph | None, int]:
        head, position = self.head(above)
        if position is None:
            return None, self.recover(start)
        read = Statements(position)
        self.statements(read)
        closing, position = self.closing(read, head.brace)
        return graph_of(head, tuple(read.body), closing), position

    def head(self, above: tuple[str, ...]) -> tuple[Head, int | None]:
        """The head of the graph that the lexer stands at, and where its body begins: None where
        none is in sight.
        """
        lex = self.lex
        start = lex.start
        name, parameters, inputs, results = None, [], [], []
        results_span = brace = Span(start, start + 5)
        trailing = None
        lines = list(above)
        try:
            lex.advance()
            name = new_name(lex, "the name of the graph")
            if lex.kind == "<":
                self._type_parameters(parameters)
            self._inputs(name, inputs)
            if lex.kind == "->":
                results_span = self._results(results)
            if lex.kind != "{":
                expected = ", or {" if results else "-> and the types of the results, or {"
                raise lex.fault(expected)
            brace = lex.span
            results_span = results_span if results else brace
            lines += lex.inner
            lex.advance()
            if lex.kind == "comment":
                trailing = comment_text(lex.value)
                lex.advance()
            position = lex.end if lex.kind == "newline" else lex.start
        except SyntaxFault as fault:
            self.report(fault)
            position = self._body_after_fault()
        comments = comments_of(tuple(lines), trailing)
        head = Head(start, name, parameters, inputs, results, results_span, brace, comments)
        return head, position

    def _body_after_fault(self) -> int | None:
        """Where the body of a graph with a faulty header begins; None where none is in sight."""
        text = self.text
        position = text.rfind("\n", 0, self.lex.start) + 1
        while position < self.limit:
            match = _HEADER_END(text, position, self.limit)
            if match:
                return match.end()
            position = self._next_line(position)
            if LIKE_STATEMENT(text, position, self.limit):
                return position if _LIKE_BODY(text, position, self.limit) else None
            if not self.lex.nesting:
                return None
        return None

    def _type_parameters(self, parameters: list[TypeParameter]) -> None:
        """Adds what can be read of them, and lets types name them from here on."""
        try:
            parse_type_parameters(self.lex, parameters)
        finally:
            self.lex.variables = {p.name.text: p.variable for p in parameters}

    def _inputs(self, graph: Name, inputs: list[Binding]) -> None:
        lex = self.lex
        if lex.kind != "(":
            raise lex.fault(f"( after {graph.text}", "a graph without inputs has ()")
        opened = open_list(lex, "(")
        while lex.kind != ")":
            name = new_name(lex, "the name of an input")
            if lex.kind != ":":
                raise lex.fault(f": and the type of {name.text}", f"write {name.text}: f32[N]")
            lex.advance()
            start = lex.start
            t = parse_type(lex)
            inputs.append(Binding(name, t, Span(start, lex.previous_end)))
            if lex.kind != ",":
                break
            lex.advance()
        close_list(lex, ")", opened, ",")

    def _results(self, results: list) -> Span:
        lex = self.lex
        lex.advance()
        start = lex.start
        results.append(parse_type(lex))
        while lex.kind == ",":
            lex.advance()
            results.append(parse_type(lex))
        return Span(start, lex.previous_end)

    # --- statements -------------------------------------------------------------------------------

    def statements(self, read: Statements, most: int = sys.maxsize) -> bool:
        """Reads on, up to `most` statements; whether the body is at its end there."""
        lex, body = self.lex, read.body
        until = len(body) + most
        while len(body) < until:
            more, read.position = self._trivia(read.position)
            if more:
                read.comments += more
                continue
            lex.seek(read.position)
            if lex.kind in ("}", "end") or (
                lex.value in ITEM_KEYWORDS and lex.peek()[0] in ("name", "quoted")
            ):
                return True
            above = tidy(read.comments, first=read.first)
            try:
                statement, read.position = parse_statement(lex, above)
                body.append(statement)
            except SyntaxFault as fault:
                self.report(fault)
                read.position = self.recover(read.position)
            read.comments, read.first = [], False
        return False

    def closing(self, read: Statements, brace: Span) -> tuple[Closing, int]:
        """How a body ends behind the statements that were read to its end, and where to go on."""
        lex = self.lex
        if lex.kind != "}":
            self.report(SyntaxFault("this { is not closed", brace, "graphs end with }"))
            return Closing(NO_COMMENTS, lex.previous_end), read.position
        above = tidy(read.comments, first=read.first, last=True)
        end = lex.end
        lex.advance()
        trailing = None
        if lex.kind == "comment":
            trailing = comment_text(lex.value)
            lex.advance()
        if lex.kind not in ("newline", "end"):
            self.report(lex.fault("the end of the line after }"))
        return Closing(Comments(above, trailing), end), self._next_line(lex.start)


def graph_of(head: Head, body, closing: Closing) -> Graph | None:
    """A graph from its parts; None where it has no name."""
    if head.name is None:
        return None
    return Graph(
        head.name, tuple(head.inputs), tuple(head.results), body, head.comments, closing.comments,
        Span(head.start, closing.end), head.results_span, tuple(head.type_parameters),
    )  # fmt: skip


def _is_open(text: str) -> bool:
    """Whether more brackets are opened than closed, comments aside."""
    code = _COMMENT.sub("", text)
    return sum(map(code.count, "([")) > sum(map(code.count, ")]"))


def tidy(lines: list[str], first: bool, last: bool = False) -> tuple[str, ...]:
    """Without blank lines at the start of a block or at its end, and at most one in a row."""
    if not lines:
        return ()
    result: list[str] = []
    for line in lines:
        if line or (result[-1] if result else not first):
            result.append(line)
    while last and result and not result[-1]:
        result.pop()
    return tuple(result)
