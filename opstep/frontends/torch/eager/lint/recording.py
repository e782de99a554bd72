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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd import _get_sequence_nr  # pyright: ignore
from torch.nn.modules import module as registering
from torch.optim import optimizer as optimizing  # pyright: ignore

from opstep.frontends.torch.eager.births import undispatched
from opstep.frontends.torch.eager.dispatch import Listener
from opstep.frontends.torch.eager.names import roots
from opstep.frontends.torch.eager.ops import facts_of, positional, tensors_in
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
    writes it by itself. `cut`: a line that no gradient comes back through, and why.
    """

    ref: weakref.ref[torch.Tensor]
    name: str = ""  # its path in `root`
    root: Any = None
    in_training: bool = True  # the mode of its module
    trains: bool = True  # requires_grad
    reached: bool = False
    optimised: bool = False
    used: bool = False
    written: bool = False
    cut: tuple[Frame | None, str] | None = None


class Loss(NamedTuple):
    """A backward begins at it. `in_place`: its gradients go to `.grad`. `leaves` and `numbers` of
    nodes are those of its graph.
    """

    tensor: torch.Tensor
    at: Frame | None
    in_place: bool
    leaves: list[torch.Tensor]
    numbers: set[int]


class Check:
    """One kind of fault. `ops`: the ATen ops of a forward that `op` is called with. It has those
    methods that it needs: `enter`, `op`, `loss`, `stepping`, `stepped`, `registered`, `called`,
    `failed` (the script, with an error) and `end`.
    """

    kind = ""
    ops: tuple[str, ...] = ()

    def __init__(self, run: Run):
        self.run = run

    def report(self, at: Frame | None, message: str) -> None:
        """Once for each line."""
        known = {(f.kind, f.file, f.line) for f in self.run.found}
        if at is not None and (self.kind, *at[:2]) not in known:
            source = linecache.getline(*at[:2]).strip()
            self.run.found.append(LintFinding(self.kind, *at[:2], source, message))


class _Local(threading.local):
    number = -1
    depth = 0


@dataclass
class Run(Listener):
    """The listener of a session's watcher, with hooks of its own. A check that raises is left out,
    and `broken` says so.
    """

    found: list[LintFinding] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    is_broken_off: bool = False

    def __post_init__(self) -> None:
        self.params: dict[int, Param] = {}
        self.every: list[Param] = []
        self.optimizers: list[tuple[weakref.ref[Any], Frame | None]] = []
        self.lines: dict[tuple[int, str], Frame] = {}  # of registrations, by owner and name
        self.places: dict[tuple[Any, str], Frame] = {}  # the same, by root and path
        self.steps = 0
        self.updating = self.busy = self.made = False  # made: the op made a node
        self._cuts: set[Any] = set()
        self._local, self._stack, self._scans = _Local(), ExitStack(), 0

    def __enter__(self) -> Run:
        for kind in ("parameter", "buffer", "module"):
            register = getattr(registering, f"register_module_{kind}_registration_hook")
            self._stack.callback(register(self._registered).remove)
        for register, method in (
            (optimizing.register_optimizer_step_pre_hook, "stepping"),
            (optimizing.register_optimizer_step_post_hook, "stepped"),
        ):
            hook = lambda optimizer, _, __, method=method: self._step(method, optimizer)  # noqa: E731
            self._stack.callback(register(hook).remove)
        self.after(torch.optim.Optimizer, "__init__", self._optimizer)
        self._around_calls()
        self.ask("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def cause_of(self, error: Exception) -> None:
        """See `script.Judge`."""
        self.is_broken_off = True
        self.ask("failed", error)

    def advice(self, error: Exception) -> None:
        """See `script.Judge`."""

    def end(self) -> None:
        """Leaves out what is only known of a whole run where it broke off."""
        if not self.is_broken_off:
            self.ask("end")
        self.found.sort(key=lambda f: (f.file, f.line))

    def ask(self, method: str, *args: Any, to: Sequence[Check] | None = None) -> None:
        """The checks that have the method, unwatched."""
        if self.busy:
            return
        self.busy = True
        try:
            with undispatched():
                for check in list(self.checks if to is None else to):
                    try:
                        getattr(check, method, lambda *_: None)(*args)
                    except Exception as error:
                        self.broken[check.kind] = f"{type(error).__name__}: {error}"
                        self.checks.remove(check)
        finally:
            self.busy = False

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

    def _around_calls(self) -> None:
        """Of modules that no other one calls, with a graph."""
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
        if self.busy or not self.checks or _node() is not None:
            return
        try:
            self._ran(facts_of(op), op, args, kwargs, result)
        except Exception as error:
            self.broken["all"] = f"{type(error).__name__}: {error}"
            self.checks.clear()

    def _ran(self, facts: Any, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not all(map(_is_plain, [*tensors_in(result), *tensors_in(args)])):
            return
        if not self.updating:
            self._used(facts, args)
        if facts.name == "ones_like" and (frame := inside("_make_grads")) is not None:
            self._backward(args[0], frame.f_back.f_code.co_name == "backward")
        if wanting := [c for c in self.checks if facts.name in c.ops]:
            self.ask("op", facts.name, positional(op, tuple(args), kwargs), result, to=wanting)

    def _used(self, facts: Any, args: Sequence[Any]) -> None:
        """Notes what is written in place, used, and cut off the graph."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if 0 in facts.writes and first is not None and (self.steps or facts.name == "copy_"):
            for p in self.params.values() if first.layout is torch.strided else ():
                if (t := p.ref()) is not None and t.data_ptr() == first.data_ptr():
                    p.written = True
        elif facts.name == "detach" and first is not None and first.grad_fn is not None:
            at = directly()
            leaves = graph_of(first.grad_fn)[0] if at and at[:2] not in self._cuts else ()
            self._cuts.add(at and at[:2])
            for leaf in leaves:
                self.param(leaf).cut = at, "its result is detached from the graph"
        for a in args:
            if type(a) is nn.Parameter and a.requires_grad and not facts.writes:
                param = self.param(a)
                if not (self.made or param.used or param.cut) and (at := here()):
                    param.cut = at, "it is used without a graph (no_grad or .data)"
                param.used |= self.made

    def _backward(self, loss: torch.Tensor, in_place: bool) -> None:
        leaves, numbers = graph_of(loss.grad_fn) if loss.grad_fn else ([loss], set())
        for leaf in leaves:
            self.param(leaf).reached = True
        self.ask("loss", Loss(loss, here(), in_place, leaves, numbers))

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

    def _step(self, method: str, optimizer: Any) -> None:
        params = params_of(optimizer)
        self.updating = method == "stepping"
        self.steps += self.updating
        for p in params if self.updating else ():
            param = self.param(p)
            param.optimised, param.trains = True, p.requires_grad
            param.reached |= p.grad is not None
        if self.updating and self._scans < MOST_SCANS:
            unnamed = (p for p in self.params.values() if not p.name and p.ref() is not None)
            if any(p.reached or p.optimised for p in unnamed):
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
                    if isinstance(value, nn.Parameter) and not (param := self.param(value)).root:
                        param.name, param.root, param.in_training = full, key, module.training


