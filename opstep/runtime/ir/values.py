"""Parsing of what stands inside a statement: types, dims, numbers and the values of attributes.

Each function is given a lexer that stands on the first token, and leaves it behind the last.
"""

from __future__ import annotations

import re

from opstep.runtime.ir.diagnostics import Note, did_you_mean
from opstep.runtime.ir.dims import Dim, Expr, symbol
from opstep.runtime.ir.graph import Span
from opstep.runtime.ir.lexer import (
    CONSTANTS,
    INT_MAX,
    INT_MIN,
    KEYWORDS,
    LIKE_STATEMENT,
    NUMBER_NAMES,
    RESERVED,
    Lexer,
    SyntaxFault,
    floating,
    integer,
    unescape,
)
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DTYPES, TensorType

MOST_DIMS = 32  # of a tensor
# Limits of one dim. What fits those of its value is printed within those of its text.
_LARGEST = 128  # factors of all terms
_DEEPEST = 16  # divisions in divisions
_MOST_PARENTHESES = 64  # within each other
_MOST_OPERATORS = 512
_ALIASES = {
    "double": "f64", "float64": "f64", "float": "f32", "float32": "f32", "half": "f16",
    "float16": "f16", "bfloat16": "bf16", "long": "i64", "int64": "i64", "int": "i32",
    "int32": "i32", "short": "i16", "int16": "i16", "int8": "i8", "uint8": "u8", "byte": "u8",
    "boolean": "bool",
}  # fmt: skip
_TYPE = re.compile(r"\w+\[[^\]\n#]*\]", re.ASCII).match
_STARTS_DIM = frozenset(("int", "name", "(", "-"))


def open_list(lex: Lexer, sign: str) -> int:
    """Passes over an opening ( or [; inside it, line ends do not count. Returns its offset."""
    at = lex.start
    lex.nesting += 1
    lex.advance()
    assert sign in "(["
    return at


def close_list(lex: Lexer, sign: str, opened: int, what: str) -> None:
    """Passes over the closing ) or ] of a list that was opened at offset `opened`."""
    if lex.kind != sign:
        raise _unclosed(lex, sign, opened, what)
    lex.nesting -= 1
    lex.advance()


def _unclosed(lex: Lexer, sign: str, opened: int, what: str) -> SyntaxFault:
    opener = lex.text[opened]
    line = lex.text.rfind("\n", 0, lex.start) + 1
    ran_on = line > opened and not lex.text[line : lex.start].strip()
    if lex.kind in ("end", "{", "}") or (ran_on and LIKE_STATEMENT(lex.text, line)):
        return SyntaxFault(f"the {opener} is not closed", Span(opened, opened + 1))
    notes = ()
    if line > opened:
        notes = (Note(f"the {opener} stands here", Span(opened, opened + 1)),)
    return lex.fault(f"{what} or {sign}", notes=notes)


# --- types and dims -------------------------------------------------------------------------------


def parse_type(lex: Lexer) -> TensorType:
    """``f32[N, 8]``"""
    match = _TYPE(lex.text, lex.start, lex.limit)
    if match is None or lex.variables:  # these are others in another graph
        return _parse_type(lex)
    t = lex.types.get(match[0])
    if t is None:
        t = lex.types[match[0]] = _parse_type(lex)
    else:
        lex.end = match.end()
        lex.advance()
    return t


