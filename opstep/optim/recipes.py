"""From what a caller asks for to what a step is made of: names are found, values checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from opstep.optim.checks import flag, number, refuse
from opstep.optim.optimizers import Optimizer
from opstep.optim.scaling import LossScale, loss_scale_of
from opstep.optim.updates import Recipe
from opstep.optim.writing import local_names
from opstep.runtime.ir.errors import InputError, SettingError, UnknownName
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Module, Update, names_read
from opstep.runtime.ir.lexer import is_tensor_name, quote_name
from opstep.runtime.ir.op import Ref

# What callers give beside an optimizer's hyperparameters.
OPTIONS = ("freeze", "step", "clip_norm", "clip_value", "ema", "loss_scale", "master_weights")


def reached(graphs: Mapping[str, Graph], name: str) -> list[Graph]:
    """A graph and all that it calls, also through attributes of control flow."""
    found = {name: graphs[name]}
    todo = [name]
    while todo:
        for statement in graphs[todo.pop()].body:
            if not isinstance(statement, Apply):
                continue
            called = [statement.callee.text]
            for attribute in statement.attrs:
                value = attribute.value
                parts = value if type(value) is tuple else (value,)
                called += [part.name for part in parts if isinstance(part, Ref)]
            new = [c for c in called if c in graphs and c not in found]
            found |= {c: graphs[c] for c in new}
            todo += new
    return list(found.values())


def trained_params(
    module: Module, graphs: Mapping[str, Graph], graph: Graph, wrt: Sequence[str] | None,
    freeze: Sequence[str] = (),
) -> list[Declaration]:  # fmt: skip
    """The params that are to be trained, in the order of the file. `wrt`: names, and patterns with
    ``*``; None: all params of floats that the graph depends on. Of these, not those of `freeze`.
    """
    name = graph.name.text
    read = {n for g in reached(graphs, name) for s in g.body for n in names_read(s)}
    params = {n: d for n, d in module.tensors.items() if d.kind == "param"}
    used = {n: d for n, d in params.items() if n in read and d.type.dtype.is_float}
    if not used:
        refuse(f"graph {name} depends on no param of floats: there is nothing to train")
    sets: dict[str, set[str]] = {}
    for key, patterns in (("wrt", ["*"] if wrt is None else wrt), ("freeze", freeze)):
        if isinstance(patterns, str):
            raise InputError(
                f"{key} is the string {patterns!r}", hint=f"it is a list: [{patterns!r}]"
            )
        sets[key] = set().union(*(_matching(p, module, graph, used) for p in patterns))
    chosen = sets["wrt"] - sets["freeze"]
    if not chosen:
        refuse(f"wrt{' and freeze leave' if freeze else ' leaves'} nothing to train")
    return [d for n, d in used.items() if n in chosen]


def _matching(
    pattern: str, module: Module, graph: Graph, used: Mapping[str, Declaration]
) -> set[str]:
    if pattern in used:
        return {pattern}
    name, there = graph.name.text, module.tensors.get(pattern)
    if there is None:
        found = {n for n in used if fnmatchcase(n, pattern)}
        if not found:
            raise UnknownName(f"graph {name} depends on no param {pattern}", pattern, used)
        return found
    if there.kind != "param":
        raise InputError(f"{pattern} is a {there.kind}: only params are trained")
    if not there.type.dtype.is_float:
        raise InputError(f"{pattern} is {there.type}: only floats have derivatives")
    raise InputError(f"graph {name} does not depend on {pattern}")


def decay_of(optimizer: Optimizer, names: Collection[str]) -> dict[str, float]:
    """The weight decay of each param."""
    given = optimizer.weight_decay
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    for pattern in given:
        if not any(fnmatchcase(n, pattern) for n in names):
            message = f"weight_decay: no param that is trained fits {pattern}"
            raise UnknownName(message, pattern, names, "they are:")
    fits = {n: [d for p, d in given.items() if fnmatchcase(n, p)] for n in names}
    return {n: decays[0] if decays else 0.0 for n, decays in fits.items()}


def counter_of(module: Module, graphs: Mapping[str, Graph], graph: Graph, given: str | None) -> str:
    """The state that counts steps: a new one, or one of the program's that nothing else counts."""
    name = "step" if given is None else given
    there = module.tensors.get(name)
    hint = f"step='{graph.name.text}.step' has this step count in a state of that name"
    if there is None:
        for other in module.graphs.values():
            if name in local_names(other):
                raise InputError(f"graph {other.name.text} has a value {name}", hint=hint)
        return name
    if there.kind != "state" or str(there.type) not in ("i32[]", "i64[]"):
        message = (
            f"{name} is a {there.kind} of type {there.type}, and steps are counted in an i64[]"
        )
        raise InputError(message, hint=hint)
    inside = [g.name.text for g in reached(graphs, graph.name.text)]
    counting = [
        n for n, g in graphs.items()
        if (given is None or n in inside)
        and any(isinstance(s, Update) and s.target.text == name for s in g.body)
    ]  # fmt: skip
    if counting:
        raise InputError(f"graph {counting[0]} updates state {name}", hint=hint)
    return name


def check_rate(module: Module, optimizer: Optimizer) -> None:
    """A learning rate that has a name is a scalar state, or a graph that gives a scalar."""
    name = optimizer.lr
    if not isinstance(name, str):
        return
    tensor, graph = module.tensors.get(name), module.graphs.get(name)
    if tensor is not None:
        if tensor.type.rank or not tensor.type.dtype.is_float:
            raise InputError(f"lr: {name} is {tensor.type}, not f64[] or f32[]")
    elif graph is not None:
        if graph.inputs or [str(t) for t in graph.results] not in (["f64[]"], ["f32[]"]):
            raise InputError(
                f"lr: graph {name} is to have no inputs and one result, f64[] or f32[]"
            )
    else:
        states = [n for n, d in module.tensors.items() if not d.type.rank]
        raise UnknownName(f"lr: there is no state or graph {name}", name, [*states, *module.graphs])


def _is_name(text: Any) -> bool:
    """Whether a named tensor can be called so."""
    return isinstance(text, str) and text.isprintable() and is_tensor_name(quote_name(text))


def recipe(
    module: Module, graphs: Mapping[str, Graph], graph: Graph, name: str,
    optimizer: Optimizer, trained: Sequence[Declaration], *,
    step: str | None = None, clip_norm: float | None = None, clip_value: float | None = None,
    ema: float | None = None, loss_scale: LossScale | str | None = None,
    master_weights: bool = True,
) -> Recipe:  # fmt: skip
    """The `Recipe` of what was asked for. Raises `InputError`."""
    check_rate(module, optimizer)
    bounds: dict[str, Any] = {"clip_norm": clip_norm, "clip_value": clip_value}
    for key, value in bounds.items():
        bounds[key] = None if value is None else number(key, value, above=True)
    if clip_norm is not None and clip_value is not None:
        refuse("clip_norm and clip_value: gradients are clipped in one way")
    if step is not None and not _is_name(step):
        raise SettingError("step", step, "the name of a state")
    counter = counter_of(module, graphs, graph, step)
    return Recipe(
        name, optimizer, decay_of(optimizer, [d.name.text for d in trained]), counter, **bounds,
        ema=None if ema is None else number("ema", ema, below=1.0),
        master_weights=flag("master_weights", master_weights),
        loss_scale=loss_scale_of(loss_scale),
        scale=f"{graph.name.text}.scale",
    )  # fmt: skip
