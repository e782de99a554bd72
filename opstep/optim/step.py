"""The text of a training step: the gradient of a loss, what is done to it, and the updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opstep.optim.scaling import LOWEST
from opstep.optim.schedules import Schedule
from opstep.optim.sharding import Part, buckets, declared_as, gathered, own_part
from opstep.optim.sharding import over as how_over
from opstep.optim.updates import Recipe, Updates
from opstep.optim.writing import Body, Writer
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Declaration, Graph, Return
from opstep.runtime.ir.lexer import identifier, quote_name
from opstep.runtime.ir.printer import print_sharding, print_type_parameters
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType, f32, f64


@dataclass
class _Param:
    """A param on its way through a step: `stem` begins the names of its values, `gradient` is the
    value that holds its gradient so far. `shard`: ranks have parts of it, or of its update alone,
    where that `is_gathered`.
    """

    name: str
    type: TensorType
    stem: str
    gradient: str
    shard: Shard | None = None
    is_gathered: bool = False

    @property
    def computed(self) -> TensorType:
        """The type that it is updated in, or a part of it; states have its element type."""
        t = self.shard.type if self.is_gathered and self.shard is not None else self.type
        return t.with_dtype(f32) if t.dtype.is_half else t


def write_step(
    writer: Writer, recipe: Recipe, loss: Graph, gradient: Graph, trained: Sequence[Declaration]
) -> None:
    """Adds the step, with the graphs that it needs; its states are there. `gradient` returns the
    results of the loss (before them, where that is scaled, the scaled one), then the derivatives by
    `trained`.
    """
    inputs = {b.name.text: str(b.type) for b in loss.inputs}
    scope = Body({*writer.tensors, *inputs})
    results, params = _gradient(scope, recipe, loss, gradient, trained)
    norm, finite = _prepare(scope, recipe, params)
    updates = Updates(writer, recipe)
    if recipe.loss_scale is None:
        _update(scope, updates, params)
    else:
        _update_where(finite, scope, updates, params)
    told = f"A step of training with {recipe.optimizer.title}."
    types = dict(zip(results, map(str, loss.results), strict=True))
    if recipe.grad_norm:
        wide = any(p.computed.dtype is f64 for p in params)
        types[norm] = "f64[]" if wide else "f32[]"
    parameters = print_type_parameters(loss)
    writer.graph(recipe.name, inputs, types, scope.lines, told, parameters)


# --- states ---------------------------------------------------------------------------------------


def declare_states(writer: Writer, recipe: Recipe, trained: Sequence[Declaration]) -> None:
    """Declares what is kept between steps; what is there already, and of that type, is used.
    `trained`: the params as they are declared.
    """
    new = [(recipe.counter, "i64[]", "0")]
    if recipe.loss_scale is not None:
        new.append((recipe.scale, "f32[]", repr(recipe.loss_scale.initial)))
        new.append((f"{recipe.scale}.good", "i32[]", "0"))
    for declared in trained:
        name, t = declared.name.text, declared.type
        wide = t.with_dtype(f32) if t.dtype.is_half else t
        kept = {"master": wide} if t.dtype.is_half and recipe.master_weights else {}
        kept |= recipe.optimizer.states(wide)
        kept |= {"ema": wide} if recipe.ema is not None else {}
        sharding = declared.sharding
        if name in recipe.parts:
            sharding = declared_as(recipe.parts[name])
        for slot, own in kept.items():
            over = print_sharding(sharding) if own.shape == t.shape else ""
            new.append((f"{name}.{slot}", f"{own}{over}", "zeros()"))
    text = ""
    for name, t, init in new:
        there = writer.tensors.get(name)
        if there is None:
            text += f"state {quote_name(name)}: {t} = {init}\n"
        elif name != recipe.counter and (there.kind, _declared(there)) != ("state", t):
            message = f"{recipe.optimizer.name} keeps a state {name}: {t}"
            hint = f"the program has a {there.kind} {name}: {_declared(there)}; rename it"
            raise InputError(message, hint=hint)
    if text:
        writer.declare(f"# What training keeps between steps, by the names of params.\n{text}")


def _declared(d: Declaration) -> str:
    """Its type, and how that is shared out."""
    return f"{d.type}{print_sharding(d.sharding)}"


# --- gradients ------------------------------------------------------------------------------------


def _gradient(
    scope: Body, recipe: Recipe, loss: Graph, gradient: Graph, trained: Sequence[Declaration]
) -> tuple[list[str], list[_Param]]:
    """The call of the gradient: names of the loss's results, and the params."""
    (returned,) = (s for s in gradient.body if isinstance(s, Return))
    (of_loss,) = (s for s in loss.body if isinstance(s, Return))
    names = [v.text for v in returned.values]
    first, end = len(names) - len(trained) - len(loss.results), len(names) - len(trained)
    names[first:end] = [v.text for v in of_loss.values]  # whatever the gradient calls them
    values = [scope.name(identifier(name)) for name in names]
    arguments = ", ".join(b.name.text for b in gradient.inputs)
    scope.line(f"{', '.join(values)} = {gradient.name.text}({arguments})")
    results, derivatives = values[: -len(trained)], values[-len(trained) :]
    params = []
    for declared, derivative in zip(trained, derivatives, strict=True):
        name = declared.name.text
        part = recipe.parts.get(name)
        params.append(
            _Param(name, declared.type, identifier(name), derivative,
                   part or recipe.shards.get(name), part is not None)
        )  # fmt: skip
    return results[len(results) - len(loss.results) :], params


