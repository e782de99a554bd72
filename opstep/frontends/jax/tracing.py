"""A function as a jaxpr: JAX traces it with examples of its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from traceback import extract_tb
from typing import Any, NamedTuple

import jax
import numpy as np

from opstep.frontends.jax.arguments import Leaf, called, leaves_of, names_of_arguments
from opstep.frontends.jax.tracebacks import is_library, rules_seen
from opstep.frontends.missing import source_line
from opstep.runtime.ir.errors import InputError

_NOISE = re.compile(
    r"\s*(See https?://|This concrete value was not|The error occurred while).*", re.S
)
CONCRETE = "its value decides what is computed, so it is a constant: functools.partial(function, …)"


class Traced(NamedTuple):
    """`inputs`: the leaves that the jaxpr takes; `results`: those that it gives."""

    jaxpr: Any
    inputs: list[Leaf]
    results: list[Leaf]
    structure: Any  # of the results


def trace(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Traced:
    """Raises `InputError`."""
    leaves = arguments(function, args, kwargs)
    inputs = [leaf for leaf in leaves if is_array(leaf.value)]
    structure = jax.tree_util.tree_structure((tuple(args), kwargs))

    def traced(*given: Any) -> Any:
        following = iter(given)
        values = [next(following) if is_array(leaf.value) else leaf.value for leaf in leaves]
        own, named = jax.tree_util.tree_unflatten(structure, values)
        return function(*own, **named)

    try:
        with rules_seen():
            made = jax.make_jaxpr(traced, return_shape=True)
            jaxpr, shapes = made(*(leaf.value for leaf in inputs))
    except Exception as error:  # of any class: what JAX and the function raise
        raise refusal(error, function) from error
    results = leaves_of(shapes)
    if not results:
        raise InputError(f"{called(function)} gives no array")
    return Traced(jaxpr, inputs, results, jax.tree_util.tree_structure(shapes))


def arguments(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Leaf]:
    """The leaves of all arguments, in the order of JAX."""
    names = names_of_arguments(function, args, kwargs)
    found = [
        leaf for name, value in zip(names, args, strict=False) for leaf in leaves_of(value, name)
    ]
    return found + [leaf for name in sorted(kwargs) for leaf in leaves_of(kwargs[name], name)]


def is_array(value: Any) -> bool:
    """Whether JAX traces it; what is none is a constant, and so are Python's bools."""
    if isinstance(value, bool):
        return False
    return isinstance(
        value, jax.Array | np.ndarray | np.generic | int | float | complex | jax.ShapeDtypeStruct
    )


def refusal(error: Exception, function: Any) -> InputError:
    """Of a function that cannot be traced."""
    text = _NOISE.sub("", str(error)).strip().split("\n\n")[0]
    text = " ".join(text.split())[:300] or type(error).__name__
    if type(error).__module__ == "builtins":
        text = f"{type(error).__name__}: {text}"
    kinds = {c.__name__ for c in type(error).__mro__}
    hint = CONCRETE if kinds & {"ConcretizationTypeError", "TracerArrayConversionError"} else ""
    frames = [f for f in extract_tb(error.__traceback__) if not is_library(f.filename)]
    source, span = (
        source_line(frames[-1].filename, frames[-1].lineno or 0) if frames else (None, None)
    )
    return InputError(
        f"JAX cannot trace {called(function)}: {text}", span=span, source=source, hint=hint
    )
