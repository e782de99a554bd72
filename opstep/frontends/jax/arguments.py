"""What a function takes and gives, leaf by leaf, and what it is called."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.lexer import identifier

_KEY = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([^\]]*)\]|\.(\w+)|<flat index (\d+)>")


class Leaf(NamedTuple):
    """An array among arguments or results. `path`: the argument's name, then keys and fields."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        return readable("_".join(self.path))

    @property
    def dotted(self) -> str:
        return ".".join(re.sub(r"[^A-Za-z0-9_]", "_", p) or "_" for p in self.path)


def readable(name: str) -> str:
    """``params['Dense_0']['kernel']`` becomes ``params_Dense_0_kernel``."""
    name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_]+", "_", name)).strip("_")
    return identifier(name or "x")


def keys_of(path: Sequence[Any]) -> tuple[str, ...]:
    """A path in a tree as texts."""
    text = jax.tree_util.keystr(tuple(path))
    return tuple(next((g for g in m if g), "") for m in _KEY.findall(text))


def leaves_of(tree: Any, *start: str) -> list[Leaf]:
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [Leaf((*start, *keys_of(path)), value) for path, value in found]


def names_of_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """What the positional arguments are called."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{called(function)} does not take these arguments: {error}") from None
    except ValueError:  # it has no signature
        return [f"arg_{k}" for k in range(len(args))]
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in bound.arguments:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{k}" for k in range(len(bound.arguments[parameter.name]))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[: len(args)]


def called(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def place_of(function: Any) -> tuple[str, int]:
    """Its file and line; line 0 where it has none."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
