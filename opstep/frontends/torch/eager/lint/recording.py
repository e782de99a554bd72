"""A script's run as checks see it: ops, losses, steps of optimizers, parameters and modules."""

from __future__ import annotations

import io
import linecache
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd import _get_sequence_nr
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from opstep.frontends.torch.eager.births import undispatched
from opstep.frontends.torch.eager.names import roots
from opstep.frontends.torch.eager.ops import facts_of, positional
from opstep.frontends.torch.eager.places import _OURS, _TORCH, frames, is_own, stack_now
from opstep.frontends.torch.sources import Frame

MOST_SCANS = 64  # of all objects, for names
_node = torch._C._current_autograd_node  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class LintFinding:
    """A fault that gives no NaN: the line of the script, its text, and why."""

    kind: str
    file: str
    line: int
    source: str
    message: str


@dataclass(eq=False)
class Param:
    """`reached`: a gradient came to it; `optimised`: an optimizer has it; `written`: the script
    writes it by itself. `cut`: the line after which no gradient comes back to it, and why.
    """

    ref: weakref.ref[torch.Tensor]
    name: str = ""
    root: Any = None
    in_training: bool = True  # the mode of its module
    trains: bool = True  # requires_grad
    reached: bool = False
    optimised: bool = False
    used: bool = False
    written: bool = False
    cut: tuple[Frame, str] | None = None


@dataclass
class Loss:
    """A backward begins at it. `numbers`: of the nodes of its graph; `leaves`: what it depends on.
    `in_place`: gradients go to `.grad`, not to who called.
    """

    tensor: torch.Tensor
    at: Frame | None
    in_place: bool
    leaves: list[torch.Tensor]
    numbers: set[int]


class Check:
    """One kind of fault. `ops`: names of ATen ops of a forward that it wants to see."""

    kind = ""
    ops: tuple[str, ...] = ()

    def __init__(self, run: Run):
        self.run = run

    def enter(self) -> None: ...
    def op(self, name: str, args: list[Any], result: Any) -> None: ...
    def loss(self, loss: Loss) -> None: ...
    def stepping(self, optimizer: Any, params: list[torch.Tensor]) -> None: ...
    def stepped(self, optimizer: Any, params: list[torch.Tensor]) -> None: ...
    def registered(self, module: nn.Module, name: str, value: Any) -> None: ...
    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None: ...
    def failed(self, error: BaseException) -> None: ...
    def end(self) -> None: ...

    def report(self, at: Frame | None, message: str) -> None:
        """Once for each line."""
        if at is not None and not any(
            (f.kind, f.file, f.line) == (self.kind, at.file, at.line) for f in self.run.found
        ):
            source = linecache.getline(at.file, at.line).strip()
            self.run.found.append(LintFinding(self.kind, at.file, at.line, source, message))


class _Local(threading.local):
    number = -1
    depth = 0


