"""JAX in a script: functions that it gives to `jax.jit`, or to `opstep.jax.debug`, run on opstep as
the command says.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import jax

from opstep.frontends.jax import debugging
from opstep.frontends.jax.tracebacks import rules_seen
from opstep.frontends.scripts.frames import is_hidden
from opstep.frontends.scripts.frameworks import Framework
from opstep.frontends.scripts.options import Options
from opstep.frontends.scripts.watching import Watch

if TYPE_CHECKING:
    from opstep.frontends.jax.debugging import Debugged
    from opstep.hunting.report import Hunt

CALLBACKS = logging.getLogger("jax._src.callback")  # shows what a callback raises, as we do


class Jax(Framework):
    part = "function"

    def __init__(self, options: dict[str, Any], patterns: Sequence[str]):
        self._options = options
        self._patterns = patterns
        self._functions: set[Debugged] = set()
        self._jit = jax.jit
        self.names: set[str] = set()
        self.leaves = False
        self.failed: BaseException | None = None  # in a callback: JAX raises an error of its own

    def __enter__(self) -> Jax:
        self.watch = Watch(Options.of(self._options))
        self._level = CALLBACKS.level
        CALLBACKS.setLevel(logging.CRITICAL)
        debugging.script = self
        self._rules = rules_seen()
        self._rules.__enter__()
        jax.jit = self._seen_jit()  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *error: object) -> None:
        debugging.script = None
        jax.jit = self._jit
        self._rules.__exit__(None, None, None)
        CALLBACKS.setLevel(self._level)

    def _seen_jit(self) -> Any:
        """`jax.jit` for the script. Libraries have that which there was."""
        original: Any = self._jit

        @functools.wraps(original)
        def jit(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            caller = sys._getframe(1)
            if is_hidden(caller) or "site-packages" in caller.f_code.co_filename:
                return made
            return seen(made) if args else lambda function: seen(made(function))

        def seen(made: Callable[..., Any]) -> Debugged:
            return debugging.Debugged(made, Options(), is_asked=False)

        return jit

    def wants(self, function: Debugged) -> bool:
        """Whether a function is one of those that are asked for."""
        name = getattr(function, "__qualname__", function.__name__).replace("<locals>.", "")
        self.names.add(name)
        self.called = len(self.names)
        return not self._patterns or any(fnmatchcase(name, p) for p in self._patterns)

    def counted(self, function: Debugged) -> None:
        """It is called."""
        self._functions.add(function)
        self.compiled = len(self._functions)
        self.count += 1

    def leave(self) -> None:
        self.leaves = True

    def cause_of(self, error: Exception) -> BaseException | None:
        return self.failed

    def outside(self, found: Hunt) -> str:
        given = found.first.given if found.first else ""
        name = given.removeprefix("input ")
        if name == given or not any(found.graph == f.__name__ for f in self._functions):
            return ""
        return (
            f"note: the function was given {name} so.\n  If an earlier call gave it, opstep saw "
            "nothing bad there; else look at the data, or decorate what computes it"
        )
