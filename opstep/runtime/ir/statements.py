"""Parsing of statements. Each function is given a lexer that stands on the first token.

Each returns the statement and the offset where the next one begins.
"""

from __future__ import annotations

from opstep.runtime.ir.arguments import new_name, parse_arguments, parse_callee
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Apply,
    Assert,
    Binding,
    Comments,
    Literal,
    Name,
    Provenance,
    Return,
    SourceLine,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.lexer import Lexer, SyntaxFault, comment_text, integer, quote_name, unescape
from opstep.runtime.ir.values import parse_number, parse_type, starts_number


def parse_statement(lex: Lexer, above: tuple[str, ...]) -> tuple[Statement, int]:
    """Any statement. `above` are the comments above it."""
    start, word = lex.start, lex.value
    if lex.kind != "name" and lex.kind != "quoted":
        hint = "comments begin with #" if lex.kind == "//" else ""
        raise lex.fault("a statement or }", hint)
    if word == "return":
        return _return(lex, start, above)
    if word == "assert":
        return _assert(lex, start, above)
    following = lex.peek()
    if following == ("sign", "<-"):
        return _update(lex, start, above)
    results: list[Binding] = []
    if following != ("sign", "("):
        _bindings(lex, results)
    callee = parse_callee(lex, "an op or a graph, and its operands in ( )")
    operands, attrs = parse_arguments(lex, callee)
    at, span, comments, position = _finish(lex, start, above)
    return Apply(tuple(results), callee, operands, attrs, at, comments, span), position


def _bindings(lex: Lexer, results: list[Binding]) -> None:
    """``a, b: f32[N] =``"""
    while True:
        name = new_name(lex, "the name of a result")
        t, type_span = None, Span(0, 0)
        if lex.kind == ":":
            lex.advance()
            type_start = lex.start
            t = parse_type(lex)
            type_span = Span(type_start, lex.previous_end)
        results.append(Binding(name, t, type_span))
        if lex.kind != ",":
            break
        lex.advance()
    if lex.kind != "=":
        many = len(results) > 1 or results[0].type is not None
        raise lex.fault("=" if many else "=, <- or (", "a statement is: y = op(x, attribute=1)")
    lex.advance()


def _update(lex: Lexer, start: int, above) -> tuple[Statement, int]:
    target = new_name(lex, "the name of a param or state", tensor=True)
    lex.advance()
    value_start = lex.start
    value: Name | Literal
    if starts_number(lex):
        number = parse_number(lex)
        value = Literal(number, Span(value_start, lex.previous_end))
    else:
        value = _use(
            lex,
            "the value to keep",
            f"give it a name first, then {quote_name(target.text)} <- name",
        )
    at, span, comments, position = _finish(lex, start, above)
    return Update(target, value, at, comments, span), position


def _assert(lex: Lexer, start: int, above) -> tuple[Statement, int]:
    lex.advance()
    condition = _use(lex, "the name of a condition", "give the condition a name first")
    message = ""
    if lex.kind == ",":
        lex.advance()
        message = _string(lex, "a message")
    at, span, comments, position = _finish(lex, start, above)
    return Assert(condition, message, at, comments, span), position


def _return(lex: Lexer, start: int, above) -> tuple[Statement, int]:
    lex.advance()
    hint = "a graph returns named values; one without results needs no return"
    values = [_use(lex, "the name of a value", hint)]
    while lex.kind == ",":
        lex.advance()
        values.append(_use(lex, "the name of a value", hint))
    at, span, comments, position = _finish(lex, start, above)
    return Return(tuple(values), at, comments, span), position


def _use(lex: Lexer, what: str, hint: str) -> Name:
    """A name that stands for a value, alone."""
    name = new_name(lex, what, tensor=True, hint=hint)
    if lex.kind == "(":
        raise SyntaxFault("a call cannot stand here", name.span, hint)
    return name


def _finish(lex: Lexer, start: int, above: tuple[str, ...]):
    """``at "file":line in "module"`` and the end of a statement."""
    at = None
    if lex.kind == "name" and lex.value == "at":
        at = _provenance(lex)
    span = Span(start, lex.previous_end)
    comments, position = end_of_line(lex, above)
    return at, span, comments, position


def _provenance(lex: Lexer) -> Provenance:
    frames = [_source_line(lex)]
    while lex.kind == ",":
        frames.append(_source_line(lex, frames[-1].file))
    module = ""
    if lex.kind == "name" and lex.value == "in":
        lex.advance()
        module = _string(lex, "a module", 'at "model.py":12 in "encoder.0"')
    return Provenance(tuple(frames), module)


def _source_line(lex: Lexer, file: str | None = None) -> SourceLine:
    """``"file":line`` behind an ``at`` or a comma; a line alone is one of the same file."""
    form = 'at "model.py":12'
    lex.advance()
    if file is None or lex.kind != "int":
        file = _string(lex, "a file", form)
        if lex.kind != ":":
            raise lex.fault(": and a line", form)
        lex.advance()
    if lex.kind != "int":
        raise lex.fault("the number of a line", form)
    line = integer(lex.value, lex.span)
    lex.advance()
    return SourceLine(file, line)


def _string(lex: Lexer, what: str, hint: str = "") -> str:
    if lex.kind != "string":
        raise lex.fault(f'{what} in "quotes"', hint)
    text = unescape(lex.value, lex.start)
    lex.advance()
    return text


def end_of_line(lex: Lexer, above: tuple[str, ...]) -> tuple[Comments, int]:
    """The comment behind what ends here, and where the next statement begins."""
    if lex.inner:
        above = (*above, *lex.inner)
    trailing = None
    if lex.kind == "comment":
        trailing = comment_text(lex.value)
        lex.advance()
    if lex.kind == "newline":
        return comments_of(above, trailing), lex.end
    if lex.kind in ("}", "end"):
        return comments_of(above, trailing), lex.start
    hint = "one statement a line" if lex.kind == "name" else ""
    if lex.kind in ("+", "-", "*", "//", "%"):
        hint = "arithmetic has names: add(a, b), sub(a, b), mul(a, b)"
    raise lex.fault("the end of the line", hint)


def comments_of(above: tuple[str, ...] = (), trailing: str | None = None) -> Comments:
    """One object for all that have none."""
    return Comments(above, trailing) if above or trailing is not None else NO_COMMENTS