def _is_plain(t: torch.Tensor) -> bool:
    """It has elements, which can be read: not of a fake tensor."""
    return type(t) in (torch.Tensor, nn.Parameter) and not t.is_meta


def params_of(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if _is_plain(p)]


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


def live() -> Iterator[Any]:
    """The frames that run, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def own_frame() -> Any:
    """The innermost live frame of a person's own."""
    return next((f for f in live() if is_own(f.f_code.co_filename)), None)


def directly() -> Frame | None:
    """The line of a person's own that called an op, without a function of PyTorch's between."""
    frame = next(f for f in live() if not f.f_code.co_filename.startswith(_OURS))
    file = frame.f_code.co_filename
    return Frame(file, frame.f_lineno, frame.f_code.co_name) if is_own(file) else None


def inside(*names: str) -> Any:
    """The innermost live frame of PyTorch's function with one of these names."""
    codes = ((f, f.f_code) for f in live())
    found = (f for f, c in codes if c.co_name in names and c.co_filename.startswith(_TORCH))
    return next(found, None)


@contextmanager
def unnoticed() -> Iterator[None]:
    """While the block lasts nothing is printed, and generators are left as they were."""
    states, silent = (random.getstate(), np.random.get_state()), io.StringIO()
    try:
        with (
            warnings.catch_warnings(), redirect_stdout(silent), redirect_stderr(silent),
            torch.random.fork_rng(), torch.enable_grad(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