def _prepare(scope: Body, recipe: Recipe, params: list[_Param]) -> tuple[str, str]:
    """Gradients become what updates take: in f32, unscaled, clipped. Gives the names of their norm,
    and where the loss is scaled of the value that says whether they are finite.
    """
    half = [p for p in params if p.type.dtype.is_half]
    _change(scope, "wide", half, "cast({}, dtype=f32)", "Gradients in f32.")
    norm = finite = ""
    if recipe.loss_scale is not None:
        told = "Gradients of the loss as it was before it was scaled."
        inverse = scope.value("inverse", f"reciprocal({quote_name(recipe.scale)})", told)
        _change(scope, "unscaled", params, f"mul({{}}, {inverse})")
    if recipe.loss_scale is not None or recipe.clip_norm is not None or recipe.grad_norm:
        norm = _norm(scope, params)
    if recipe.loss_scale is not None:  # before they are clipped, which hides infinities
        finite = scope.value("finite", f"isfinite({norm})")
    if recipe.clip_norm is not None:
        _clip_norm(scope, recipe.clip_norm, norm, params)
    if recipe.clip_value is not None:
        bound = recipe.clip_value
        told = f"No element of a gradient is beyond {bound:g}."
        _change(scope, "clipped", params, f"clip({{}}, low={-bound}, high={bound})", told)
    return norm, finite


def _change(
    scope: Body, stage: str, params: list[_Param], expression: str, comment: str = ""
) -> None:
    """A line for each gradient; `stage` begins the names of the values."""
    for p in params:
        p.gradient = scope.value(f"{stage}_{p.stem}", expression.format(p.gradient), comment)
        comment = ""


def _norm(scope: Body, params: list[_Param]) -> str:
    """The norm of all gradients; infinite or NaN where an element is."""
    comment = "The norm of all gradients together."
    norms: dict[str, list[str]] = {}  # by the ranks that have parts
    for p in params:
        over = how_over(p.shard.group) or ", " if p.shard else ""
        norm = scope.value(f"norm_{p.stem}", f"norm({p.gradient})", comment)
        norms.setdefault(over, []).append(norm)
        comment = ""
    found = []
    for over, some in norms.items():
        found.append(scope.value("norms", f"stack({', '.join(some)})"))
        if over:
            found[-1] = scope.value("all_norms", f"all_gather({found[-1]}{over.rstrip(', ')})")
    together = found[0] if len(found) == 1 else scope.value("norms", f"concat({', '.join(found)})")
    return scope.value("grad_norm", f"norm({together})")


