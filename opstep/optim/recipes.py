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
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError, SettingError, UnknownName
from opstep.runtime.ir.graph import Declaration, Graph, Module
from opstep.runtime.ir.lexer import is_tensor_name, quote_name
from opstep.runtime.ir.verified import Verified
from opstep.runtime.transforms.dependence import Dependence

# What callers give beside an optimizer's hyperparameters.
OPTIONS = (
    "freeze", "step", "clip_norm", "clip_value", "grad_norm", "ema", "loss_scale", "master_weights",
)  # fmt: skip


def trained_params(
    verified: Verified, graph: Graph, wrt: Sequence[str] | None, freeze: Sequence[str] = ()
) -> list[Declaration]:
    """The params that are to be trained, in the order of the file. `wrt`: names, and patterns with
    ``*``; None: all params of floats that the loss depends on. Of these, not those of `freeze`.
    """
    name = graph.name.text
    read = Dependence(verified).of(name, 0)
    used = {n: d for n, d in verified.tensors.items() if n in read and d.kind == "param"}
    if not used:
        refuse(f"graph {name} depends on no param of floats: there is nothing to train")
    sets: dict[str, set[str]] = {}
    for key, patterns in (("wrt", ["*"] if wrt is None else wrt), ("freeze", freeze)):
        if isinstance(patterns, str):
            raise InputError(
                f"{key} is the string {patterns!r}", hint=f"it is a list: [{patterns!r}]"
            )
        sets[key] = set().union(*(_matching(p, verified, graph, used) for p in patterns))
    chosen = sets["wrt"] - sets["freeze"]
    if not chosen:
        refuse(f"wrt{' and freeze leave' if freeze else ' leaves'} nothing to train")
    return [d for n, d in used.items() if n in chosen]


def _matching(
    pattern: str, verified: Verified, graph: Graph, used: Mapping[str, Declaration]
) -> set[str]:
    if pattern in used:
        return {pattern}
    name, there = graph.name.text, verified.tensors.get(pattern)
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


def counter_of(verified: Verified, graph: Graph, given: str | None) -> str:
    """The state that counts steps: a new one, or one of the program's that nothing else counts."""
    name = "step" if given is None else given
    module = verified.module
    there = module.tensors.get(name)
    hint = f"in Python step='{graph.name.text}.step' has this step count in a state of that name"
    if there is None:
        for other in module.graphs.values():
            if name in local_names(other):
                raise InputError(
                    f"graph {other.name.text} has a value {name}", hint=f"rename it; {hint}"
                )
        return name
    if there.kind != "state" or str(there.type) not in ("i32[]", "i64[]"):
        message = (
            f"{name} is a {there.kind} of type {there.type}, and steps are counted in an i64[]"
        )
        raise InputError(message, hint=hint)
    looked_at = [graph.name.text, *(module.graphs if given is None else ())]
    counting = [n for n in looked_at if name in effects_of([n], verified).updates]
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
    verified: Verified, graph: Graph, name: str, optimizer: Optimizer,
    trained: Sequence[Declaration], *,
    step: str | None = None, clip_norm: float | None = None, clip_value: float | None = None,
    grad_norm: bool = False, ema: float | None = None, loss_scale: LossScale | str | None = None,
    master_weights: bool = True,
) -> Recipe:  # fmt: skip
    """The `Recipe` of what was asked for. Raises `InputError`."""
    check_rate(verified.module, optimizer)
    bounds: dict[str, Any] = {"clip_norm": clip_norm, "clip_value": clip_value}
    for key, value in bounds.items():
        bounds[key] = None if value is None else number(key, value, above=True)
    if clip_norm is not None and clip_value is not None:
        refuse("clip_norm and clip_value: gradients are clipped in one way")
    if step is not None and not _is_name(step):
        raise SettingError("step", step, "the name of a state")
    counter = counter_of(verified, graph, step)
    return Recipe(
        name, optimizer, decay_of(optimizer, [d.name.text for d in trained]), counter, **bounds,
        grad_norm=flag("grad_norm", grad_norm),
        ema=None if ema is None else number("ema", ema, below=1.0),
        master_weights=flag("master_weights", master_weights),
        loss_scale=loss_scale_of(loss_scale),
        scale=f"{graph.name.text}.scale",
    )  # fmt: skip
