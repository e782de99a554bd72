"""Parsing of names and of what stands in the parentheses of an apply."""

from __future__ import annotations

from math import prod

from opstep.runtime.ir.diagnostics import Note, did_you_mean
from opstep.runtime.ir.foreign import NO_FOREIGN_OP, is_foreign_name
from opstep.runtime.ir.generic import DEFAULT_FAMILY, FAMILIES, MOST_ASSIGNMENTS
from opstep.runtime.ir.graph import Attr, Literal, Name, Span, TypeParameter
from opstep.runtime.ir.lexer import (
    CONSTANTS,
    KEYWORDS,
    NUMBER_NAMES,
    ONLY_TENSORS,
    RESERVED,
    Lexer,
    SyntaxFault,
    unquote_name,
)
from opstep.runtime.ir.types import DTYPES
from opstep.runtime.ir.values import (
    close_list,
    open_list,
    parse_number,
    parse_value,
    starts_number,
)

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
