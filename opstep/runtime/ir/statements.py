"""Parsing of statements. Each function is given a lexer that stands on the first token.

Each returns the statement and the offset where the next one begins.
"""

from __future__ import annotations

from math import prod

from opstep.runtime.ir.diagnostics import Note, did_you_mean
from opstep.runtime.ir.foreign import NO_FOREIGN_OP, is_foreign_name
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Apply,
    Assert,
    Attr,
    Binding,
    Comments,
    Literal,
    Name,
    Provenance,
    Return,
    SourceLine,
    Span,
    Statement,
    TypeParameter,
    Update,
)
from opstep.runtime.ir.lexer import (
    CONSTANTS,
    KEYWORDS,
    NUMBER_NAMES,
    ONLY_TENSORS,
    RESERVED,
    Lexer,
    SyntaxFault,
    comment_text,
    integer,
    quote_name,
    unescape,
    unquote_name,
)
from opstep.runtime.ir.types import DEFAULT_FAMILY, DTYPES, FAMILIES, MOST_ASSIGNMENTS
from opstep.runtime.ir.values import (
    close_list,
    open_list,
    parse_number,
    parse_type,
    parse_value,
    starts_number,
)


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


_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "//": "floor_div", "%": "rem",
}  # fmt: skip


def new_name(lex: Lexer, what: str, tensor: bool = False, hint: str = "") -> Name:
    """A name that is not reserved. `tensor`: it may name a param or state."""
    if lex.kind == "quoted":
        return _quoted_name(lex, what, tensor)
    if lex.kind != "name":
        raise lex.fault(what, hint)
    text, span = lex.value, lex.span
    if text in RESERVED:
        is_a = (
            "a keyword"
            if text in KEYWORDS
            else "a number"
            if text in NUMBER_NAMES
            else "a constant"
        )
        raise SyntaxFault(f"{text} is {is_a} and cannot be {what}", span, hint)
    if "." in text and not tensor:
        raise SyntaxFault(
            f"{text} cannot be {what}",
            span,
            "only params and states have dots in their names; they are updated with <-",
        )
    lex.advance()
    return Name(text, span)


def _quoted_name(lex: Lexer, what: str, tensor: bool) -> Name:
    span = lex.span
    name = Name(unquote_name(lex.value, span), span)
    if not tensor:
        raise SyntaxFault(f"{lex.value} cannot be {what}", span, ONLY_TENSORS)
    lex.advance()
    return name


def parse_type_parameters(lex: Lexer, found: list[TypeParameter]) -> None:
    """``<T: float, I: index>``, of the head of a graph."""
    lex.advance()
    while True:
        name = new_name(lex, "the name of a type variable")
        if name.text in DTYPES:
            message = f"{name.text} is an element type and cannot be the name of a type variable"
            raise SyntaxFault(message, name.span, "call it T")
        first = next((p.name.span for p in found if p.name.text == name.text), None)
        if first is not None:
            note = Note("the first one is here", first)
            raise SyntaxFault(f"{name.text} is declared twice", name.span, notes=(note,))
        found.append(TypeParameter(name, Name(DEFAULT_FAMILY, name.span)))
        if lex.kind == ":":
            lex.advance()
            found[-1] = TypeParameter(name, _family(lex, name.text))
        if lex.kind != ",":
            break
        lex.advance()
    if lex.kind != ">":
        raise lex.fault(", or >", "type variables are declared as in <T: float>")
    lex.advance()
    count = prod(len(FAMILIES[p.family.text]) for p in found)
    if count > MOST_ASSIGNMENTS:
        span = Span(found[0].name.span.start, found[-1].family.span.end)
        message = f"these can be {count:,} combinations of types; {MOST_ASSIGNMENTS} are the most"
        found.clear()
        raise SyntaxFault(message, span, "say what they may be, as in <T: float>")


def _family(lex: Lexer, variable: str) -> Name:
    """What a type variable may stand for."""
    word = lex.value
    if lex.kind != "name" or word not in FAMILIES:
        hint = did_you_mean(word, FAMILIES) if lex.kind == "name" and word not in DTYPES else ""
        expected = f"what {variable} may be: {', '.join(FAMILIES)}"
        raise lex.fault(expected, hint or "without a word behind it, it may be any type")
    name = Name(word, lex.span)
    lex.advance()
    return name


