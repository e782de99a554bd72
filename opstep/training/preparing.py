"""What a run of training is made of: graphs, batches, the step; checked before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opstep.api.inputs import default_types
from opstep.api.program import Program
from opstep.optim.optimizers import optimizer as named_optimizer
from opstep.optim.schedules import Constant, Cosine, Linear, Step
from opstep.runtime.ir.calls import unify
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.types import TensorType
from opstep.training.data import Batches, Part, Stream
from opstep.training.files import TRAINED, VALIDATED
from opstep.training.fitting import Origin, fitted, origin_of
from opstep.training.indices import check_indices
from opstep.training.loop import Settings


def loss_of(program: Program, graph: str | None, step: str | None) -> tuple[str, str | None]:
    """The graph of the loss, and that of a step if the program has one."""
    name = graph
    if name is None:
        if step is not None and step.removesuffix("_step") in program.graphs:
            name = step.removesuffix("_step")
        elif "loss" in program.graphs:
            name = "loss"
        else:
            name = step or program.graph().name.text
    found = program.graph(name)
    results = found.results
    if not results or results[0].rank or not results[0].dtype.may_be_float:
        what = str(results[0]) if results else "nothing"
        raise InputError(
            f"graph {name} gives {what}; a loss is a scalar of floats, its first result",
            span=found.name.span, source=program.module.source,
            hint="mean(x) makes one, or name another graph",
        )  # fmt: skip
    if step is None:
        made = f"{name}_step"
        return name, made if made in program.graphs else None
    program.graph(step)
    return name, step


def input_types(program: Program, graphs: Sequence[str]) -> dict[str, TensorType]:
    """The inputs of all of these graphs, by name."""
    types: dict[str, TensorType] = {}
    for graph in graphs:
        found = program.graph(graph)
        variables = default_types(found)
        for binding in found.inputs:
            name, t = binding.name.text, binding.type
            assert t is not None
            t = t.with_dtype(t.dtype.bound(variables))
            there = types.setdefault(name, t)
            if there.dtype is not t.dtype or there.rank != t.rank:
                raise InputError(
                    f"input {name} is {there} in graph {graphs[0]}, and {t} in graph {graph}"
                )
    return types


def data_of(
    program: Program, data: Any, settings: Settings, measured: Sequence[str], validate: Any,
    rounded: bool, part: Part = Part(),
) -> tuple[Batches, Batches | None]:  # fmt: skip
    """Batches to train on, and those to validate on. `measured`: the graphs that run on the latter,
    of which the first is the loss; `part`: what this rank has of each batch. Raises `InputError`
    where data does not fit.
    """
    share = validate if isinstance(validate, (int, float)) else None
    strange = validate is not None and share is None and not isinstance(validate, (Path, Iterable))
    if strange or (share is not None and not 0 < share < 1):
        raise SettingError("validate", validate, "data, or a share of it, between 0 and 1")
    types = input_types(program, measured)
    own = settings.batch // part.count
    if _is_stream(data):
        if part.count > 1:
            raise InputError("batches of an iterable are not shared by ranks: give arrays or files")
        if share is not None:
            raise InputError("batches of an iterable have no share to validate on")
        origin, batches, rest = None, Stream(data), None
    else:
        origin, rest = origin_of(data), None
        wanted = types if share is not None else input_types(program, measured[:1])
        dataset = fitted(origin, wanted, TRAINED, rounded)
        if share is not None:
            dataset, rest = dataset.split(share, settings.seed)
        batches = Batches(dataset, settings.batch, settings.seed, settings.drop_last, part)
        check_indices(program, measured[0], dataset, own)
    if validate is not None and share is None:
        held = origin_of(validate) if origin is None else _held_out(origin, validate)
        rest = fitted(held, types, VALIDATED, rounded)
    if rest is None:
        return batches, None
    fixed = any(t.rank and isinstance(t.shape[0], int) for t in types.values())
    size = own if fixed else min(settings.batch, len(rest))
    held_batches = Batches(rest, size, None, drop_last=fixed)
    check_indices(program, measured[0], rest, size)
    return batches, held_batches


def _is_stream(data: Any) -> bool:
    """Whether data is an iterable of batches."""
    if isinstance(data, (str, Path, Mapping)):
        return False
    if not isinstance(data, Iterable):
        raise InputError(f"data is a {type(data).__name__}: it is to be files, arrays or batches")
    return not isinstance(data, (list, tuple)) or any(not isinstance(d, (str, Path)) for d in data)


def _held_out(origin: Origin, validate: Any) -> Origin:
    """What is validated on: another file, or a part of the tables that are trained on."""
    one = validate[0] if isinstance(validate, (list, tuple)) and len(validate) == 1 else validate
    if isinstance(one, str) and "=" not in one and not Path(one).exists():
        parts = [part for table in origin.whole if (part := table.part(one)) is not None]
        if parts:
            return Origin(tuple(parts), {}, origin.numbers, tuple(parts))
        if origin.whole and one.isidentifier():
            raise InputError(
                f"{one}: there is no such file or folder, and no such part of {origin.source}",
                hint=f"a part has columns such as {one}_x for x; a number is a share, such as 0.1",
            )
    held = origin_of(validate)
    return held._replace(numbers={**origin.numbers, **held.numbers})


def sized(settings: Settings, loss: Graph, ranks: int = 1) -> Settings:
    """Batches of the size that a loss takes alone, if it does, in each of so many ranks."""
    sizes = {b.type.shape[0] for b in loss.inputs if b.type is not None and b.type.rank}
    fixed = [d for d in sizes if isinstance(d, int)]
    if len(fixed) != 1 or len(sizes) != 1:
        return settings
    whole = fixed[0] * ranks
    if settings.batch not in (whole, Settings.batch):
        on = f" on {ranks} ranks" if ranks > 1 else ""
        raise InputError(
            f"graph {loss.name.text} takes batches of {whole} rows{on}, not of {settings.batch}"
        )
    return replace(settings, batch=whole, drop_last=True)


def with_step(
    program: Program, loss: str, optimizer: Any, arguments: Mapping[str, Any], steps: int | None
) -> tuple[Program, str]:
    """The program with a graph of a step, and its name. `steps`: of the run, if it is known."""
    optimizer, arguments = scheduled(optimizer, arguments, steps)
    if arguments.get("clip_norm") is not None or arguments.get("loss_scale") is not None:
        arguments.setdefault("grad_norm", True)  # it is computed anyway
    name = arguments.pop("name", None) or f"{loss}_step"
    return program.with_optimizer(loss, optimizer, name=name, **arguments), name


def sizes_of(loss: Graph, batches: Batches) -> dict[str, Any]:
    """What the symbols of a loss stand for in a batch."""
    if isinstance(batches, Stream):
        raise InputError(
            "memory: batches of an iterable have sizes that nobody knows before they are made",
            hint='give them, too: symbols={"N": 64}',
        )
    first = batches.dataset.rows(np.arange(batches.size // batches.part.count))
    variables = default_types(loss)
    types = []
    for binding in loss.inputs:
        assert binding.type is not None
        dtype = binding.type.dtype.bound(variables)
        types.append(TensorType(dtype, first[binding.name.text].shape))
    found, _ = unify(loss, types)
    return {name: value for name, value in found.items() if isinstance(value, int)}


def scheduled(
    optimizer: Any, arguments: Mapping[str, Any], steps: int | None
) -> tuple[Any, dict[str, Any]]:
    """What `schedule` and `warmup` say, as a schedule of so many steps."""
    arguments = dict(arguments)
    kind, warmup = arguments.pop("schedule", None), arguments.pop("warmup", 0)
    if not kind and not warmup:
        return optimizer, arguments
    if not isinstance(optimizer, str):
        raise InputError("schedule and warmup are beside the name of an optimizer, not beside one")
    rate: Any = arguments.get("lr")
    if rate is None:
        rate = named_optimizer(optimizer, {}).lr
    kind, _, every = str(kind or "constant").partition("=")
    if every and kind != "step":
        raise SettingError("schedule", f"{kind}={every}", "constant, linear, cosine or step=N")
    if kind == "constant":
        made = Constant(rate, warmup=warmup)
    elif kind in ("linear", "cosine"):
        if steps is None:
            raise InputError(f"schedule {kind} needs data with a length: it ends at the last step")
        made = (Linear if kind == "linear" else Cosine)(rate, max(steps, 1), warmup=warmup)
    elif kind == "step" and every.isdecimal() and len(every) < 19:
        made = Step(rate, int(every), warmup=warmup)
    else:
        given = f"{kind}={every}" if every else kind
        raise SettingError("schedule", given, "constant, linear, cosine or step=N")
    return optimizer, {**arguments, "lr": made}
