"""Calls of JAX's functions on opstep: what `opstep.jax.debug` puts in their place.

A call is traced as `jax.jit` traces it, which gives a jaxpr for these shapes, element types and
static arguments; that is a program, which is kept. Calls that JAX itself traces, in a function of
`jax.jit` around this one, become callbacks: JAX calls back when it runs what it has traced. Where
it takes derivatives, it runs the function itself.
"""

from __future__ import annotations

import functools
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import jax
from jax.core import Tracer, eval_context

from opstep.frontends.jax.arguments import (
    Leaf,
    called,
    leaves_of,
    names_of_arguments,
    place_of,
)
from opstep.frontends.jax.calling import Call, shape_of, staged
from opstep.frontends.missing import ImportFailed
from opstep.frontends.scripts.options import Options
from opstep.frontends.scripts.script import Leave
from opstep.frontends.scripts.watching import Watch
from opstep.runtime.ir.errors import InputError

FALLBACK = "@opstep.jax.debug(fallback=True) above the function lets JAX run it"
_local = threading.local()


class Command(Protocol):
    """That which runs a script. `failed`: what ended a call that JAX made."""

    watch: Watch
    leaves: bool
    failed: BaseException | None

    def wants(self, function: Debugged) -> bool:
        """Whether a function is one of those that are asked for."""
        ...

    def counted(self, function: Debugged) -> None:
        """It is called."""
        ...


script: Command | None = None  # of this process
untraced: Callable[[], AbstractContextManager[Any]] = nullcontext  # by a debugger of Python


def decorated(function: Any, options: Mapping[str, Any]) -> Any:
    """`function` with its calls run on opstep. Raises `InputError`."""
    chosen = Options.of(options)
    if not callable(function):
        raise InputError(f"opstep.jax.debug decorates functions; {function!r} is none")
    if isinstance(function, Debugged):  # a script's, by its command
        return Debugged(function.jitted, chosen)
    if hasattr(function, "jitted_fn"):  # of nnx.jit, which has jax.jit run a pure function
        function.jitted_fn = Debugged(function.jitted_fn, chosen)
        return function
    return Debugged(function, chosen)


@contextmanager
def transparent() -> Iterator[None]:
    """While the block lasts, functions are as they are without us: they are being imported."""
    before = getattr(_local, "transparent", False)
    _local.transparent = True
    try:
        yield
    finally:
        _local.transparent = before


