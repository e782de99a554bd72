"""Puts the backend under the modules that a script calls, without a change of the script.

`nn.Module.__call__` asks a module for its `_compiled_call_impl`, which ``module.compile()`` sets.
While a `ModuleCalls` is entered it answers for the modules that are called from outside of others;
all that happens within is traced as in any compiled model.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._C._dynamo.eval_frame import (  # pyright: ignore[reportMissingImports]
    get_eval_frame_callback,
)
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    peek_interpreter_stack,
)
from torch._dynamo.exc import InternalTorchDynamoError, TorchRuntimeError
from torch._guards import TracingContext
from torch.fx import _symbolic_trace

from opstep.frontends.scripts.script import Leave
from opstep.frontends.scripts.waiting import Waiting
from opstep.frontends.torch.backend import opstep
from opstep.frontends.torch.errors import FALLBACK
from opstep.frontends.torch.sources import is_pytorch
from opstep.runtime.ir.errors import InputError

# Loggers that tell whoever calls torch.compile how to do it better; a script does not call it.
ADVICE = (
    "torch._dynamo.utils", "torch._dynamo.variables.tensor", "torch._subclasses.fake_tensor",
    "torch._functorch._aot_autograd.graph_compile",
)  # fmt: skip
# What Dynamo makes of errors of the model's own: shapes that do not fit, a recursion without end.
_OF_THE_MODEL = (TorchRuntimeError, InternalTorchDynamoError)
MOST_SITES = 4  # lines that call a module, for each of which it is compiled
MOST_RECOMPILATIONS = 64  # PyTorch gives up after 8; then nothing would be seen of a module


class _Translated(threading.local):
    """What this thread waits for."""

    waiting: Waiting | None = None


_translated = _Translated()


def _backend(module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """As the backend is for scripts, whose users give options to a command."""
    try:
        return opstep(module, inputs, hint=FALLBACK, **options)
    finally:
        if (waiting := _translated.waiting) is not None:
            waiting.done()


_backend.__name__ = "opstep"  # in messages of PyTorch
_is_fx_tracing: Callable[[], bool] = getattr(  # the second is all that older ones have
    _symbolic_trace, "is_fx_symbolic_tracing", _symbolic_trace.is_fx_tracing
)


class ModuleCalls:
    """`options`: of the backend. `patterns`: the qualified names, below the outermost module that
    is called, of those that are compiled (``encoder.*``); none: the outermost ones themselves. What
    the script compiles, traces or exports itself is left alone; so are the processes that it forks.

    `called`: how many modules were called from outside of others; `compiled`: how many were
    compiled; `count`: how often these were called. `names`: what `patterns` could have meant.
    `unwatched`: classes of the modules that the script compiles itself.
    """

    def __init__(self, options: Mapping[str, Any], patterns: Sequence[str] = ()):
        self.options = dict(options)
        self.patterns = tuple(patterns)
        self.called = self.compiled = self.count = 0
        self.names: set[str] = set()
        self.unwatched: set[str] = set()
        self.leaves = False  # whether the script is to end: another of its threads has
        self._known: dict[int, _Known] = {}
        self.within = threading.local()
        self._process = os.getpid()
        self._config: Any = None  # of Dynamo
        self._levels: dict[logging.Logger, int] = {}

    def __enter__(self) -> ModuleCalls:
        import torch._dynamo

        loggers = map(logging.getLogger, ADVICE)
        self._levels = {one: one.level for one in loggers if not one.isEnabledFor(logging.INFO)}
        for one in self._levels:
            one.setLevel(logging.CRITICAL)
        self._config = torch._dynamo.config.patch(
            cache_size_limit=MOST_RECOMPILATIONS, skip_nnmodule_hook_guards=False
        )
        self._config.__enter__()
        nn.Module._compiled_call_impl = self  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *error: object) -> None:
        nn.Module._compiled_call_impl = None
        for one, level in self._levels.items():
            one.setLevel(level)
        self._config.__exit__(*error)

    def __get__(self, module: nn.Module | None, owner: Any = None) -> Callable[..., Any] | None:
        """What is to be called in place of a module; None: itself."""
        try:
            return self._instead_of(module)
        except AttributeError as error:
            # A module's __getattr__ would be asked next, and say that the module has no such call.
            raise InputError(
                f"opstep does not work with PyTorch {torch.__version__}: {error}"
            ) from error

    def _instead_of(self, module: nn.Module | None) -> Callable[..., Any] | None:
        if torch.compiler.is_dynamo_compiling() or module is None:
            return None
        if isinstance(module, torch._dynamo.OptimizedModule):
            self.unwatched.add(type(module._orig_mod).__name__)
            return None
        if getattr(self.within, "now", None) is not None or self._is_left_alone(module):
            return None
        known = self._known.get(id(module)) or self._met(module)
        return known.call if known.is_wanted else None

    def _is_left_alone(self, module: nn.Module) -> bool:
        return (
            get_eval_frame_callback() is not None  # within what the script compiles
            or TracingContext.try_get() is not None  # Dynamo looks at a module of its own
            or torch._C._len_torch_dispatch_stack() > 0  # tensors that have no elements, tracing
            or peek_interpreter_stack() is not None  # vmap, grad
            or torch._C._current_graph_task_id() != -1  # a checkpoint's, again in the backward
            or torch._C._get_tracing_state() is not None
            or _is_fx_tracing()
            or isinstance(module, torch.jit.ScriptModule)
            or os.getpid() != self._process
        )

    def _met(self, module: nn.Module) -> _Known:
        """A module that is called for the first time, and not within one that was called."""
        self.called += 1
        tree = dict(module.named_modules()) if self.patterns else {"": module}
        self.names.update(tree)
        for name, part in tree.items():
            wanted = not self.patterns or any(fnmatchcase(name, p) for p in self.patterns)
            self._known[id(part)] = _Known(self, part, name, wanted)
        return self._known[id(module)]

    def unmatched(self) -> list[str]:
        """The patterns that no module has a name for."""
        return [p for p in self.patterns if not any(fnmatchcase(n, p) for n in self.names)]

    def forget(self, key: int) -> None:
        """A module is gone."""
        self._known.pop(key, None)


class _Known:
    """A module that was called, or is part of one. It is not kept alive by this."""

    def __init__(self, calls: ModuleCalls, module: nn.Module, name: str, is_wanted: bool):
        self.calls = calls
        self.name = name
        self.is_wanted = is_wanted
        key = id(module)
        self.module = weakref.ref(module, lambda _: calls.forget(key))
        self._names = _parameters(module)
        self._is_recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules())
        self._entries: dict[Any, Callable[..., Any]] = {}
        self._sites: set[Site] = set()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module as it is compiled."""
        site = self._site()
        key = (len(args), *kwargs, site)
        entry = self._entries.get(key)
        is_new = entry is None
        if entry is None:
            self.calls.compiled += not self._entries
            entry = self._entries[key] = self._compiled(len(args), list(kwargs), site)
        if self.calls.leaves:
            raise Leave
        within = self.calls.within
        within.now = self
        self.calls.count += 1
        module = self.module()
        waiting = Waiting(f"translating {type(module).__name__}") if is_new else None
        try:
            _translated.waiting = waiting
            try:
                with self._recurrent():
                    return entry(module, *args, **kwargs)
            except _OF_THE_MODEL as error:
                failed = error
            nn.Module._call_impl(module, *args, **kwargs)  # pyright: ignore - raises the model's own
            raise failed
        finally:
            within.now = _translated.waiting = None
            if waiting is not None:
                waiting.done()

    def _recurrent(self) -> AbstractContextManager[Any]:
        """Without it Dynamo leaves all of a module out that has a recurrent layer."""
        patch: Any = torch._dynamo.config.patch
        return patch(allow_rnn=True) if self._is_recurrent else nullcontext()

    def _site(self) -> Site:
        """Where the script calls it."""
        site = _caller()
        if site not in self._sites and len(self._sites) >= MOST_SITES:
            return NOWHERE
        self._sites.add(site)
        return site

    def _compiled(self, positional: int, keywords: list[str], site: Site) -> Callable[..., Any]:
        names = (self._names + [f"args_{k}" for k in range(positional)])[:positional]
        names = [f"_{k}_{n}" if n in keywords else n for k, n in enumerate(names)]
        entry = _entry(names, keywords, site)
        return torch.compile(entry, backend=_backend, options=self.calls.options)


def _parameters(module: nn.Module) -> list[str]:
    """The names of what a module can be given by position."""
    try:
        found = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in found if p.kind in by_position]


class Site(NamedTuple):
    """Where the script calls a module."""

    file: str
    line: int
    function: str


NOWHERE = Site("<opstep>", 1, "call")


def _caller() -> Site:
    """Who called the module that is called."""
    frame = sys._getframe(4)  # behind nn.Module's, and ours
    file = frame.f_code.co_filename
    if file.startswith("<") or is_pytorch(file):
        return NOWHERE
    return Site(file, frame.f_lineno, frame.f_code.co_name)


def _entry(names: list[str], keywords: list[str], site: Site) -> Callable[..., Any]:
    """A function that calls a module with arguments by these names, at this line: one of its own
    for each, as PyTorch counts by functions how often it compiled.
    """
    taken = ", ".join(["_module", *names, *(["*", *keywords] if keywords else [])])
    given = ", ".join([*names, *(f"{k}={k}" for k in keywords)])
    lines = "\n" * (site.line - 1)
    text = f"{lines}def call({taken}): return _module._call_impl({given})"
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, site.file, "exec"), found)
    call = found["call"]
    call.__code__ = call.__code__.replace(co_name=site.function)
    return call
