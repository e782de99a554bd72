"""About symbols, element types, keywords, constants and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.lsp.hovers.markdown import block, code, count, link, paragraphs
from opstep.lsp.hovers.operation import application_at, literal_type
from opstep.lsp.occurrences import Occurrence
from opstep.runtime.ir.calls import bound_symbols
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.graph import Apply, Graph, Literal, TypeParameter
from opstep.runtime.ir.types import DTYPES, FAMILIES

if TYPE_CHECKING:
    from opstep.lsp.project import Project

_KEYWORDS = {
    "param": ("param NAME: TYPE = initialiser",
              "Declares a weight: a named tensor that all graphs of the file share."),
    "state": ("state NAME: TYPE = initialiser",
              "Declares a named tensor that persists between runs and is not a weight."),
    "mesh": ("mesh data: 4, model: 2",
             "Declares how the ranks that run the program together are arranged: the axes, and how "
             "many there are along each."),
    "over": ("param NAME: TYPE over model axis 1",
             "Each rank has a part of the tensor, in the order of the ranks along these axes of "
             "the mesh; graphs see the type of the part."),
    "axis": ("param NAME: TYPE over model axis 1",
             "Which axis of the tensor is split, from 0; without it the first one."),
    "graph": ("graph NAME(input: TYPE, …) -> TYPE, … { … }",
              "Declares a graph: statements, one per line, each of which names its results."),
    "return": ("return a, b",
               "The last statement of a graph with results: as many values as the signature has "
               "types, each of exactly that type."),
    "assert": ('assert condition, "message"',
               "If the `bool[]` is false, the run fails with the message and the line, and none "
               "of its updates take effect."),
    "at": ('at "model.py":33, "train.py":10 in "encoder.0"',
           "The source lines that the statement was imported from, innermost first; they do not "
           "affect the program."),
    "in": ('at "model.py":33 in "encoder.0"',
           "The module that the statement was imported from; it does not affect the program."),
}  # fmt: skip
_CONSTANTS = {
    "true": "The bool true.",
    "false": "The bool false.",
    "none": "No value: for attributes whose default is `none`.",
}
_FLOATS = {
    "f64": (11, 53),
    "f32": (8, 24),
    "f16": (5, 11),
    "bf16": (8, 8),
}  # fmt: skip - bits of the exponent, bits of precision
_LARGEST = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028235e38,
    "f16": 65504.0,
    "bf16": 3.3895314e38,
}


def keyword(project: Project, found: Occurrence) -> str:
    form, about = _KEYWORDS[found.name]
    return paragraphs([block(form), about])


def axis(project: Project, found: Occurrence) -> str:
    """How many ranks there are along an axis of the mesh."""
    mesh = found.item.file.mesh
    extent = dict(mesh.axes).get(found.name) if mesh else None
    if mesh is None or extent is None:
        return f"The mesh has no axis {code(found.name)}."
    return paragraphs(
        [block(f"mesh {mesh}"), f"Along {code(found.name)}: {count(extent, 'rank')}."]
    )


def constant(project: Project, found: Occurrence) -> str:
    return _CONSTANTS[found.name]


def number(project: Project, found: Occurrence) -> str:
    """What a number among the operands becomes; of others there is nothing to say."""
    part, application = found.part, application_at(found)
    if application is None or not isinstance(part, Apply):
        return ""
    for operand in part.operands:
        if isinstance(operand, Literal):
            start, end = operand.span
            if start <= found.mark.start < end:
                t = literal_type(part, operand, application)
                return f"A tensor of rank 0: here {code(f'{t}[]')}." if t else ""
    return ""


def dtype(project: Project, found: Occurrence) -> str:
    """What numbers an element type has."""
    t = DTYPES.get(found.name)
    if t is None:
        return f"There is no element type {code(found.name)}: {', '.join(map(code, DTYPES))}."
    size = count(t.itemsize, "byte")
    if t.kind == "b":
        about = f"True or false, {size}."
    elif t.is_integer:
        low = 0 if t.kind == "u" else -(2 ** (t.bits - 1))
        sign = "Unsigned" if t.kind == "u" else "Signed"
        about = f"{sign} integers of {size}, {low:,} to {low + 2**t.bits - 1:,}. They wrap around."
    else:
        exponent, precision = _FLOATS[t.name]
        about = (
            f"Floating-point numbers of {size}: {exponent} bits of exponent, {precision} of "
            f"precision, largest {_LARGEST[t.name]:.5g}, steps of {2.0 ** (1 - precision):.2g} "
            "at 1."
        )
        if t.is_half:
            about += " Computed in f32 and rounded once."
    return paragraphs([block(t.name), about])


def family(project: Project, found: Occurrence) -> str:
    """What a type variable of the family may be."""
    return paragraphs([block(found.name), f"Any of {_listed(found.name)}."])


def _listed(family: str) -> str:
    return ", ".join(code(t.name) for t in FAMILIES[family])


def symbol(project: Project, found: Occurrence) -> str:
    """Which input binds a symbol, and to which of its axes."""
    graph, name = found.item.node, found.name
    if not isinstance(graph, Graph):
        return f"The dims of a named tensor are numbers: {code(name)} is a symbol."
    for parameter in graph.type_parameters:
        if parameter.name.text == name:
            return _type_variable(graph, parameter)
    dims = [
        (binding, axis)
        for binding in graph.inputs
        if binding.type is not None
        for axis, d in enumerate(binding.type.shape)
        if isinstance(d, Expr) and d.lone_symbol() == name
    ]
    if name not in bound_symbols(graph) or not dims:
        return (
            f"No input binds {code(name)}: an input must have it alone as a dim, as in "
            f"{code(f'x: f32[{name}]')}."
        )
    binding, axis = dims[0]
    where = link(found.file, found.item.start + binding.name.span.start)
    about = (
        f"Symbol of graph {code(graph.name.text)}: the size of axis {axis} of input "
        f"{code(binding.name.text)}, {where}, known when the graph is run or called."
    )
    others = ", ".join(code(f"{b.name.text}, axis {a}") for b, a in dims[1:])
    return paragraphs([block(name), about, f"Same size: {others}." if others else ""])


def _type_variable(graph: Graph, parameter: TypeParameter) -> str:
    name, family = parameter.name.text, parameter.family.text
    about = (
        f"Type variable of graph {code(graph.name.text)}: an element type, known when the graph is "
        f"run or called, any of {_listed(family)}."
    )
    variable = parameter.variable
    by = [b.name.text for b in graph.inputs if b.type and b.type.dtype is variable]
    inputs = f"That of {', '.join(map(code, by))}." if by else "No input has it."
    return paragraphs([block(f"{name}: {family}"), about, inputs])
