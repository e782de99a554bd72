"""Where equations come from: lines of Python, and scopes that the program has names for."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from opstep.api.origins import portable
from opstep.runtime.ir.graph import Provenance, SourceLine

# Libraries whose lines are left out where a line of somebody else's called them.
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "chex", "haiku", "equinox", "orbax")
_OWN = str(Path(__file__).parent) + os.sep
_WRAPPER = f"{_OWN}debugging.py"  # stands between a function and its caller


class Function(NamedTuple):
    """The Python function that a jaxpr was traced from."""

    name: str
    file: str
    line: int

    @property
    def is_library(self) -> bool:
        return is_library(self.file)


def function_of(jaxpr: Any) -> Function:
    """Of a jaxpr; without a file where JAX does not tell."""
    info = getattr(jaxpr, "debug_info", None)
    name = getattr(info, "func_name", None) or ""
    return Function(
        name, getattr(info, "func_filename", None) or "", getattr(info, "func_lineno", None) or 0
    )


@cache
def _folders() -> tuple[tuple[str, ...], str]:
    """Where libraries are, and where JAX is."""
    found = []
    for name in LIBRARIES:
        spec = find_spec(name)
        found += [f"{p}{os.sep}" for p in (spec and spec.submodule_search_locations) or ()]
    return tuple(found), found[0]


@lru_cache(4096)
def is_library(file: str) -> bool:
    return file.startswith((*_folders()[0], "<frozen", _OWN))


def is_jax(file: str) -> bool:
    return file.startswith(_folders()[1])


class Origins:
    """Those of the equations of one function. `outer`: of its call, where it is written in place
    of that.
    """

    def __init__(self, function: Function, outer: Provenance | None = None):
        self._function, self._outer = function, outer
        self._known: dict[Any, Provenance | None] = {}

    def of(self, equation: Any, is_derivative: bool = False) -> Provenance | None:
        info = equation.source_info
        words = scope_of(info.name_stack), "backward" if is_derivative else ""
        module = " ".join(filter(None, words))
        key = info.traceback, module
        try:
            if key not in self._known:
                self._known[key] = self._read(info.traceback, module)
        except TypeError:  # a traceback that has no hash
            return self._read(info.traceback, module)
        return self._known[key]

    def _read(self, traceback: Any, module: str) -> Provenance | None:
        frames = [(f.file_name, f.line_num, f.function_start_line) for f in _frames(traceback)]
        frames = [f for f in frames if f[0] != _WRAPPER]
        for place, (file, _, start) in enumerate(frames):
            if file.startswith(_OWN):
                frames = frames[:place]
                break
            if (file, start) == (self._function.file, self._function.line):
                frames = frames[: place + 1]
                break
        named = [f for f in frames if not f[0].startswith("<")]
        lines = [f for f in named if not is_library(f[0])]
        outer = self._outer
        if not lines and outer is None:
            lines = [f for f in named if not is_jax(f[0])][:1]
        found = tuple(SourceLine(portable(f), n) for f, n, _ in lines if n > 0)
        if outer is not None:
            inside = "/".join(filter(None, (outer.owner, module)))
            if outer.is_backward and not module.endswith("backward"):
                inside = f"{inside} backward".strip()
            return Provenance((*found, *outer.frames), inside)
        return Provenance(found, module) if found else None


def _frames(traceback: Any) -> Any:
    return traceback.frames if traceback is not None else ()


def scope_of(stack: Any) -> str:
    """``Transformer/block_0`` of a stack of names and transformations."""
    return "/".join(
        "".join(c if c.isprintable() and c not in '"\\' else "_" for c in part.name)
        for part in stack.stack
        if type(part).__name__ == "Scope"
    )


def has_transform(equation: Any, name: str) -> bool:
    """Whether a transformation of that name made an equation: ``transpose`` a derivative."""
    stack = equation.source_info.name_stack.stack
    return any(type(p).__name__ == "Transform" and p.name == name for p in stack)
