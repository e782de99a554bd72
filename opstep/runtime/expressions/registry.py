"""Functions of the language: each is one decorated Python function.

Its parameters behind `env` are those that one writes; their annotations, which are the names below,
say what is done with an argument before the call. The first paragraph of its docstring is its help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# What a parameter takes.
Elements = Any  # an array, an element or a number
Lazy = Any  # any value; of a handle the function asks for what it needs
Mask = Any  # like Lazy; nan(x), inf(x) and finite(x) are taken element by element here
Integer = int  # an integer
Number = float
Axes = int | tuple[int, ...] | None
String = str  # a text
Dtype = str  # an element type: f32, or "f32"


class Deferred(NamedTuple):
    """Not evaluated: the function gets what evaluates it, called with an `Evaluation`. `name`: of
    the tensor, where it is nothing else.
    """

    code: Callable[..., Any]
    name: str = ""

    def __call__(self, env: Any) -> Any:
        return self.code(env)


KINDS = ("Elements", "Lazy", "Mask", "Integer", "Number", "Axes", "String", "Dtype", "Deferred")


class Function(NamedTuple):
    """A function of the language. `signature` is as one calls it: ``mean(x, axis=)``; `masked` is
    the one that says the same of each element, where there is one.
    """

    name: str
    family: str
    signature: str
    doc: str
    call: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    masked: str


FUNCTIONS: dict[str, Function] = {}


def function(family: str, name: str = "", masked: str = "") -> Callable[[Any], Any]:
    """Registers a function, under its own name without a trailing underscore."""

    def register(call: Any) -> Any:
        own = name or call.__name__.rstrip("_")
        add(own, family, call, inspect.getdoc(call) or "", masked)
        return call

    return register


def add(name: str, family: str, call: Any, doc: str, masked: str = "") -> None:
    """Registers a function."""
    parameters = tuple(inspect.signature(call).parameters.values())[1:]
    texts = []
    for p in parameters:
        kind = str(p.annotation).removesuffix(" | None")
        assert kind in KINDS, f"{name}: {p.name} is annotated {p.annotation}"
        texts.append(p.name if p.default is p.empty else f"{p.name}=")
        if p.kind is p.VAR_POSITIONAL:
            texts[-1] = f"{p.name}, …"
    assert name not in FUNCTIONS, name
    signature = f"{name}({', '.join(texts)})"
    text = " ".join(doc.split("\n\n")[0].split())
    FUNCTIONS[name] = Function(name, family, signature, text, call, parameters, masked)
