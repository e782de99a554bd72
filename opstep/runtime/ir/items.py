"""Parsing of items other than graphs: params, states and meshes.

Each function is given a lexer that stands on the first token.
"""

from __future__ import annotations

from opstep.runtime.ir.diagnostics import Note
from opstep.runtime.ir.graph import (
    Declaration,
    Literal,
    MeshAxis,
    MeshDeclaration,
    Name,
    Sharding,
    Span,
)
from opstep.runtime.ir.lexer import CONSTANTS, Lexer, SyntaxFault, integer, quote_name
from opstep.runtime.ir.mesh import MOST_RANKS
from opstep.runtime.ir.statements import end_of_line, new_name, parse_arguments, parse_callee
from opstep.runtime.ir.values import close_list, open_list, parse_number, parse_type, starts_number


def parse_declaration(lex: Lexer, above: tuple[str, ...]) -> tuple[Declaration, int]:
    """A param or a state, and the offset where the next line begins."""
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
    sharding = _sharding(lex) if lex.kind == "name" and lex.value == "over" else None
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
            init, attrs = _initialiser(lex)
    end = lex.previous_end
    comments, position = end_of_line(lex, above)
    span = Span(start, end)
    return (
        Declaration(kind, name, t, init, attrs, value, comments, span, type_span, sharding),
        position,
    )


def _sharding(lex: Lexer) -> Sharding:
    what, example = "an axis of the mesh", "param w: f32[8, 6] over model axis 1"
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


def parse_mesh(lex: Lexer, above: tuple[str, ...]) -> tuple[MeshDeclaration, int]:
    """A mesh, and the offset where the next line begins."""
    start = lex.start
    axes: list[MeshAxis] = []
    while not axes or lex.kind == ",":
        lex.advance()
        axes.append(_mesh_axis(lex, axes))
    if lex.kind == "name":
        raise lex.fault(", or the end of the line", "mesh data: 4, model: 2")
    end = lex.previous_end
    comments, position = end_of_line(lex, above)
    return MeshDeclaration(tuple(axes), comments, Span(start, end)), position


def _mesh_axis(lex: Lexer, before: list[MeshAxis]) -> MeshAxis:
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


def _initialiser(lex: Lexer):
    init = parse_callee(lex, "a number or an op such as zeros()")
    operands, attrs = parse_arguments(lex, init)
    if operands:
        raise SyntaxFault(
            "an initialiser takes no operands",
            operands[0].span,
            f"write its attributes by name: {init.text}(name=value)",
        )
    return init, attrs