def _clip_norm(scope: Body, bound: float, norm: str, params: list[_Param]) -> None:
    """As torch.nn.utils.clip_grad_norm_ does it: times bound / (norm + 1e-6), if less than 1."""
    told = f"Where it is above {bound:g}, gradients are scaled down to that norm."
    larger = scope.value("larger", f"add({norm}, 1e-06)", told)
    ratio = scope.value("ratio", f"div({bound}, {larger})")
    factor = scope.value("factor", f"minimum({ratio}, 1.0)")
    dtypes = {p.computed.dtype for p in params}
    for dtype in sorted(dtypes, key=str):
        own = factor
        if len(dtypes) > 1:
            own = scope.value(f"factor_{dtype}", f"cast({factor}, dtype={dtype})")
        some = [p for p in params if p.computed.dtype is dtype]
        _change(scope, "clipped", some, f"mul({{}}, {own})")


# --- updates --------------------------------------------------------------------------------------


def _update_where(finite: str, scope: Body, updates: Updates, params: list[_Param]) -> None:
    """Updates that are made only where gradients are finite, and the loss's next scale."""
    writer, recipe = updates.writer, updates.recipe
    assert recipe.loss_scale is not None
    inner = Body(set(writer.tensors))
    passed = [p.gradient for p in params]
    for p in params:
        p.gradient = inner.name(f"d_{p.stem}")
    _update(inner, updates, params)
    taken = {p.gradient: str(p.computed) for p in params}
    told = f"The updates of a step of {recipe.optimizer.name}."
    update = writer.graph(f"{recipe.name}_update", taken, {}, inner.lines, told)
    skip = writer.graph(f"{recipe.name}_skip", taken, {}, [], "No updates.")
    scope.line(
        f"cond({finite}, {', '.join(passed)}, then={update}, else={skip})",
        "Where a gradient is not finite, only the scale of the loss changes.",
    )
    scale, good = quote_name(recipe.scale), quote_name(f"{recipe.scale}.good")
    following = recipe.loss_scale.next_scale(writer, scale, good)
    next_scale, next_good = scope.name("next_scale"), scope.name("next_good")
    scope.line(f"{next_scale}, {next_good} = {following}({finite})")
    alive = scope.value("alive", f"greater_equal({next_scale}, {LOWEST})")
    scope.line(f'assert {alive}, "gradients are not finite, however small the loss is scaled"')
    scope.line(f"{scale} <- {next_scale}")
    scope.line(f"{good} <- {next_good}")


def _update(scope: Body, updates: Updates, params: list[_Param]) -> None:
    recipe = updates.recipe
    lr = _learning_rate(scope, updates)
    scalars = {}
    for dtype in sorted({p.computed.dtype for p in params}, key=str):
        scalars[dtype] = _rates(scope, updates, lr, dtype)
    keeps = _keeps(scope, updates, lr, params)
    shares = {}
    if recipe.ema is not None:
        for dtype in scalars:
            shares[dtype] = scope.value("share", f"{updates.ema_share(dtype)}()")
    rank, parts = "", []
    for p in params:
        given = [*scalars[p.computed.dtype]]
        if recipe.decays:
            given.append(keeps[p.name])
        if p.is_gathered and p.shard is not None and not rank:
            at = how_over(p.shard.group).removeprefix(", ")
            rank = scope.value(
                "place", f"rank({at})", "Each rank updates its part of these params."
            )
        new = _update_param(scope, updates, p, given, shares.get(p.computed.dtype), rank)
        if p.is_gathered and p.shard is not None:
            parts.append((p.name, Part(new, p.stem, p.shard)))
    _gather(scope, recipe, parts)
    counter = quote_name(recipe.counter)
    scope.line("")
    following = scope.value(identifier(f"next_{recipe.counter}"), f"add({counter}, 1)")
    scope.line(f"{counter} <- {following}")


