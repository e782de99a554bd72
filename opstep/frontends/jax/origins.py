"""Where equations come from: lines of Python, and scopes that the program has names for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from opstep.api.origins import portable
from opstep.frontends.jax.tracebacks import frames_of, is_jax, is_library
from opstep.runtime.ir.graph import Provenance, SourceLine

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
        frames = [f for f in frames_of(traceback)[0] if f.file != _WRAPPER]
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


def scope_of(stack: Any) -> str:
    """``Transformer/block_0`` of a stack of names and transformations."""
    return "/".join(
        "".join(c if c.isprintable() and c not in '"\\' else "_" for c in part.name)
        for part in stack.stack
        if type(part).__name__ == "Scope"
    )


def transforms(equation: Any, name: str) -> int:
    """The number of transformations of that name that made it: ``transpose`` a derivative."""
    stack = equation.source_info.name_stack.stack
    return sum(type(p).__name__ == "Transform" and p.name == name for p in stack)


def rules_of(equation: Any) -> int:
    """The number of rules, one in another, that wrote an equation."""
    return frames_of(equation.source_info.traceback)[1]


def is_transposed(equation: Any) -> bool:
    """Whether it is a derivative of its line. A rule that a derivative calls has lines for it."""
    return transforms(equation, "transpose") > rules_of(equation)


def is_of_rule(equation: Any, rules: int) -> bool:
    """Whether a rule wrote it that was called within what so many rules called."""
    return rules_of(equation) > rules and not transforms(equation, "transpose")
