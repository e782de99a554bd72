"""Equations that call a jaxpr: a graph where a function of the user's is called, else its
equations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.extend import random as generators

from opstep.frontends.jax.body import Var
from opstep.frontends.jax.origins import Function, Origins, function_of
from opstep.frontends.jax.tracebacks import is_jax
from opstep.frontends.jax.translator import CALLED, Scope
from opstep.frontends.jax.types import key_shape
from opstep.frontends.jax.values import Entry, Known, Spread, Value, constant

LEAST = 2  # equations of a function that becomes a graph
LEAST_OF_LIBRARY = 12
CLOSED = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, ())


def constants_of(jaxpr: Any) -> dict[Any, Entry]:
    """What a jaxpr closes over, by variable."""
    return {
        v: constant(c)
        for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)
    }  # fmt: skip


def size_of(jaxpr: Any) -> int:
    """How many equations there are, written out."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [closed(equation.params[k]) for k in CLOSED if k in equation.params]
        total += sum(size_of(j.jaxpr) for j in inner) if inner else 1
    return total


def call(
    scope: Scope, jaxpr: Any, name: str, values: Sequence[Value], used: Sequence[bool]
) -> Sequence[Value | None]:  # fmt: skip
    """The results of a jaxpr."""
    function = function_of(jaxpr.jaxpr)
    least = LEAST_OF_LIBRARY if function.is_library or not function.file else LEAST
    if size_of(jaxpr.jaxpr) < least:
        return inlined(scope, jaxpr, values, used)
    return called(scope, jaxpr, name or function.name or "function", function, values, used)


def inlined(
    scope: Scope, jaxpr: Any, values: Sequence[Value], used: Sequence[bool]
) -> Sequence[Value | None]:  # fmt: skip
    """The equations of a jaxpr, in place of a call."""
    inner = Scope(scope.shared, scope.function)
    inner.share_body(scope)
    inner.call_from(scope)
    function = function_of(jaxpr.jaxpr)
    inner.origins = Origins(function, scope.body.at)
    inner.is_named = bool(function.file) and not function.is_library
    inner.env = constants_of(jaxpr) | dict(zip(jaxpr.jaxpr.invars, values, strict=True))
    inner.equations(jaxpr.jaxpr, used)
    return results_of(inner, jaxpr, used)


def results_of(inner: Scope, jaxpr: Any, used: Sequence[bool]) -> list[Value | None]:
    """None where nothing reads them, and where they could not be translated."""
    atoms = zip(jaxpr.jaxpr.outvars, used, strict=True)
    return [
        inner.look_up(a) if u and (isinstance(a, core.Literal) or inner.env.get(a) is not None)
        else None
        for a, u in atoms
    ]  # fmt: skip


def called(
    scope: Scope, jaxpr: Any, name: str, function: Function, values: Sequence[Value],
    used: Sequence[bool],
) -> Sequence[Value | None]:  # fmt: skip
    """A call of the graph for a jaxpr, which is written when it is first met."""
    values = [scope.var(v) if isinstance(v, Spread) else v for v in values]
    key = (
        jaxpr, name, scope.is_derivative, scope.rules_at_hand, tuple(used),
        tuple(v.type if isinstance(v, Var) or v.is_weight else v.key for v in values),
    )  # fmt: skip
    if key not in scope.shared.called:
        scope.shared.called[key] = _graph(scope, jaxpr, name, function, values, used)
    title, places, outputs = scope.shared.called[key]
    if not title:
        return inlined(scope, jaxpr, values, used)
    types = [(n, o.type) for n, o in outputs if isinstance(o, Var)]
    made = iter(scope.body.call(title, [scope.var(values[k]) for k in places], types))
    return [next(made) if isinstance(o, Var) else o for _, o in outputs]


def _graph(
    scope: Scope, jaxpr: Any, name: str, function: Function, values: Sequence[Any],
    used: Sequence[bool],
) -> tuple[str, list[int], list[tuple[str, Value | None]]]:  # fmt: skip
    """Its name, which of the values it takes, and what its results are: tensors, or what is known
    of them. The name is "" where it gives no tensor.
    """
    inner = Scope(scope.shared, function, scope.body.at or scope.site)
    inner.call_from(scope)
    name = f"{name}_backward" if inner.is_backward else name
    inner.env = constants_of(jaxpr)
    names = input_names(jaxpr.jaxpr, values)
    given: list[tuple[int, Var]] = []
    for k, (variable, value) in enumerate(zip(jaxpr.jaxpr.invars, values, strict=True)):
        if isinstance(value, Known) and not value.is_weight:
            inner.env[variable] = value
        else:
            given.append((k, inner.input(names[k], value.type)))
            inner.env[variable] = given[-1][1]
    inner.equations(jaxpr.jaxpr, used)
    outputs = results_of(inner, jaxpr, used)
    outputs = [inner.var(o) if isinstance(o, Spread) else o for o in outputs]
    results = [o for o in outputs if isinstance(o, Var)]
    if not results:
        return "", [], []
    read = inner.read_by(inner.finished(name, results, [v for _, v in given]))
    taken = [(k, v) for k, v in given if v.name in read]
    title = inner.share(name, results, [v for _, v in taken])
    return title, [k for k, _ in taken], [(o.name if isinstance(o, Var) else "", o) for o in outputs]  # fmt: skip  # noqa: E501