def _parse_type(lex: Lexer) -> TensorType:
    if lex.kind != "name":
        hint = "several are written without parentheses: f32[N], i64[N]" if lex.kind == "(" else ""
        raise lex.fault("a type such as f32[N]", hint)
    name, span = lex.value, lex.span
    variable = lex.variables.get(name)
    if name not in DTYPES and variable is None:
        near = _ALIASES.get(name.lower())
        hint = f"did you mean {near}?" if near else did_you_mean(name, [*DTYPES, *lex.variables])
        if not hint and name[0].isupper() and "." not in name:
            hint = (
                f"a type variable is declared behind the name of its graph, as in <{name}: float>"
            )
        raise SyntaxFault(
            f"{name} is not an element type", span, hint or f"one of {' '.join(DTYPES)}"
        )
    lex.advance()
    if lex.kind != "[":
        raise lex.fault(
            f"[ after {name}", hint=f"a type has a shape: {name}[N, 8], or {name}[] for one number"
        )
    opened = open_list(lex, "[")
    dims: list[Dim] = []
    while lex.kind != "]":
        start = lex.start
        d = parse_dim(lex)
        if type(d) is int and d < 0:
            raise SyntaxFault("a dim cannot be negative", Span(start, lex.previous_end))
        dims.append(d)
        if len(dims) > MOST_DIMS:
            raise SyntaxFault(f"a tensor has at most {MOST_DIMS} dims", Span(start, lex.start))
        if lex.kind != ",":
            break
        lex.advance()
    close_list(lex, "]", opened, ",")
    t = TensorType(variable or DTYPES[name], tuple(dims))
    if t.is_concrete and not t.fits:
        raise SyntaxFault("a tensor of this type does not fit into any memory", span)
    return t


def parse_dim(lex: Lexer) -> Dim:
    """An integer, a symbol, or arithmetic on them: ``N``, ``(H - 1)//2 + 1``."""
    if lex.kind == "int" or lex.kind == "name":  # nearly always nothing follows
        value: Dim = _dim_atom(lex)
        if lex.kind in ",])":
            return value
        return _Dims(lex).sum(value)
    return _Dims(lex).sum()


class _Dims:
    """One dim under way: counts operators and depth, so that no dim can be made to explode."""

    def __init__(self, lex: Lexer):
        self.lex = lex
        self.start = lex.start
        self.operators = 0
        self.depth = 0

    def sum(self, first: Dim | None = None) -> Dim:
        lex = self.lex
        value = self.product(first)
        while lex.kind == "+" or lex.kind == "-":
            operator = self._operator()
            right = self.product()
            value = self._small(value + right if operator == "+" else value - right)
        return value

    def product(self, first: Dim | None = None) -> Dim:
        lex = self.lex
        value = self.unary() if first is None else first
        while lex.kind in ("*", "//", "%"):
            operator = self._operator()
            span = lex.span
            right = self.unary()
            if operator != "*" and type(right) is int and right == 0:
                raise SyntaxFault("a dim is divided by zero", span)
            if operator == "*":
                value = value * right
            else:
                value = value // right if operator == "//" else value % right
            value = self._small(value)
        return value

    def unary(self) -> Dim:
        lex = self.lex
        negative = False
        while lex.kind == "-":
            self._operator()
            negative = not negative
        if lex.kind == "(":
            value = self._group()
        else:
            value = _dim_atom(lex, negative)
            negative = negative and type(value) is not int
        return self._small(-value) if negative else value

    def _group(self) -> Dim:
        self.depth += 1
        if self.depth > _MOST_PARENTHESES:
            raise SyntaxFault("the dim is nested too deeply", self.lex.span)
        opened = open_list(self.lex, "(")
        value = self.sum()
        close_list(self.lex, ")", opened, "an operator")
        self.depth -= 1
        return value

    def _operator(self) -> str:
        lex = self.lex
        self.operators += 1
        if self.operators > _MOST_OPERATORS:
            raise SyntaxFault(
                f"a dim may have at most {_MOST_OPERATORS} operators", Span(self.start, lex.end)
            )
        operator = lex.kind
        lex.advance()
        return operator

    def _small(self, value: Dim) -> Dim:
        if isinstance(value, int):
            fits = INT_MIN <= value <= INT_MAX
        else:
            fits = all(-INT_MAX <= c <= INT_MAX for c in value.terms.values())
            size, depth = _extent(value)
            if size > _LARGEST or depth > _DEEPEST:
                raise SyntaxFault("the dim is too large when it is multiplied out", self._so_far())
        if not fits:
            raise SyntaxFault("the dim does not fit 64 bits", self._so_far())
        return value

    def _so_far(self) -> Span:
        return Span(self.start, self.lex.previous_end)


