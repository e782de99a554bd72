"""Programs with more graphs: a step of training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opstep.api.budget import within
from opstep.api.gradients import with_gradient
from opstep.optim.optimizers import Optimizer, optimizer
from opstep.optim.parallel import Parallel, parallel_of, together
from opstep.optim.recipes import OPTIONS, recipe, trained_params
from opstep.optim.scaling import scaled_loss
from opstep.optim.sharding import check_elementwise, shared_out
from opstep.optim.step import declare_states, write_step
from opstep.optim.writing import Writer, fresh
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.graph import Declaration, Module
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import DType
from opstep.runtime.ir.verify import verify

if TYPE_CHECKING:
    from opstep.api.program import Program


def grown(
    program: Program, module: Module, gradient: str = "", root: str = "",
    memory: str | int | None = None, symbols: Mapping[str, int | DType] | None = None,
) -> Program:  # fmt: skip
    """A program of `module`, which is that of `program` and more, with the same values. `memory`:
    what a run of its graph `root` takes at most, `gradient` being the graph that may be changed.
    """
    new = type(program)(module, program.fallback, program.mesh)
    if memory is not None:
        frugal = within(new, gradient, root, memory, symbols or {})
        new = type(program)(frugal, program.fallback, program.mesh)
    new.seed = program.seed
    new.files = program.files
    for key in program.params.known():
        new.params[key] = program.params.held(key)
    return new


def with_training_step(
    program: Program, loss: str, kind: str | Optimizer, wrt: Sequence[str] | None,
    name: str, options: Mapping[str, Any],
    memory: str | int | None = None, symbols: Mapping[str, int | DType] | None = None,
) -> Program:  # fmt: skip
    """`Program.with_optimizer`."""
    module, gradient = _with_step(program, loss, kind, wrt, name, options)
    try:
        return grown(program, module, gradient, name, memory, symbols)
    except OpstepError:  # in the formula of an optimizer: read as a file it has lines to point at
        read = parse(print_module(module), f"{name}.opg")
        verify(read, library=program.library, mesh=program.mesh)
        raise


def _with_step(
    program: Program, loss: str, kind: str | Optimizer, wrt: Sequence[str] | None,
    name: str, options: Mapping[str, Any],
) -> tuple[Module, str]:  # fmt: skip
    """The program's module with a step of training, called `name`, and what that needs; the name of
    the gradient.
    """
    graph = program.graph(loss)
    module, options = program.module, dict(options)
    asked = {k: options.pop(k, None) for k in ("data_parallel", "bucket", "shard_optimizer")}
    own = {k: options.pop(k) for k in list(options) if k not in OPTIONS}
    chosen = optimizer(kind, own, OPTIONS)
    trained = trained_params(program.verified, graph, wrt, options.pop("freeze", ()))
    parallel = parallel_of(
        program.mesh, asked["data_parallel"], asked["bucket"], asked["shard_optimizer"] or False,
        [d.name.text for d in trained if d.name.text in program.verified.shards],
    )  # fmt: skip
    made_of = recipe(program.verified, graph, name, chosen, trained, **options)
    made_of = replace(made_of, **_sharing(program, chosen, trained, parallel))
    graphs = {n for m in (*program.library, module) for n in m.graphs}
    reserved = {*OPS, *CONTROL, *graphs} - module.graphs.keys()
    _check_name(name, {*reserved, *graphs})
    writer = Writer(module, reserved)
    declare_states(writer, made_of, [module.tensors[d.name.text] for d in trained])
    if made_of.loss_scale is not None:
        loss = scaled_loss(writer, graph, made_of.scale)
    declared = type(program)(writer.finished(), program.fallback, program.mesh)
    gradient = fresh(f"{loss}_grad", {*reserved, *writer.graphs, name})
    names = [d.name.text for d in trained]
    module = with_gradient(declared, declared.graph(loss), names, gradient)
    if parallel is not None:
        alone = module.graphs[gradient]
        shared = together(
            alone, graph, trained, dict(declared.verified.tensors), parallel,
            made_of.parts, made_of.shards,
        )  # fmt: skip
        items = tuple(shared if item is alone else item for item in module.items)
        module = Module(items, module.closing, module.source)
    writer = Writer(module, reserved)
    write_step(writer, made_of, graph, module.graphs[gradient], trained)
    return writer.finished(), gradient


def _sharing(
    program: Program, chosen: Optimizer, trained: Sequence[Declaration], parallel: Parallel | None
) -> dict[str, Any]:
    """Of a recipe: which params ranks have parts of, and of which they update parts."""
    names = [d.name.text for d in trained]
    shards = {n: s for n, s in program.verified.shards.items() if n in names}
    if shards:
        first = program.module.tensors[next(iter(shards))]
        check_elementwise(chosen, f"{first.kind} {first.name.text} is declared as shards")
    if parallel is None or not parallel.shares_states:
        return {"shards": shards}
    check_elementwise(chosen, "shard_optimizer")
    parts = shared_out(trained, shards, parallel.over)
    return {"shards": shards, "parts": parts, "bucket": parallel.bucket}


def _check_name(name: str, taken: Collection[str]) -> None:
    """Complains of a name that the new graph cannot have."""
    if not isinstance(name, str) or not name or identifier(name) != name:
        raise SettingError("name", name, "letters, digits and _")
    if name in taken:
        raise InputError(f"there is a graph or an op {name} already", hint="give another name=")