def _learning_rate(scope: Body, updates: Updates) -> str:
    """The value of this step's learning rate, in f64."""
    lr, told = updates.optimizer.lr, f"Updates by {updates.optimizer.name}."
    if isinstance(lr, Schedule):
        return scope.value("lr", f"{updates.schedule}()", told)
    if not isinstance(lr, str):
        return scope.value("lr", f"full(shape=[], value={lr}, dtype=f64)", told)
    tensor = updates.writer.tensors.get(lr)
    if tensor is not None:
        return scope.value("lr", f"cast({quote_name(lr)}, dtype=f64)", told)
    graph = updates.writer.graphs[lr]
    name = scope.value("lr", f"{lr}()", told)
    if graph.results[0].dtype is f64:
        return name
    return scope.value("lr_f64", f"cast({name}, dtype=f64)")


def _rates(scope: Body, updates: Updates, lr: str, dtype: DType) -> list[str]:
    """The values of the optimizer's scalars in `dtype`."""
    names, text = updates.optimizer.rates()
    if not text:
        return [lr if dtype is f64 else scope.value("rate", f"cast({lr}, dtype={dtype})")]
    values = [scope.name(name) for name in names]
    scope.line(f"{', '.join(values)} = {updates.rates(dtype)}({lr})")
    return values


def _keeps(scope: Body, updates: Updates, lr: str, params: list[_Param]) -> dict[str, str]:
    """By name of a param, the last operand of its update, which has its weight decay."""
    decay = updates.recipe.decay
    if not updates.optimizer.decoupled:
        return {p.name: repr(decay[p.name]) for p in params}
    shared: dict[tuple[DType, float], str] = {}
    for p in params:
        key = (p.computed.dtype, decay[p.name])
        if key not in shared:
            call = f"{updates.keep(key[0])}({lr}, {key[1]})" if key[1] else ""
            shared[key] = scope.value("keep", call) if call else "1.0"
    return {p.name: shared[p.computed.dtype, decay[p.name]] for p in params}


def _gather(scope: Body, recipe: Recipe, parts: Sequence[tuple[str, Part]]) -> None:
    """The updates of params of which each rank has updated a part."""
    names = {part.value: name for name, part in parts}
    comment = "All parts of these params, of all ranks."
    for bucket in buckets([part for _, part in parts], recipe.bucket, recipe.bucket):
        scope.lines += ["", *[f"# {comment}"] * bool(comment)]
        comment = ""
        for part, whole in zip(bucket, gathered(scope, bucket), strict=True):
            scope.line(f"{quote_name(names[part.value])} <- {whole}")


def _update_param(
    scope: Body, updates: Updates, p: _Param, scalars: list[str], share: str | None, rank: str
) -> str:
    """The line that computes a param and its states, and the updates of those; gives the name of
    the new param, or of this rank's part.
    """
    recipe, half = updates.recipe, p.type.dtype.is_half
    slots = ["master"] if half and recipe.master_weights else []
    slots += updates.optimizer.states(p.computed)
    states = [quote_name(f"{p.name}.{slot}") for slot in slots]
    new = [scope.name(p.stem), *(scope.name(f"{p.stem}_{slot}") for slot in slots)]
    scope.line("")
    before = quote_name(p.name)
    if p.is_gathered and p.shard is not None:
        before = own_part(scope, Part(before, p.stem, p.shard), rank)
    given = ", ".join([before, p.gradient, *states, *scalars])
    scope.line(f"{', '.join(new)} = {updates.update(p.type)}({given})")
    changed = list(zip([quote_name(p.name), *states], new, strict=True))
    if share is not None:
        value = new[1] if "master" in slots else new[0]
        if half and "master" not in slots:
            value = scope.value(f"{p.stem}_f32", f"cast({value}, dtype=f32)")
        ema = quote_name(f"{p.name}.ema")
        call = f"{updates.ema(p.computed)}({ema}, {value}, {share})"
        changed.append((ema, scope.value(f"{p.stem}_ema", call)))
    for state, value in changed[p.is_gathered :]:
        scope.line(f"{state} <- {value}")
    return new[0]