def _extent(dim: Dim) -> tuple[int, int]:
    """How many factors a dim has written out, and how deep its divisions nest."""
    if isinstance(dim, int):
        return 1, 0
    size, deepest = 0, 0
    for monomial in dim.terms:
        size += 1 + len(monomial)
        for atom in monomial:
            if atom.op != "symbol":
                for argument in atom.args:
                    inner, depth = _extent(argument)
                    size += inner
                    deepest = max(deepest, depth + 1)
    return size, deepest


def _dim_atom(lex: Lexer, negative: bool = False) -> Dim:
    """A number or a symbol. Of these, only a number takes the sign."""
    value: Dim
    if lex.kind == "int":
        value = integer(lex.value, lex.span, negative)
    elif lex.kind == "name":
        name = lex.value
        if name in RESERVED or "." in name:
            what = "a dim" if name in RESERVED else "a symbol: symbols have no dots"
            raise SyntaxFault(f"{name} cannot be {what}", lex.span)
        if name in lex.variables:
            raise SyntaxFault(f"{name} is a type variable and cannot be a dim", lex.span)
        value = symbol(name)
    elif lex.kind == "float":
        raise SyntaxFault(f"{lex.value} is not an integer: dims are", lex.span)
    else:
        raise lex.fault("a dim", hint="dims are integers or symbols: f32[N, 2*H + 1]")
    lex.advance()
    return value


# --- numbers and attribute values -----------------------------------------------------------------


def parse_number(lex: Lexer) -> int | float:
    """An int or a float with or without a sign, ``inf`` or ``nan``."""
    start = lex.start
    negative = lex.kind == "-"
    if negative:
        lex.advance()
    span = Span(start, lex.end)
    if lex.kind == "int":
        value = integer(lex.value, span, negative)
    elif lex.kind == "float":
        value = floating(lex.value, span, negative)
    elif lex.kind == "name" and lex.value in NUMBER_NAMES:
        value = -NUMBER_NAMES[lex.value] if negative else NUMBER_NAMES[lex.value]
    else:
        raise lex.fault("a number")
    lex.advance()
    return value


def starts_number(lex: Lexer) -> bool:
    """Whether a number literal begins here."""
    kind = lex.kind
    return kind in ("int", "float", "-") or (kind == "name" and lex.value in NUMBER_NAMES)


def parse_value(lex: Lexer):
    """An attribute's value: number, string, true, false, none, name, dim, or a list of these."""
    if lex.kind != "[":
        return _scalar(lex)
    opened = open_list(lex, "[")
    values = []
    while lex.kind != "]":
        if lex.kind == "[":
            raise SyntaxFault("lists do not nest", lex.span)
        values.append(_scalar(lex))
        if lex.kind != ",":
            break
        lex.advance()
    close_list(lex, "]", opened, ",")
    return tuple(values)


def _scalar(lex: Lexer):
    kind = lex.kind
    if kind == "name":
        word = lex.value
        if word in CONSTANTS:
            lex.advance()
            return CONSTANTS[word]
        if word in NUMBER_NAMES:
            return parse_number(lex)
        if "." in word:
            raise SyntaxFault(
                f"{word} cannot be the value of an attribute",
                lex.span,
                "tensors are operands, and stand before the attributes",
            )
        if word in KEYWORDS:
            raise lex.fault("a value")
        if word in lex.variables:
            lex.advance()
            return lex.variables[word]
        return _name_or_dim(lex)
    if kind == "float":
        return parse_number(lex)
    if kind == "string":
        text = unescape(lex.value, lex.start)
        lex.advance()
        return text
    if kind == "-":
        after, word = lex.peek()
        if after == "float" or word in NUMBER_NAMES:  # no dim begins like this
            return parse_number(lex)
    if kind in _STARTS_DIM:
        return _name_or_dim(lex)
    if kind == "quoted":
        raise lex.fault("a value", "tensors are operands, and stand before the attributes")
    raise lex.fault("a value")


def _name_or_dim(lex: Lexer):
    d = parse_dim(lex)
    if isinstance(d, Expr):
        lone = d.lone_symbol()
        if lone:
            return Ref(lone)
    return d