def parse_callee(lex: Lexer, what: str) -> Name:
    """The name of an op or a graph; leaves the lexer on the ( behind it."""
    start = lex.start
    if starts_number(lex):
        number = parse_number(lex)
        raise SyntaxFault(
            f"expected {what}, not a number",
            Span(start, lex.previous_end),
            f"numbers are operands: add(x, {number}); a tensor of them is full(value={number}, …)",
        )
    if lex.kind != "name" or lex.value in CONSTANTS:
        raise lex.fault(what)
    name = new_name(lex, what, tensor="." in lex.value)
    if lex.kind != "(":
        if lex.kind == "<":
            raise lex.fault(f"( after {name.text}", "the operands say what its type variables are")
        operator = _OPERATORS.get(lex.kind)
        if operator:
            raise lex.fault(f"( after {name.text}", f"arithmetic has names: {operator}(a, b)")
        raise lex.fault(
            f"( after {name.text}", "a statement applies an op or a graph: relu(x), zeros()"
        )
    if "." in name.text and not is_foreign_name(name.text):
        message = f"{name.text} is no op or graph: their names have no dots"
        raise SyntaxFault(message, name.span, NO_FOREIGN_OP)
    return name


def parse_arguments(
    lex: Lexer, callee: Name
) -> tuple[tuple[Name | Literal, ...], tuple[Attr, ...]]:
    """``(x, 2.5, key=value)``: operands, then attributes."""
    operands: list[Name | Literal] = []
    attrs: list[Attr] = []
    opened = open_list(lex, "(")
    while lex.kind != ")":
        start = lex.start
        operand: Name | Literal | None = None
        if lex.kind == "name" and lex.value not in NUMBER_NAMES:
            operand = _operand_or_attr(lex, opened, attrs)
        elif starts_number(lex):
            number = parse_number(lex)
            operand = Literal(number, Span(start, lex.previous_end))
        elif lex.kind == "quoted":
            operand = new_name(lex, "an operand", tensor=True)
            if lex.kind == "=":
                message = "an attribute's name stands in no backquotes"
                raise SyntaxFault(message, operand.span, ONLY_TENSORS)
        else:
            raise _no_operand(lex, opened)
        if operand is not None:
            if attrs:
                raise SyntaxFault(
                    "operands stand before the attributes", Span(start, lex.previous_end),
                    f"write this one before {attrs[0].name.text}=",
                )  # fmt: skip
            operands.append(operand)
        if lex.kind != ",":
            break
        lex.advance()
    if lex.kind == "(" and operands and isinstance(operands[-1], Name):
        inner = operands[-1]
        raise SyntaxFault(
            "calls do not nest", inner.span, f"give {inner.text}(…) a line and a name of its own"
        )
    hint = ""
    if lex.kind in _OPERATORS:
        hint = f"arithmetic has names: {_OPERATORS[lex.kind]}(a, b), on a line of its own"
    _close(lex, opened, hint)
    return tuple(operands), tuple(attrs)


def _close(lex: Lexer, opened: int, hint: str) -> None:
    try:
        close_list(lex, ")", opened, ",")
    except SyntaxFault as fault:
        fault.hint = fault.hint or hint
        raise


def _operand_or_attr(lex: Lexer, opened: int, attrs: list[Attr]) -> Name | None:
    """An operand's name; or None, with the attribute added to `attrs`."""
    text, span = lex.value, lex.span
    lex.advance()
    if lex.kind != "=":
        if text in RESERVED:
            hint = f"a flag is an attribute: name={text}" if text in CONSTANTS else ""
            raise SyntaxFault(f"{text} cannot be an operand", span, hint)
        return Name(text, span)
    lex.advance()
    if "." in text:
        raise SyntaxFault(f"{text} cannot be the name of an attribute", span, "these have no dots")
    start = lex.start
    value = parse_value(lex)
    if lex.kind == "(":
        if "\n" in lex.text[opened : span.start]:  # it is the next statement
            raise SyntaxFault("the ( is not closed", Span(opened, opened + 1))
        hint = "give it a line and a name of its own, and pass it as an operand"
        raise SyntaxFault("an attribute cannot be a call", Span(start, lex.previous_end), hint)
    attrs.append(Attr(Name(text, span), value, Span(start, lex.previous_end)))
    return None


def _no_operand(lex: Lexer, opened: int) -> SyntaxFault:
    if lex.kind in ("}", "{", "end"):
        return SyntaxFault("the ( is not closed", Span(opened, opened + 1))
    hints = {
        "string": 'a string is the value of an attribute: name="…"',
        "[": "a list is the value of an attribute: name=[…]",
    }
    return lex.fault("an operand or an attribute", hints.get(lex.kind, ""))
