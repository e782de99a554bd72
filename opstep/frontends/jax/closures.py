"""Arrays that a function reads from around it, and what they are called there."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax

from opstep.frontends.jax.arguments import leaves_of

DEEPEST = 4  # of functions in functions


def closed_over(function: Any) -> dict[int, str]:
    """Names of arrays, by identity."""
    found: dict[int, str] = {}
    _collect(function, found, 0)
    return found


def _collect(function: Any, found: dict[int, str], depth: int) -> None:
    while isinstance(function, functools.partial):
        for k, value in enumerate(function.args):
            _add(f"arg_{k}", value, found, depth)
        for name, value in function.keywords.items():
            _add(name, value, found, depth)
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None:
        _add("self", owner, found, depth)
    inner = inspect.unwrap(function)
    if not inspect.isroutine(inner):
        _add("self", inner, found, depth)  # an object that is called
    if not inspect.isfunction(inner):
        inner = getattr(inner, "__func__", None) or type(inner).__dict__.get("__call__")
    if not inspect.isfunction(inner):
        return
    try:
        around = inspect.getclosurevars(inner)
    except (TypeError, ValueError):
        return
    for name, value in {**around.globals, **around.nonlocals}.items():
        _add(name, value, found, depth)


def _add(name: str, value: Any, found: dict[int, str], depth: int) -> None:
    if inspect.ismodule(value) or inspect.isclass(value):
        return
    if callable(value) and depth < DEEPEST and (
        inspect.isfunction(value) or inspect.ismethod(value) or hasattr(value, "__wrapped__")
    ):  # fmt: skip
        _collect(value, found, depth + 1)
        return
    try:
        leaves = leaves_of(value, name)
    except Exception:  # of any class: what is no tree
        return
    for leaf in leaves:
        if isinstance(leaf.value, jax.Array):
            found.setdefault(id(leaf.value), leaf.dotted)
