"""Programs with a graph more: the gradient of one that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import NOWHERE, Graph, Module

if TYPE_CHECKING:
    from opstep.api.program import Program


def with_gradient(program: Program, graph: Graph, wrt: Sequence[str], name: str) -> Module:
    """The program's module with the gradient of `graph`, called `name`. Raises as
    `Program.with_grad` does.
    """
    from opstep.runtime.transforms.grad import GradientError, grad

    _check(program, graph, wrt, name)
    module = program.module
    try:
        gradient = grad(module, graph.name.text, wrt, name=name, library=program.library)
    except GradientError as error:
        span = error.statement.span if error.statement else NOWHERE
        raise OpstepError(  # what a gradient was made of has no place in the text
            str(error), span=None if span == NOWHERE else span, source=module.source,
            hint=error.hint,
        ) from None  # fmt: skip
    return Module((*module.items, gradient), module.closing, module.source)


def _check(program: Program, graph: Graph, wrt: Sequence[str], name: str) -> None:
    """Complains of what `with_grad` was given; what the graph holds is `grad`'s affair."""
    if isinstance(wrt, str):
        raise InputError(f"wrt is the string {wrt!r}", hint=f"it is a list: [{wrt!r}]")
    if name in program.graphs:
        raise InputError(f"there is a graph {name} already", hint="give another name=")
    types = {n: d.type for n, d in program.module.tensors.items()}
    types |= {b.name.text: b.type for b in graph.inputs if b.type is not None}
    for variable in wrt:
        if variable not in types:
            message = f"{variable} is neither an input of {graph.name.text} nor a param or state"
            raise UnknownName(message, variable, types)
        if not types[variable].dtype.is_float:
            raise InputError(f"{variable} is {types[variable]}: only floats have derivatives")
