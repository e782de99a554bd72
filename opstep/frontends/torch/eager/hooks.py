"""Hooks around what a script runs: calls of modules, steps of optimizers, scalers, threads, forks,
batches. Each is undone when the script ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from opstep.frontends.replacing import replaced
from opstep.frontends.torch.eager.births import Births, in_parameter
from opstep.frontends.torch.eager.harm import GRADIENT, PARAMETER, Sinks
from opstep.frontends.torch.eager.places import closures
from opstep.frontends.torch.eager.tensors import (
    bad,
    is_undispatched,
    readable,
    storage_key,
    undispatched,
)
from opstep.frontends.torch.outstanding import outstanding

MOST_SKIPPED = 20  # steps in a row that a GradScaler may skip
SMALLEST_SCALE = 1.0


class Batch:
    """The batch that a `DataLoader` gave last: its number in the epoch, and the rows of the data
    set, where the loader knows them.
    """

    def __init__(self) -> None:
        self.number = -1
        self.rows: list[Any] = []
        self.tensors: list[weakref.ref[torch.Tensor]] = []

    def text(self) -> str:
        """``batch 3 (rows 12, 5, 7, … of the data), bad in row 5 of the data``"""
        if self.number < 0:
            return ""
        text = f"batch {self.number}"
        if self.rows:
            text += f" (rows {_some(self.rows)} of the data)"
        if found := self._bad():
            rows = [self.rows[k] for k in found] if self.rows else found
            text += f", bad in row{'s' * (len(rows) > 1)} {_some(rows)} of "
            text += "the data" if self.rows else "it"
        return text

    def _bad(self) -> list[int]:
        """The rows that hold a NaN or an infinity, as far as the script still has the batch."""
        every = (t for ref in self.tensors if (t := ref()) is not None and readable(t) and t.dim())
        size = len(self.rows)
        masks = [bad(t).reshape(len(t), -1).any(1) for t in every if size in (0, len(t))]
        return sorted({k for mask in masks for k in mask.nonzero()[:, 0].tolist()})


def _some(rows: list[Any]) -> str:
    return ", ".join(map(str, rows[:3])) + ", …" * (len(rows) > 3)


class Hooks:
    """`watcher` gives the one at hand: `dispatch.Dispatch` or `native.Native`. `on_scaler`: called
    with a text where a GradScaler skips steps for ever.
    """

    def __init__(
        self, watcher: Callable[[], Any], births: Births, sinks: Sinks,
        on_scaler: Callable[[str], None],
    ):  # fmt: skip
        self._watcher = watcher
        self.on_compile: Callable[[], None] = lambda: None
        self.on_call: Callable[[nn.Module, Sequence[Any]], None] | None = None  # before it
        self.listeners: Sequence[Any] = ()  # `dispatch.Listener`s
        self.sees_modules = True  # their names and results; Dynamo would trace the hook
        self.births = births
        self.sinks = sinks
        self.batch = Batch()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.steps = 0  # of optimizers
        self.skipped = 0  # by a GradScaler
        self._on_scaler = on_scaler
        self._in_a_row = 0
        self._deferred: Callable[[], None] | None = None
        self._is_fresh = False  # what is deferred is of the step at hand
        self._sent: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._stack = ExitStack()
        self._lists = ExitStack()  # `tolist`, which Dynamo cannot trace but as it is

    @property
    def watcher(self) -> Any:
        return self._watcher()

    def __enter__(self) -> Hooks:
        iterator: Any = dataloader._BaseDataLoaderIter
        for owner, name, hook in (
            *(((nn.Module, "__call__", self._modules),) if self.sees_modules else ()),
            (threading.Thread, "_bootstrap_inner", self._threads),
            (torch.amp.GradScaler, "scale", self._scale),
            (torch.amp.GradScaler, "update", self._update),
            (iterator, "__next__", self._next), (iterator, "_next_index", self._index),
            (torch, "compile", self._compile),
            *((torch.Tensor, name, self._shown) for name in ("__repr__", "numpy", "__dlpack__")),
            (torch.Tensor, "__reduce_ex__", self._shown),  # which pickles
        ):  # fmt: skip
            self._stack.enter_context(replaced(owner, name, hook))
        self._stack.callback(self._lists.close)
        self._lists.enter_context(replaced(torch.Tensor, "tolist", self._shown))
        for register, call in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._stack.callback(register(call).remove)
        forked = weakref.WeakMethod(self._forked)  # a registration is never undone
        os.register_at_fork(after_in_child=lambda: (call := forked()) and call())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        closures.clear()

    def _forked(self) -> None:
        """A child process runs on unwatched."""
        if self.watcher.is_active:
            self.watcher.stop()

    # --- modules ---

    def _modules(self, call: Any) -> Any:
        compiling, watcher_now = torch.compiler.is_dynamo_compiling, self._watcher
        hooks, returned = self, self._returned

        def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return call(self, *args, **kwargs)
            watcher = watcher_now()
            watcher.push(self)
            if hooks.on_call is not None:
                hooks.on_call(self, args)
            result = None
            try:
                result = call(self, *args, **kwargs)
                return result
            finally:
                if watcher_now().pop() == 0 and result is not None:
                    returned(self, args, kwargs, result)

        return called

    def _returned(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """By a module that no other one has called."""
        for listener in self.listeners:
            listener.called(module, args, kwargs)
        watcher = self.watcher
        is_asked = watcher.is_active and watcher.looks
        if is_asked and torch._C._current_autograd_node() is None:  # pyright: ignore
            self.sinks.results(result)

    # --- optimizers ---

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        self._in_a_row = 0
        self.births.scaled = False
        self.optimizers.add(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        while hasattr(closure, "__wrapped__"):
            closure = closure.__wrapped__
        if hasattr(closure, "__code__"):
            closures.add(closure.__code__)
        found = getattr(optimizer, "found_inf", None)  # a fused one is called all the same
        if found is None or not self._is_raised(found):
            if self._is_fresh:
                self.settle()
            self._deferred = None
            self._ask(_params(optimizer), GRADIENT)
        self.watcher.updating(1 if closure is None else 2)
        for listener in self.listeners:
            listener.stepping(optimizer)

    def _is_raised(self, flag: torch.Tensor) -> bool:
        with undispatched():
            return bool(flag)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watcher.updating(0)
        for listener in self.listeners:
            listener.stepped(optimizer)
        self._ask(_params(optimizer), PARAMETER)
        self.watcher.step_done()
        self.births.step += 1

    def _ask(self, params: list[Any], sink: str) -> None:
        if not self.watcher.looks:
            return
        of_gradients = sink == GRADIENT
        self.watcher.note(params, sink, of_gradients)
        for k in self.watcher.bad_among(params, of_gradients):
            with undispatched():
                found = params[k].grad if of_gradients else params[k]
                storage = storage_key(found)
                if not of_gradients:
                    in_parameter(self.births.of(storage))
                if self.sinks.ask(found, sink, label=str(storage_key(params[k]))):
                    return

    # --- GradScaler ---

    def _scale(self, scale: Any) -> Any:
        births = self.births

        def scaled(self: Any, outputs: Any) -> Any:
            births.scaled, births.is_scaling = self.is_enabled(), True
            try:
                return scale(self, outputs)
            finally:
                births.is_scaling = False

        return scaled

    def _update(self, update: Any) -> Any:
        hooks = self

        def updated(self: Any, new_scale: Any = None) -> None:
            outstanding.settle()  # as long as it is known that the loss was scaled
            before = self.get_scale() if self.is_enabled() else 0.0
            update(self, new_scale)
            hooks.births.scaled = hooks._is_fresh = False
            if self.is_enabled():
                hooks._scale_set(before, self.get_scale())

        return updated

    def _scale_set(self, before: float, after: float) -> None:
        if after >= before:
            return
        self.skipped += 1
        self._in_a_row += 1
        text = ""
        if self._in_a_row == MOST_SKIPPED:
            text = f"GradScaler has skipped {MOST_SKIPPED} steps in a row"
        elif after < SMALLEST_SCALE <= before:
            text = f"GradScaler's scale has fallen to {after:g}"
        if text:
            self.settle()
            self._on_scaler(text)

    def defer(self, report: Callable[[], None]) -> bool:
        """Whether `report`, of the backward of a compiled module, waits until a step is made with
        what it gave, or no scale helps against that.
        """
        if self.births.scaled:
            self._deferred, self._is_fresh = self._deferred or report, True
        return self.births.scaled

    def settle(self) -> None:
        """Reports the first of what waits for a scaler."""
        report, self._deferred = self._deferred, None
        if report is not None:
            report()

    # --- threads ---

    def _threads(self, bootstrap: Any) -> Any:
        watcher_now = self._watcher

        def entered(self: threading.Thread) -> None:
            watcher_now().enter()
            bootstrap(self)

        return entered

    # --- what the script compiles ---

    def _compile(self, original: Any) -> Any:
        @wraps(original)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            self._lists.close()
            self.on_compile()
            return original(*args, **kwargs)

        return compiled

    # --- what leaves PyTorch ---

    def _shown(self, original: Any) -> Any:
        """Looks at what a function is given first."""
        compiling, watcher = torch.compiler.is_dynamo_compiling, self._watcher
        shown = self.sinks.shown

        @wraps(original)
        def called(given: Any, *args: Any, **kwargs: Any) -> Any:
            if not (compiling() or is_undispatched()) and watcher().is_active:
                with undispatched():
                    shown(given)
            return original(given, *args, **kwargs)

        return called

    # --- batches ---

    def _index(self, index: Any) -> Any:
        def next_index(iterator: Any) -> Any:
            found = index(iterator)
            self._sent.setdefault(iterator, deque()).append(found)
            return found

        return next_index

    def _next(self, following: Any) -> Any:
        batch = self.batch

        def next_batch(iterator: Any) -> Any:
            found = following(iterator)
            rows = self._sent.get(iterator)
            batch.rows = _rows(rows.popleft()) if rows else []
            batch.number = iterator._num_yielded - 1
            batch.tensors = [weakref.ref(t) for t in tree_leaves(found) if torch.is_tensor(t)]
            return found

        return next_batch


def _rows(index: Any) -> list[Any]:
    return list(index) if isinstance(index, list | tuple) else [index]


def _params(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
