"""Programs with more graphs: the gradient of one that they have, a step of its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opstep.optim.optimizers import Optimizer, optimizer
from opstep.optim.recipes import OPTIONS, recipe, trained_params
from opstep.optim.scaling import scaled_loss
from opstep.optim.step import declare_states, write_step
from opstep.optim.writing import Writer, fresh
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import NOWHERE, Graph, Module
from opstep.runtime.ir.op import OPS

if TYPE_CHECKING:
    from opstep.api.program import Program


def grown(program: Program, module: Module) -> Program:
    """A program of `module`, which is that of `program` and more, with the same values."""
    new = type(program)(module, program.fallback)
    new.seed = program.seed
    new.files = program.files
    for key in program.params.known():
        new.params[key] = program.params[key]
    return new


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


def with_training_step(
    program: Program, loss: str, kind: str | Optimizer, wrt: Sequence[str] | None,
    name: str, options: Mapping[str, Any],
) -> Module:  # fmt: skip
    """The program's module with a step of training, called `name`, and what that needs. Raises as
    `Program.with_optimizer` does.
    """
    graph = program.graph(loss)
    _check_free(program, name)
    module, options = program.module, dict(options)
    own = {k: options.pop(k) for k in list(options) if k not in OPTIONS}
    chosen = optimizer(kind, own, OPTIONS)
    graphs = {n: g for m in (*program.library, module) for n, g in m.graphs.items()}
    trained = trained_params(module, graphs, graph, wrt)
    made_of = recipe(module, graphs, graph, name, chosen, trained, **options)
    reserved = {*OPS, *CONTROL, *graphs} - module.graphs.keys()
    writer = Writer(module, reserved)
    declare_states(writer, made_of, trained)
    if made_of.loss_scale is not None:
        loss = scaled_loss(writer, graph, made_of.scale)
    declared = type(program)(writer.finished(), program.fallback)
    gradient = fresh(f"{loss}_grad", {*reserved, *writer.graphs, name})
    names = [d.name.text for d in trained]
    module = with_gradient(declared, declared.graph(loss), names, gradient)
    writer = Writer(module, reserved)
    write_step(writer, made_of, graph, module.graphs[gradient], trained)
    return writer.finished()


def _check_free(program: Program, name: str) -> None:
    if name in program.graphs:
        raise InputError(f"there is a graph {name} already", hint="give another name=")


def _check(program: Program, graph: Graph, wrt: Sequence[str], name: str) -> None:
    """Complains of what `with_grad` was given; what the graph holds is `grad`'s affair."""
    if isinstance(wrt, str):
        raise InputError(f"wrt is the string {wrt!r}", hint=f"it is a list: [{wrt!r}]")
    _check_free(program, name)
    types = {n: d.type for n, d in program.module.tensors.items()}
    types |= {b.name.text: b.type for b in graph.inputs if b.type is not None}
    for variable in wrt:
        if variable not in types:
            message = f"{variable} is neither an input of {graph.name.text} nor a param or state"
            raise UnknownName(message, variable, types)
        if not types[variable].dtype.is_float:
            raise InputError(f"{variable} is {types[variable]}: only floats have derivatives")
