"""The short cut for statements in the printer's form: one regular expression each.

It reads what the general parser reads, and gives the same nodes and spans, or leaves the statement
alone. What repeats in a file (names, types, lists of attributes) is read once, by the general
parser, and remembered by its text.
"""

from __future__ import annotations

import re
import sys

from opstep.runtime.ir.arguments import parse_arguments
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Apply,
    Attr,
    Binding,
    Comments,
    Literal,
    Name,
    Provenance,
    Source,
    Span,
    Statement,
)
from opstep.runtime.ir.lexer import DOTTED, IDENTIFIER, RESERVED, Lexer, SyntaxFault, comment_text
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.values import parse_number, parse_type, starts_number

_STATEMENT = re.compile(
    rf"""[ \t]*
    ({IDENTIFIER}(?:,[ ]{IDENTIFIER})*)             # results
    (?::[ ]([a-z0-9]+\[[^\]\[\n#"]*\]))?            # type of the last result
    [ ]=[ ]({IDENTIFIER})                           # callee
    \(([^()"#\n]*)\)                                # operands and attributes
    (?:[ ]+at[ ]"([^"\\\n]*)":([0-9]{{1,18}}))?
    [ \t]*(\#[^\n]*)?\r?\n""",
    re.VERBOSE | re.ASCII,
).match
_NAME = re.compile(DOTTED, re.ASCII).fullmatch

_tuple = tuple.__new__  # makes a Span without going through its Python-level constructor


class FastPath:
    """Reads statements of one text."""

    def __init__(self, text: str):
        self.text = text
        # Each by its text; None where the general parser must look at it.
        self.names: dict[str, str | None] = {}
        self.operands: dict[str, str | int | float | None] = {}
        self.types: dict[str, TensorType | None] = {}
        self.attrs: dict[str, tuple | None] = {}

    def statements(
        self,
        position: int,
        body: list[Statement],
        above: tuple[str, ...],
        limit: int = sys.maxsize,
        most: int = sys.maxsize,
    ) -> int:
        """Appends statements from `position` on to `body`; returns where it stopped.

        `above` are the comments above the first. Nothing behind `limit` is read, and no more than
        `most` statements.
        """
        text, names, known, match_at = self.text, self.names, self.operands, _STATEMENT
        for _ in range(most):
            match = match_at(text, position, limit)
            if match is None:
                return position
            written, type_text, callee, inner, file, line, comment = match.groups()
            start, callee_at, inner_at = match.start(1), match.start(3), match.start(4)

            if "," in written:
                results = None if type_text else self._results(written, start)
            else:
                name = names.get(written) or self._name(written)
                end = start + len(written)
                spot = _tuple(Span, (start, end))
                if name is None:
                    results = None
                elif type_text is None:
                    results = (Binding(Name(name, spot), None),)
                else:
                    results = self._typed(name, spot, type_text, match.start(2))
            function = names.get(callee) or self._name(callee)
            if results is None or function is None:
                return position

            cut = inner_end = inner_at + len(inner)
            attrs: tuple[Attr, ...] | None = ()
            if "=" in inner:
                cut = inner_at + max(0, inner.rfind(", ", 0, inner.index("=")))
                attrs_at = cut + 2 if cut > inner_at else inner_at
                attrs = self._attributes(text[attrs_at:inner_end], attrs_at)
                if attrs is None:
                    return position
                inner = text[inner_at:cut]
            operands: list[Name | Literal] = []
            if inner:
                at = inner_at
                for part in inner.split(", "):
                    value = known.get(part)
                    if value is None:
                        value = self._operand(part)
                        if value is None:
                            return position
                    end = at + len(part)
                    spot = _tuple(Span, (at, end))
                    if isinstance(value, str):
                        operands.append(Name(value, spot))
                    else:
                        operands.append(Literal(value, spot))
                    at = end + 2
            comments = NO_COMMENTS
            if above or comment is not None:
                comments = Comments(above, None if comment is None else comment_text(comment))
                above = ()
            stop = inner_end + 1
            origin = None
            if file is not None:
                origin = Provenance(file, int(line))
                stop = match.end(6)
            body.append(
                Apply(
                    results,
                    Name(function, _tuple(Span, (callee_at, callee_at + len(callee)))),
                    tuple(operands),
                    attrs,
                    origin,
                    comments,
                    _tuple(Span, (start, stop)),
                )
            )
            position = match.end()
        return position

    def _name(self, text: str) -> str | None:
        if text in RESERVED:
            return None
        return self.names.setdefault(text, text)

    def _results(self, written: str, at: int) -> tuple[Binding, ...] | None:
        results = []
        for text in written.split(", "):
            name = self.names.get(text) or self._name(text)
            if name is None:
                return None
            results.append(Binding(Name(name, Span(at, at + len(text))), None))
            at += len(text) + 2
        return tuple(results)

    def _typed(self, name: str, spot: Span, text: str, at: int) -> tuple[Binding, ...] | None:
        if text not in self.types:
            self.types[text] = _whole(text, parse_type)
        t = self.types[text]
        return None if t is None else (Binding(Name(name, spot), t, Span(at, at + len(text))),)

    def _operand(self, text: str) -> str | int | float | None:
        value: str | int | float | None = None
        if _NAME(text):
            value = text if text not in RESERVED else None
            if value is not None:
                value = self.names.setdefault(text, text)
        if value is None and text == text.strip():
            value = _whole(text, lambda lex: parse_number(lex) if starts_number(lex) else None)
        if value is not None:
            self.operands[text] = value
        return value

    def _attributes(self, text: str, at: int) -> tuple[Attr, ...] | None:
        if text not in self.attrs:
            self.attrs[text] = _whole(f"({text})", _templates)
        templates = self.attrs[text]
        if templates is None:
            return None
        at -= 1  # the templates' offsets count the parenthesis
        return tuple(
            [
                Attr(Name(name, Span(at + a, at + b)), value, Span(at + c, at + d))
                for name, value, a, b, c, d in templates
            ]
        )


def _whole(text: str, read):
    """What `read` makes of a lexer on `text`; None where it has a fault or leaves something."""
    lex = Lexer(Source(text))
    try:
        value = read(lex)
    except SyntaxFault:
        return None
    return value if lex.kind == "end" else None


def _templates(lex: Lexer) -> tuple | None:
    """The attributes in ``(key=value, …)`` with the offsets of their spans."""
    operands, attrs = parse_arguments(lex, Name(""))
    if operands:
        return None
    return tuple((a.name.text, a.value, *a.name.span, *a.span) for a in attrs)