@dataclass
class Run:
    """The listener of a session's watcher, and more hooks. A check that raises is left out."""

    found: list[LintFinding] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # kinds whose checks raised, and what
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.params: dict[int, Param] = {}
        self.every: list[Param] = []
        self.optimizers: list[tuple[weakref.ref[Any], Frame | None]] = []
        self.lines: dict[tuple[int, str], Frame] = {}  # of registrations: owner's id, name
        self.places: dict[tuple[Any, str], Frame] = {}  # of the same: root, path
        self.steps = 0
        self.updating = self.busy = self.made = False  # made: the op made a node
        self._local, self._stack, self._scans = _Local(), ExitStack(), 0

    def __enter__(self) -> Run:
        for register in (
            register_module_parameter_registration_hook,
            register_module_buffer_registration_hook,
            register_module_module_registration_hook,
        ):
            self._stack.callback(register(self._registered).remove)  # pyright: ignore
        pre, post = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
        self._stack.callback(pre(lambda o, a, k: self._step("stepping", o)).remove)
        self._stack.callback(post(lambda o, a, k: self._step("stepped", o)).remove)
        self.after(torch.optim.Optimizer, "__init__", self._optimizer)
        self.around_calls()
        self.ask("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ask(self, method: str, *args: Any, to: Sequence[Check] | None = None) -> None:
        """Each check, unwatched."""
        self.busy, before = True, self.busy
        try:
            with undispatched():
                for check in list(self.checks if to is None else to):
                    try:
                        if check in self.checks and not before:
                            getattr(check, method)(*args)
                    except Exception as error:
                        self.broken[check.kind] = f"{type(error).__name__}: {error}"
                        self.checks.remove(check)
        finally:
            self.busy = before

    def after(self, owner: Any, name: str, call: Callable[..., None]) -> None:
        """Until the run ends, `call` is given the result and the arguments of each call of a
        function of PyTorch's.
        """
        kept = owner.__dict__[name]
        function = getattr(kept, "__func__", kept)

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if not self.busy:
                call(result, *args, **kwargs)
            return result

        setattr(owner, name, classmethod(wrapped) if isinstance(kept, classmethod) else wrapped)
        self._stack.callback(setattr, owner, name, kept)

    def around_calls(self) -> None:
        """Checks are given the modules that no other one calls."""
        call, local = nn.Module.__call__, self._local

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not local.depth and not self.busy and torch.is_grad_enabled() and _node() is None:
                self.ask("called", module, args, kwargs)
            local.depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                local.depth -= 1

        nn.Module.__call__ = called
        self._stack.callback(setattr, nn.Module, "__call__", call)

    # --- ops ---

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """See `dispatch.Listener`."""
        number, local = _get_sequence_nr(), self._local
        self.made, local.number = number != local.number, number
        if self.busy or _node() is not None:
            return
        facts = facts_of(op)
        if not self.updating:
            self._used(facts, args)
        if facts.name == "ones_like" and (frame := inside("_make_grads")) is not None:
            self._backward(args[0], frame.f_back)
        if wanting := [c for c in self.checks if facts.name in c.ops]:
            self.ask("op", facts.name, positional(op, tuple(args), kwargs), result, to=wanting)

    def _used(self, facts: Any, args: Sequence[Any]) -> None:
        for k, a in enumerate(args):
            is_written = k in facts.writes and (self.steps or facts.name == "copy_")
            if not isinstance(a, torch.Tensor):
                continue
            if is_written and a.layout is torch.strided and self.params:
                storage = a.untyped_storage()._cdata
                for p in self.params.values():
                    t = p.ref()
                    if t is not None and t.untyped_storage()._cdata == storage:
                        p.written = True
            elif type(a) is nn.Parameter and a.requires_grad and not facts.writes:
                param = self.param(a)
                if not self.made and not param.used and param.cut is None and (at := here()):
                    param.cut = at, "its layer runs without a graph (no_grad)"
                param.used |= self.made
            elif facts.name == "detach" and a.grad_fn is not None and (at := directly()):
                if (at[:2]) not in self._cuts:
                    self._cuts.add(at[:2])
                    for leaf in graph_of(a.grad_fn)[0]:
                        self.param(leaf).cut = at, "its result is detached from the graph"

    _cuts: set[tuple[str, int]] = field(default_factory=set)

    def _backward(self, loss: torch.Tensor, caller: Any) -> None:
        leaves, numbers = graph_of(loss.grad_fn) if loss.grad_fn else ([loss], set())
        for leaf in leaves:
            if isinstance(leaf, nn.Parameter):
                self.param(leaf).reached = True
        by = caller.f_code.co_name if caller else ""
        self.ask("loss", Loss(loss, here(), by == "backward", leaves, numbers))

    # --- parameters and optimizers ---

    def param(self, p: torch.Tensor) -> Param:
        known = self.params.get(id(p))
        if known is None or known.ref() is not p:
            known = self.params[id(p)] = Param(weakref.ref(p))
            self.every.append(known)
        return known

    def _registered(self, module: nn.Module, name: str, value: Any) -> None:
        if value is not None and not self.busy and (at := here()) is not None:
            self.lines[id(module), name] = at
            self.ask("registered", module, name, value)

    def _optimizer(self, _: None, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.optimizers.append((weakref.ref(optimizer), here()))
        for p in params_of(optimizer):
            self.param(p).optimised = True

    def line_of(self, optimizer: Any) -> Frame | None:
        """Of its construction."""
        return next((at for ref, at in self.optimizers if ref() is optimizer), None)

    def _step(self, method: str, optimizer: Any) -> None:
        params = params_of(optimizer)
        self.updating = method == "stepping"
        if self.updating:
            self.steps += 1
            for p in params:
                param = self.param(p)
                param.optimised, param.trains = True, p.requires_grad
                param.reached |= p.grad is not None
            unnamed = (p for p in self.params.values() if not p.name and p.ref() is not None)
            if self._scans < MOST_SCANS and any(p.reached or p.optimised for p in unnamed):
                self._scan()
        self.ask(method, optimizer, params)

    def _scan(self) -> None:
        """Names all parameters that there are."""
        self._scans += 1
        for root in roots():
            key = self._scans, id(root)
            for path, module in root.named_modules():
                for name, value in (*module._parameters.items(), *module._modules.items()):
                    full = f"{path}.{name}" if path else name
                    if at := self.lines.get((id(module), name)):
                        self.places.setdefault((key, full), at)
                    if isinstance(value, nn.Parameter) and not self.param(value).root:
                        param = self.param(value)
                        param.name, param.root, param.in_training = full, key, module.training

    def end(self, is_complete: bool) -> None:
        """The script is over. What is only known of a whole run is left out where it broke off."""
        if is_complete:
            self.ask("end")
        self.found.sort(key=lambda f: (f.file, f.line))


def params_of(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def graph_of(node: Any) -> tuple[list[torch.Tensor], set[int]]:
    """The leaves that a graph ends at, and the numbers of its nodes."""
    leaves, numbers, seen, left = [], set(), {node}, [node]
    while left:
        one = left.pop()
        numbers.add(one._sequence_nr())
        if (leaf := getattr(one, "variable", None)) is not None:
            leaves.append(leaf)
        following = {n for n, _ in one.next_functions if n is not None} - seen
        seen |= following
        left += following
    return leaves, numbers


def here() -> Frame | None:
    """The innermost line of a person's own."""
    return next(iter(frames(stack_now())), None)


def own_frame(skipped: str = "") -> Any:
    """The innermost live frame of a person's own; None where the first one after those of files
    with this beginning is not.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        if skipped and not frame.f_code.co_filename.startswith(skipped):
            return None
        frame = frame.f_back
    return frame


def directly() -> Frame | None:
    """The line of a person's own that called an op, without a function of PyTorch's between."""
    frame = own_frame(_OURS)
    return Frame(frame.f_code.co_filename, frame.f_lineno, "") if frame is not None else None


def inside(*names: str) -> Any:
    """The live frame of PyTorch's function with one of these names, the innermost."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in names and code.co_filename.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


@contextmanager
def unnoticed() -> Iterator[None]:
    """What runs again prints nothing, and leaves generators as they were."""
    states = random.getstate(), np.random.get_state()
    silent = io.StringIO()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(), torch.enable_grad():
            with redirect_stdout(silent), redirect_stderr(silent):
                warnings.simplefilter("ignore")
                yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
