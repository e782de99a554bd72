"""Text to syntax tree: recursive descent over tokens, one statement a line.

A fault inside a statement is reported and the parser goes on at the next line, so that one run
shows all errors of a file. Statements in the printer's form take the short cut in `fast.py`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import BinaryIO

from opstep.runtime.ir.arguments import new_name, parse_arguments, parse_callee
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.diagnostics import Diagnostic, OpstepError, did_you_mean, in_order
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.fast import FastPath
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Binding,
    Comments,
    Declaration,
    Graph,
    Literal,
    Module,
    Name,
    Source,
    Span,
    Statement,
)
from opstep.runtime.ir.lexer import (
    LIKE_STATEMENT,
    WORDS,
    Lexer,
    SyntaxFault,
    comment_text,
)
from opstep.runtime.ir.statements import comments_of, end_of_line, parse_statement
from opstep.runtime.ir.values import (
    close_list,
    open_list,
    parse_number,
    parse_type,
    starts_number,
)

_BEGINNING = 4096  # bytes in which a binary shows itself
_MOST_BYTES = 1 << 30  # of a file
_MOST_ERRORS = 1_000  # of a file; a binary would give one a line

_TRIVIA = re.compile(r"(?:[ \t\r\f\v]*(?:#[^\n]*)?\n)++").match
_ITEM_WORDS = ("param", "state", "graph")
_COMMENT = re.compile(r"#[^\n]*")
_LIKE_BODY = re.compile(r"[ \t]*(?!(?:param|state|graph)\b)[A-Za-z_]").match
_HEADER_END = re.compile(r"[^#\n]*\{[ \t]*(?:#[^\n]*)?\r?\n").match


class _Enough(Exception):
    """Too many errors to be worth reading."""


def parse(text: str, path: str = "<text>") -> Module:
    """The syntax tree of a file. Raises OpstepError with all syntax errors of the text."""
    module, diagnostics = parse_with_diagnostics(text, path)
    if diagnostics:
        raise OpstepError(diagnostics)
    return module


def parse_with_diagnostics(
    text: str, path: str = "<text>", *, fast: bool = True
) -> tuple[Module, list[Diagnostic]]:
    """What could be read of the text, and what could not: for tools that live with broken files.

    `fast=False` keeps to the general path: for the test that both paths read the same.
    """
    parser = _Parser(Source(text, path), fast)
    with collector_paused():
        module = parser.module()
    return module, list(in_order(parser.diagnostics))


def load(path: str | os.PathLike) -> Module:
    """The syntax tree of the file at `path`."""
    return parse(read_source(path), os.fspath(path))


def read_source(path: str | os.PathLike) -> str:
    """The text of a file. InputError where it is absent, unreadable or no UTF-8 text."""
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = _bytes_of(file)
    except FileNotFoundError:
        raise InputError(f"{shown}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{shown} is a directory, not a file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{shown} cannot be read: {why}") from None
    if b"\0" in data[:_BEGINNING]:
        raise InputError(f"{shown} is a binary file, not a text in the opstep language")
    if len(data) >= _MOST_BYTES:
        raise InputError(f"{shown} is larger than {_MOST_BYTES / 2**30:g} GiB: no program is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{shown} is not UTF-8 text: byte 0x{data[error.start]:02x} in line {line}",
            hint="save it as UTF-8, or convert it: iconv -f latin1 -t utf-8",
        ) from None


def _bytes_of(file: BinaryIO) -> bytes:
    """All of a text; of what is a binary, or endless, no more than shows it."""
    pieces = [file.read(_BEGINNING)]
    left = 0 if b"\0" in pieces[0] else _MOST_BYTES
    while left > 0 and (piece := file.read(min(left, 1 << 24))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class _Parser:
    def __init__(self, source: Source, fast: bool):
        self.source = source
        text = source.text
        whole = text if text.endswith("\n") else text + "\n"
        self.text = whole
        self.lex = Lexer(Source(whole, source.path))
        self.fast = FastPath(whole) if fast else None
        self.diagnostics: list[Diagnostic] = []

    def report(self, fault: SyntaxFault) -> None:
        size = len(self.source.text)
        span = Span(min(fault.span.start, size), min(fault.span.end, size))
        self._add(Diagnostic("error", fault.message, span, self.source, fault.hint, fault.notes))

    def _add(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)
        if len(self.diagnostics) >= _MOST_ERRORS:
            message = f"there are more than {_MOST_ERRORS} errors; the rest is not read"
            self.diagnostics.append(Diagnostic("note", message, diagnostic.span, self.source))
            raise _Enough

    # --- the file ---------------------------------------------------------------------------------

    def module(self) -> Module:
        items: list[Declaration | Graph] = []
        closing: tuple[str, ...] = ()
        with suppress(_Enough):
            closing = self._items(items)
        return Module(tuple(items), comments_of(closing), self.source)

    def _items(self, items: list) -> tuple[str, ...]:
        """Reads all items; returns the comments behind the last."""
        lex = self.lex
        position = 1 if self.text.startswith("\ufeff") else 0
        separated = True  # a graph stands apart from its neighbours: that blank line is not kept
        while True:
            above, position = self._trivia(position)
            lex.seek(position)
            word = lex.value if lex.kind == "name" else ""
            if lex.kind == "end":
                return _tidy(above, separated, last=True)
            separated = separated or word == "graph"
            try:
                if word == "graph":
                    item, position = self._graph(_tidy(above, separated))
                elif word in _ITEM_WORDS:
                    item, position = self._declaration(_tidy(above, separated))
                else:
                    raise self._no_item(word)
            except SyntaxFault as fault:
                self.report(fault)
                item, position = None, self._recover(position)
            if item is not None:
                items.append(item)
            separated = word == "graph"

    def _no_item(self, word: str) -> SyntaxFault:
        lex = self.lex
        if lex.kind == "}":
            return SyntaxFault("this } closes nothing", lex.span)
        hint = did_you_mean(word, _ITEM_WORDS) if word else ""
        if not hint and LIKE_STATEMENT(self.text, lex.start):
            hint = "statements stand inside the braces of a graph"
        elif word in ("def", "fn", "func", "function"):
            hint = "did you mean graph?"
        elif lex.value == "//":
            hint = "comments begin with #"
        return lex.fault("param, state or graph", hint)

    def _trivia(self, position: int) -> tuple[list[str], int]:
        """Blank lines and comment lines from `position` on."""
        match = _TRIVIA(self.text, position)
        if match is None:
            return [], position
        lines = []
        for line in match[0].split("\n")[:-1]:
            line = line.lstrip(" \t\r\f\v")
            lines.append((comment_text(line) or " ") if line else "")
        return lines, match.end()

    def _recover(self, start: int) -> int:
        """Where to go on after a fault in what began at `start`: a later line."""
        text, lex = self.text, self.lex
        here = text.rfind("\n", 0, lex.start) + 1
        if lex.nesting and here > start:  # a list ran on into what may be the next statement
            position = here
        else:
            position = text.find("\n", lex.start) + 1 or len(text)
        if lex.nesting and _is_open(text[start:position]):
            while position < len(text) and not LIKE_STATEMENT(text, position):
                position = text.find("\n", position) + 1 or len(text)
        return position

    # --- items ------------------------------------------------------------------------------------

    def _declaration(self, above: tuple[str, ...]) -> tuple[Declaration, int]:
        lex = self.lex
        start, kind = lex.start, lex.value
        lex.advance()
        name = new_name(lex, f"the name of the {kind}", dotted=True)
        if lex.kind != ":":
            raise lex.fault(f": and the type of {name.text}", f"{kind} {name.text}: f32[8]")
        lex.advance()
        type_start = lex.start
        t = parse_type(lex)
        type_span = Span(type_start, lex.behind)
        init, attrs, value = None, (), None
        if lex.kind == "=":
            lex.advance()
            value_start = lex.start
            if starts_number(lex):
                number = parse_number(lex)
                value = Literal(number, Span(value_start, lex.behind))
            elif lex.kind == "name" and lex.value in WORDS and WORDS[lex.value] is not None:
                value = Literal(WORDS[lex.value] is True, lex.span)
                lex.advance()
            else:
                init, attrs = self._initialiser()
        end = lex.behind
        comments, position = end_of_line(lex, above)
        return (
            Declaration(kind, name, t, init, attrs, value, comments, Span(start, end), type_span),
            position,
        )

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

    def _graph(self, above: tuple[str, ...]) -> tuple[Graph | None, int]:
        lex = self.lex
        start = lex.start
        name, inputs, results = None, [], []
        results_span = brace = Span(start, start + 5)
        behind = None
        lines = list(above)
        try:
            lex.advance()
            name = new_name(lex, "the name of the graph")
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
                behind = comment_text(lex.value)
                lex.advance()
            position = lex.end if lex.kind == "newline" else lex.start
        except SyntaxFault as fault:
            self.report(fault)
            found = self._body_after_fault()
            if found is None:
                return None, self._recover(start)
            position = found
        body, closing, end, position = self._body(position, brace)
        if name is None:
            return None, position
        comments = comments_of(tuple(lines), behind)
        graph = Graph(
            name, tuple(inputs), tuple(results), tuple(body), comments, closing, Span(start, end),
            results_span,
        )  # fmt: skip
        return graph, position

    def _body_after_fault(self) -> int | None:
        """Where the body of a graph with a faulty header begins; None where none is in sight."""
        text = self.text
        position = text.rfind("\n", 0, self.lex.start) + 1
        while position < len(text):
            match = _HEADER_END(text, position)
            if match:
                return match.end()
            position = text.find("\n", position) + 1 or len(text)
            if LIKE_STATEMENT(text, position):
                return position if _LIKE_BODY(text, position) else None
            if not self.lex.nesting:
                return None
        return None

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
            inputs.append(Binding(name, t, Span(start, lex.behind)))
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
        return Span(start, lex.behind)

    # --- statements -------------------------------------------------------------------------------

    def _body(self, position: int, brace: Span) -> tuple[list[Statement], Comments, int, int]:
        """The statements up to the closing brace, its comments, its end, and where to go on."""
        lex, fast = self.lex, self.fast
        body: list[Statement] = []
        pending: list[str] = []  # comments above the next statement
        while True:
            above = _tidy(pending, first=not body)
            if fast is not None:
                count = len(body)
                position = fast.statements(position, body, above)
                if len(body) > count:
                    pending = []
            more, position = self._trivia(position)
            if more:
                pending += more
                continue
            above = _tidy(pending, first=not body)
            lex.seek(position)
            if lex.kind == "}":
                return body, *self._close(_tidy(pending, first=not body, last=True))
            if lex.kind == "end" or (lex.value in _ITEM_WORDS and lex.peek()[0] == "name"):
                self.report(SyntaxFault("this { is not closed", brace, "graphs end with }"))
                return body, NO_COMMENTS, lex.behind, position
            try:
                statement, position = parse_statement(lex, above)
                body.append(statement)
            except SyntaxFault as fault:
                self.report(fault)
                position = self._recover(position)
            pending = []

    def _close(self, above: tuple[str, ...]) -> tuple[Comments, int, int]:
        lex = self.lex
        end = lex.end
        lex.advance()
        behind = None
        if lex.kind == "comment":
            behind = comment_text(lex.value)
            lex.advance()
        if lex.kind not in ("newline", "end"):
            self.report(lex.fault("the end of the line after }"))
        return Comments(above, behind), end, self.text.find("\n", lex.start) + 1 or len(self.text)


def _is_open(text: str) -> bool:
    """Whether more brackets are opened than closed, comments aside."""
    code = _COMMENT.sub("", text)
    return sum(map(code.count, "([")) > sum(map(code.count, ")]"))


def _tidy(lines: list[str], first: bool, last: bool = False) -> tuple[str, ...]:
    """Without blank lines at the start of a block or at its end, and at most one in a row."""
    if not lines:
        return ()
    kept: list[str] = []
    for line in lines:
        if line or (kept[-1] if kept else not first):
            kept.append(line)
    while last and kept and not kept[-1]:
        kept.pop()
    return tuple(kept)