def input_names(jaxpr: Any, values: Sequence[Any]) -> list[str]:
    """Those of the function's arguments, where JAX tells them; else of what is passed."""
    from opstep.frontends.jax.arguments import readable

    told = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    if len(told) == len(jaxpr.invars):
        return [readable(n) if n else "x" for n in told]
    return [
        readable(v.name.rpartition(".")[2]) if isinstance(v, Var) else "x" for v in values
    ]  # fmt: skip


def _parameter(equation: Any) -> Any:
    return closed(next(equation.params[k] for k in CLOSED if k in equation.params))


# Functions of jax.nn that are ops.
OPS_OF_JAX = {"relu": "relu", "silu": "silu"}


def jit(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    name = equation.params.get("name") or ""
    if name in OPS_OF_JAX and len(values) == 1 and len(equation.outvars) == 1:
        file = function_of(_parameter(equation).jaxpr).file
        if is_jax(file) and "/nn/" in file and not isinstance(values[0], Known):
            return [scope.body.op(OPS_OF_JAX[name], scope.var(values[0]))]
    return call(scope, _parameter(equation), name, values, scope.body.used)


def checkpoint(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    jaxpr = _parameter(equation)
    name = function_of(jaxpr.jaxpr).name
    return call(scope, jaxpr, name or "checkpoint", values, scope.body.used)


def custom(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    """A function with a derivative of its own, which was used where it was to be derived."""
    return call(scope, _parameter(equation), "", values, scope.body.used)


for _name in ("jit", "pjit", "closed_call", "core_call", "call", "xla_call"):
    CALLED[_name] = jit
for _name in ("remat2", "checkpoint", "remat"):
    CALLED[_name] = checkpoint
for _name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
    CALLED[_name] = custom


# --- random numbers, which JAX has a function for -------------------------------------------------


def random(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    """What draws numbers, as the function that JAX has for it."""
    (key, *_) = equation.invars
    name = equation.primitive.name
    dtype = equation.outvars[0].aval.dtype if name == "random_seed" else key.aval.dtype
    key_shape(dtype)
    batch = key.aval.shape
    params = {k: equation.params[k] for k in ("bit_width", "shape") if k in equation.params}
    types = [(tuple(v.aval.shape), str(v.aval.dtype)) for v in equation.invars]
    jaxpr = _traced(name, tuple(sorted(params.items())), len(batch), tuple(types))
    return call(scope, jaxpr, name, values, scope.body.used)


@lru_cache(1024)
def _traced(name: str, params: tuple, batch: int, types: tuple) -> Any:
    implementation = getattr(generators.threefry_prng_impl, FUNCTIONS[name])
    given = dict(params)
    arguments = []
    for shape, dtype in types:
        is_key = dtype.startswith("key")
        arguments.append(
            jax.ShapeDtypeStruct((*shape, 2) if is_key else shape, jnp.uint32 if is_key else dtype)
        )
    if name == "random_bits":
        function = lambda key: implementation(key, given["bit_width"], given["shape"])  # noqa: E731
    elif name == "random_split":
        function = lambda key: implementation(key, given["shape"])  # noqa: E731
    else:
        function = implementation
    for _ in range(batch):
        function = jax.vmap(function)
    return jax.make_jaxpr(function)(*arguments)


FUNCTIONS = {
    "random_bits": "random_bits", "random_split": "split", "random_fold_in": "fold_in",
    "random_seed": "seed",
}  # fmt: skip
CALLED.update(dict.fromkeys(FUNCTIONS, random))


# --- x.at[index].apply(function) ------------------------------------------------------------------


def scatter(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    """By the rule, which writes updates. Where there is a function in place of these, as what it is
    of other primitives.
    """
    jaxpr = equation.params["update_jaxpr"]
    if jaxpr is None or jaxpr.outvars[0] is jaxpr.invars[1]:
        return scope.by_rule(equation, values)
    written = jax.make_jaxpr(partial(_applied, equation.params))
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    return call(scope, written(*shapes), "apply", values, scope.body.used)


def _applied(params: Mapping[str, Any], x: Any, index: Any, updates: Any) -> Any:
    """x with a function of its elements in their place, as often as the index has them."""
    if not updates.size:
        return x
    numbers = params["dimension_numbers"]
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = iter(updates.shape[k] for k in numbers.update_window_dims)
    sizes = [1 if k in dropped else next(window) for k in range(x.ndim)]
    read = partial(
        lax.gather,
        start_indices=index,
        dimension_numbers=lax.GatherDimensionNumbers(
            numbers.update_window_dims, numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
        ),
        slice_sizes=sizes,
        mode="clip",
    )  # fmt: skip
    of_one = core.jaxpr_as_fun(core.ClosedJaxpr(params["update_jaxpr"], params["update_consts"]))
    function = jax.vmap(lambda v: of_one(v, v)[0])
    places = {"scatter_indices": index, "dimension_numbers": numbers, "mode": params["mode"]}
    found = read(x)
    shape = found.shape
    if params["unique_indices"] or index.size == index.shape[-1]:
        found = function(found.reshape(-1))
    else:
        ones = jnp.ones(shape, jnp.int32)
        counts = read(lax.scatter_add(jnp.zeros(x.shape, jnp.int32), updates=ones, **places))
        counts = counts.reshape(-1)
        found = lax.fori_loop(
            0, counts.max(), lambda turn, v: jnp.where(turn < counts, function(v), v),
            found.reshape(-1),
        )  # fmt: skip
    return lax.scatter(x, updates=found.reshape(shape), **places)


CALLED["scatter"] = scatter
