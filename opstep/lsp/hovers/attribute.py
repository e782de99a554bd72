"""About an attribute: its type, its default, and what the op's text says of it."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING

from opstep.lsp.hovers.markdown import block, code, paragraphs, prose
from opstep.lsp.hovers.operation import application_at
from opstep.lsp.occurrences import Occurrence, op_named
from opstep.runtime.ir.op import AttrSpec, Op
from opstep.runtime.ir.printer import print_value

if TYPE_CHECKING:
    from opstep.lsp.project import Project

TYPES = {
    "int": "an integer",
    "float": "a number",
    "number": "a number",
    "bool": "`true` or `false`",
    "str": "a string",
    "dim": "an integer or a symbol",
    "dtype": "an element type",
    "graph": "the name of a graph",
    "ints": "a list of integers",
    "floats": "a list of numbers",
    "dims": "a list of integers and symbols",
    "graphs": "a list of names of graphs",
    "axes": "an axis of the mesh, or a list of them",
}
_SENTENCE = re.compile(r"(?<=[.;:])\s+(?=[A-Z`])|\n\n")


def text(project: Project, found: Occurrence) -> str:
    op = op_named(found.mark.owner)
    if op is None:
        return f"{code(found.mark.owner)} takes no attributes." if found.mark.owner else ""
    spec = next((a for a in op.attrs if a.name == found.name), None)
    if op.traits.foreign:
        return f"An argument of {code(op.name)}, by the name that it has there."
    if spec is None:
        has = ", ".join(code(a.name) for a in op.attrs)
        return f"{code(op.name)} has no attribute {code(found.name)}" + (
            f": {has}." if has else "."
        )
    return paragraphs(
        [block(declared(spec)), _kind(op, spec), meaning(op, spec), _value_here(found)]
    )


def declared(spec: AttrSpec) -> str:
    """``stride: ints = [1, 1]``"""
    default = "" if spec.required else f" = {print_value(spec.default)}"
    return f"{spec.name}: {spec.type}{default}"


def _kind(op: type[Op], spec: AttrSpec) -> str:
    words = op.choices.get(spec.name, ())
    kind = " or ".join(code(f'"{w}"') for w in words) or TYPES.get(spec.type, spec.type)
    if spec.required:
        return f"Attribute of {code(op.name)}: {kind}. Required."
    if spec.default is None:
        kind += ", or `none`"
    return f"Attribute of {code(op.name)}: {kind}; default {code(print_value(spec.default))}."


def meaning(op: type[Op], spec: AttrSpec) -> str:
    """The sentences of the op's text, and of its family's, that have the attribute's name."""
    family = inspect.cleandoc(sys.modules[op.__module__].__doc__ or "")
    word = re.compile(rf"\b{re.escape(spec.name)}\b", re.IGNORECASE)
    sentences = []
    for text in (inspect.getdoc(op) or "", op.formula, family.partition("\n\n")[2]):
        sentences += [s for s in _SENTENCE.split(text) if word.search(s)]
    return prose("\n\n".join(dict.fromkeys(sentences)))


def _value_here(found: Occurrence) -> str:
    application = application_at(found)
    if application is None or found.name not in application.attrs:
        return ""
    return f"Here {code(print_value(application.attrs[found.name]))}."