class Arguments(NamedTuple):
    """Those of a call: the leaves of what is not static, and all that they are put together by."""

    leaves: list[Any]
    tree: Any
    positions: tuple[int, ...]  # of arguments that are static
    statics: tuple[Any, ...]
    names: tuple[tuple[str, Any], ...]  # static arguments by name

    @staticmethod
    def of(jitted: Any, args: tuple, kwargs: Mapping[str, Any]) -> Arguments:
        info = getattr(jitted, "_jit_info", None)
        n = len(args)
        fixed = (k % n for k in getattr(info, "static_argnums", ()) if -n <= k < n)
        positions, named = tuple(sorted(fixed)), getattr(info, "static_argnames", ())
        dynamic = tuple(a for k, a in enumerate(args) if k not in positions)
        by_name = {name: a for name, a in kwargs.items() if name not in named}
        names = tuple(sorted((name, a) for name, a in kwargs.items() if name in named))
        leaves, tree = jax.tree.flatten((dynamic, by_name))
        return Arguments(leaves, tree, positions, tuple(args[k] for k in positions), names)

    def with_leaves(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, positional and by name, with others in place of the leaves."""
        dynamic, by_name = jax.tree.unflatten(self.tree, leaves)
        args = list(dynamic)
        for k, value in zip(self.positions, self.statics, strict=True):
            args.insert(k, value)
        return args, by_name | dict(self.names)


class Debugged:
    """A function whose calls run on opstep; all else is what `jax.jit` makes of it, `jitted`.
    `is_asked`: somebody wants to see this one, also where JAX traces calls of it.
    """

    def __init__(self, function: Callable[..., Any], options: Options, is_asked: bool = True):
        functools.update_wrapper(self, function)
        self.__name__ = called(function)
        self.is_asked = is_asked
        self.jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
        self._options = options
        self._watch: Watch | None = None
        self._process = os.getpid()
        self._calls: dict[Any, Call | None] = {}
        self._lock = threading.RLock()
        self._is_told = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["jitted"], name)

    @property
    def programs(self) -> list[Any]:
        """Those that it is: one for each set of shapes, element types and static arguments."""
        return [call.program for call in self._calls.values() if call is not None]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_left_alone():
            return self.jitted(*args, **kwargs)
        if script is not None and script.leaves:
            raise Leave
        given = Arguments.of(self.jitted, args, kwargs)
        is_traced = any(isinstance(leaf, Tracer) for leaf in given.leaves)
        if is_traced and not self.is_asked:
            return self.jitted(*args, **kwargs)
        call = self._found(given)
        if call is None:
            return self.jitted(*args, **kwargs)
        if is_traced:
            results = self._called_back(call, given)
        else:
            results = call(given.leaves)
        return jax.tree.unflatten(call.out_tree, results)

    def _is_left_alone(self) -> bool:
        return (
            getattr(_local, "transparent", False)
            or os.getpid() != self._process
            or jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
            or not (script is None or script.wants(self))
        )

    def _found(self, given: Arguments) -> Call | None:
        """What runs such calls; None where JAX does. Raises `ImportFailed`."""
        watch = self._watch_now()
        try:
            shapes = tuple(map(shape_of, given.leaves))
            key = (watch, given.tree, given.positions, given.statics, given.names, shapes)
            hash(key)
        except TypeError:  # an argument that JAX refuses, too, and tells why
            return None
        with self._lock:
            if key not in self._calls:
                self._calls[key] = self._made(given, watch)
            call = self._calls[key]
        if script is not None:
            script.counted(self)
        return call

    def _made(self, given: Arguments, watch: Watch) -> Call | None:
        leaves = [shape_of(x) if isinstance(x, Tracer) else x for x in given.leaves]
        args, kwargs = given.with_leaves(leaves)
        with transparent(), untraced(), eval_context():  # apart from what is traced around it
            traced = staged(self.jitted, args, kwargs)
        if len(traced.jaxpr.in_avals) != len(leaves):
            self._tell("it uses values of a function that is being traced: pass them as arguments")
            return None
        inputs = self._inputs(args, kwargs, given)
        try:
            return Call(self.jitted.__wrapped__, traced, inputs, watch, self._failed)
        except ImportFailed as error:
            if not (watch.fallback or self._options.fallback):
                raise error.hinted(FALLBACK) from None
            self._tell(str(error))
            return None

    def _inputs(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], given: Arguments
    ) -> list[Leaf]:
        """The leaves by what they are called."""
        names = names_of_arguments(self.jitted, args, kwargs)
        dynamic, by_name = jax.tree.unflatten(given.tree, list(map(shape_of, given.leaves)))
        names = [name for k, name in enumerate(names) if k not in given.positions]
        trees = [*zip(names, dynamic, strict=True), *sorted(by_name.items())]
        return [leaf for name, tree in trees for leaf in leaves_of(tree, name)]

    @staticmethod
    def _failed(error: BaseException) -> None:
        """In a callback: JAX raises an error of its own then."""
        if script is not None:
            script.failed = error

    def _called_back(self, call: Call, given: Arguments) -> list[Any]:
        """A call that JAX traces."""

        def plain(*leaves: Any) -> list[Any]:
            args, kwargs = given.with_leaves(leaves)
            return jax.tree.leaves(self.jitted(*args, **kwargs))

        def derived(primals: Any, tangents: Any) -> Any:
            self._tell("derivatives are taken of it: decorate the function that takes them")
            return jax.jvp(plain, primals, tangents)

        traced = jax.custom_jvp(call.callback)
        traced.defjvp(derived)
        return traced(*given.leaves)

    def _tell(self, why: str) -> None:
        """Warns once that JAX runs it, not we."""
        if not self._is_told:
            self._is_told = True
            file, line = place_of(self.jitted)
            text = f"JAX runs {self.__name__} itself, unseen: {why}"
            warnings.warn_explicit(text, UserWarning, file or f"<{self.__name__}>", line)

    def _watch_now(self) -> Watch:
        if script is not None:
            return script.watch
        if self._watch is None:
            self._watch = Watch(self._options)
        return self._watch
