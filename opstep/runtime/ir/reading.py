"""Items from text: recursive descent over tokens, one statement a line.

A fault inside a statement is reported and reading goes on at the next line.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field

from opstep.runtime.ir.diagnostics import Diagnostic, Note, did_you_mean
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Binding,
    Comments,
    Declaration,
    Graph,
    Item,
    Literal,
    MeshAxis,
    MeshDeclaration,
    Name,
    Sharding,
    Source,
    Span,
    Statement,
    TypeParameter,
)
from opstep.runtime.ir.lexer import (
    CONSTANTS,
    LIKE_STATEMENT,
    Lexer,
    SyntaxFault,
    comment_text,
    integer,
    quote_name,
)
from opstep.runtime.ir.mesh import MOST_RANKS
from opstep.runtime.ir.statements import (
    comments_of,
    end_of_line,
    new_name,
    parse_arguments,
    parse_callee,
    parse_statement,
    parse_type_parameters,
)
from opstep.runtime.ir.types import TensorType, TypeVariable
from opstep.runtime.ir.values import (
    close_list,
    open_list,
    parse_number,
    parse_type,
    starts_number,
)

ITEM_KEYWORDS = ("param", "state", "mesh", "graph")  # mesh is one only here
MOST_ERRORS = 1_000  # of a text; a binary would give one a line

_TRIVIA = re.compile(r"(?:[ \t\r\f\v]*(?:#[^\n]*)?\n)++").match
_COMMENT = re.compile(r"#[^\n]*")
_LIKE_BODY = re.compile(r"[ \t]*(?!(?:param|state|graph)\b|mesh[ \t]+[A-Za-z_])[A-Za-z_]").match
_LIKE_GRAPH = re.compile(r"\w+[ \t]+[\w.]+[ \t]*\([^#\n]*\{[ \t]*(?:#[^\n]*)?\r?\n", re.ASCII).match
_HEADER_END = re.compile(r"[^#\n]*\{[ \t]*(?:#[^\n]*)?\r?\n").match


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
                    item, position = self._mesh(tidy(above, separated))
                elif word in ITEM_KEYWORDS:
                    item, position = self._declaration(tidy(above, separated))
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

    def _declaration(self, above: tuple[str, ...]) -> tuple[Declaration, int]:
        lex = self.lex
        start, kind = lex.start, lex.value
        lex.advance()
        name = new_name(lex, f"the name of the {kind}", tensor=True)
        if lex.kind != ":":
            shown = quote_name(name.text)
            raise lex.fault(f": and the type of {shown}", f"{kind} {shown}: f32[8]")
        lex.advance()
        type_start = lex.start
        t = parse_type(lex)
        type_span = Span(type_start, lex.previous_end)
        sharding = self._sharding() if lex.kind == "name" and lex.value == "over" else None
        init, attrs, value = None, (), None
        if lex.kind == "=":
            lex.advance()
            value_start = lex.start
            if starts_number(lex):
                number = parse_number(lex)
                value = Literal(number, Span(value_start, lex.previous_end))
            elif lex.kind == "name" and lex.value in CONSTANTS and CONSTANTS[lex.value] is not None:
                value = Literal(CONSTANTS[lex.value] is True, lex.span)
                lex.advance()
            else:
                init, attrs = self._initialiser()
        end = lex.previous_end
        comments, position = end_of_line(lex, above)
        span = Span(start, end)
        return (
            Declaration(kind, name, t, init, attrs, value, comments, span, type_span, sharding),
            position,
        )

    def _sharding(self) -> Sharding:
        lex, what, example = self.lex, "an axis of the mesh", "param w: f32[8, 6] over model axis 1"
        lex.advance()
        names: list[Name] = []
        if lex.kind == "[":
            opened = open_list(lex, "[")
            names.append(new_name(lex, what, hint=example))
            while lex.kind == ",":
                lex.advance()
                names.append(new_name(lex, what))
            close_list(lex, "]", opened, ",")
        else:
            names.append(new_name(lex, what, hint=example))
        if lex.kind != "name" or lex.value != "axis":
            return Sharding(tuple(names))
        lex.advance()
        if lex.kind != "int":
            raise lex.fault("the number of the axis that is split, from 0", example)
        axis, span = integer(lex.value, lex.span), lex.span
        lex.advance()
        return Sharding(tuple(names), axis, span)

    def _mesh(self, above: tuple[str, ...]) -> tuple[MeshDeclaration, int]:
        lex = self.lex
        start = lex.start
        axes: list[MeshAxis] = []
        while not axes or lex.kind == ",":
            lex.advance()
            axes.append(self._mesh_axis(axes))
        if lex.kind == "name":
            raise lex.fault(", or the end of the line", "mesh data: 4, model: 2")
        end = lex.previous_end
        comments, position = end_of_line(lex, above)
        return MeshDeclaration(tuple(axes), comments, Span(start, end)), position

    def _mesh_axis(self, before: list[MeshAxis]) -> MeshAxis:
        lex = self.lex
        name = new_name(lex, "the name of an axis of the mesh")
        first = next((a.name.span for a in before if a.name.text == name.text), None)
        if first is not None:
            note = Note("the first one is here", first)
            raise SyntaxFault(f"axis {name.text} is declared twice", name.span, notes=(note,))
        if lex.kind != ":":
            raise lex.fault(f": and the extent of {name.text}", "mesh data: 4, model: 2")
        lex.advance()
        if lex.kind != "int":
            raise lex.fault(f"the extent of {name.text}, a number of ranks", "mesh data: 4")
        extent, span = integer(lex.value, lex.span), lex.span
        if not 1 <= extent <= MOST_RANKS:
            message = f"an axis of a mesh has 1 to {MOST_RANKS:,} ranks, not {extent:,}"
            raise SyntaxFault(message, span)
        lex.advance()
        return MeshAxis(name, extent, span)

    def _initialiser(self):
        lex = self.lex
        init = parse_callee(lex, "a number or an op such as zeros()")
        operands, attrs = parse_arguments(lex, init)
        if operands:
            raise SyntaxFault(
                "an initialiser takes no operands",
                operands[0].span,
                f"write its attributes by name: {init.text}(name=value)",
            )
        return init, attrs

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
