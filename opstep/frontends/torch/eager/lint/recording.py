"""A script's run as checks see it: ops, losses, steps of optimizers, parameters and modules."""

from __future__ import annotations

import io
import linecache
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial, wraps
from types import ClassMethodDescriptorType as _ClassMethodDescriptor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd import _get_sequence_nr  # pyright: ignore
from torch.nn.modules import module as registering
from torch.utils.weak import WeakIdKeyDictionary

from opstep.frontends.torch.eager.births import undispatched
from opstep.frontends.torch.eager.dispatch import Listener
from opstep.frontends.torch.eager.names import roots
from opstep.frontends.torch.eager.ops import facts_of, positional, tensors_in
from opstep.frontends.torch.eager.places import _TORCH, frames, stack_now
from opstep.frontends.torch.sources import Frame

MOST_SCANS = 64  # of all objects, for names
FEW_STEPS = 5  # before it is said that something never happens
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
    steps: int = 0
    used: bool = False
    written: bool = False
    cut: tuple[Frame | None, str] | None = None


class Part(NamedTuple):
    """A module or a parameter: its path, the line that registered it last."""

    path: str
    at: Frame | None
    params: list[Param]


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
    """One kind of fault. `ops`: the ATen ops of a forward that `op` is called with before they run.
    It has those methods that it needs: `enter`, `op`, `loss`, `stepping`, `stepped`, `called`,
    `scanned` and `end`.
    """

    kind = ""
    ops: tuple[str, ...] = ()

    def __init__(self, run: Run):
        self.run = run

    def report(self, at: Frame | None, message: str) -> None:
        """Once for each line. Nothing where there is no message."""
        known = {(f.kind, f.file, f.line) for f in self.run.found}
        if message and at is not None and (self.kind, *at[:2]) not in known:
            source = linecache.getline(*at[:2]).strip()
            self.run.found.append(LintFinding(self.kind, *at[:2], source, message))


class Run(Listener):
    """The listener of a session's watcher. A check that raises is left out, and `broken` says
    so.
    """

    kind = "all"

    def __init__(self, checks: Sequence[type[Check]]):
        self.found: list[LintFinding] = []
        self.broken: dict[str, str] = {}
        self.params = WeakIdKeyDictionary()
        self.storages: dict[int, Param] = {}
        self.every: list[Param] = []
        self.lines = WeakIdKeyDictionary()  # of the last registration, by module or parameter
        self.parts: list[Part] = []  # of each root, outer ones first
        self.steps = 0
        self.updating = self.busy = self.made = self.is_broken_off = False
        self._numbers: dict[int, int] = {}  # of the node that is next, by thread
        self._cuts: set[Any] = set()
        self._stack, self._scans = ExitStack(), 0
        self.checks = [c(self) for c in checks]

    def __enter__(self) -> Run:
        for kind in ("parameter", "module"):
            register = getattr(registering, f"register_module_{kind}_registration_hook")
            self._stack.callback(register(self._registered).remove)
        self.after(torch.optim.Optimizer, "__init__", self._optimizer)
        self._ask("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def cause_of(self, error: Exception) -> None:
        """See `script.Judge`."""
        self.is_broken_off = True

    def advice(self, error: Exception) -> None:
        """See `script.Judge`."""

    def end(self) -> None:
        """Leaves out what is only known of a whole run where it broke off."""
        if not self.is_broken_off:
            self.quietly(self._ask, "end")
        self.found.sort(key=lambda f: (f.file, f.line))

    def _call(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            kind = call.__self__.kind  # pyright: ignore[reportFunctionMemberAccess]
            self.broken[kind] = f"{type(error).__name__}: {error}"
            self.checks = [c for c in self.checks if kind not in (c.kind, self.kind)]

    def _ask(self, method: str, *args: Any) -> None:
        for check in self.checks:
            if hasattr(check, method):
                self._call(getattr(check, method), *args)

    def quietly(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Calls it; ops and modules that it runs are not the script's."""
        if not self.busy:
            self.busy = True
            try:
                with undispatched():
                    self._call(call, *args, **kwargs)
            finally:
                self.busy = False

    def after(self, owner: Any, name: str, call: Callable[..., None]) -> None:
        """Until the run ends, `call` is given the result and the arguments of each call of a
        function of PyTorch's.
        """
        kept = owner.__dict__[name]
        is_of_class = isinstance(kept, classmethod | _ClassMethodDescriptor)  # the latter of C's

        @wraps(getattr(owner, name))
        def wrapped(first: Any, *args: Any, **kwargs: Any) -> Any:
            function = kept.__get__(None, first) if is_of_class else partial(kept, first)
            result = function(*args, **kwargs)
            self.quietly(call, result, first, *args, **kwargs)
            return result

        setattr(owner, name, classmethod(wrapped) if is_of_class else wrapped)
        self._stack.callback(setattr, owner, name, kept)

    # --- ops ---

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """See `dispatch.Listener`."""
        number, thread = _get_sequence_nr(), threading.get_ident()
        self.made = number != self._numbers.get(thread)
        self._numbers[thread] = number
        if not self.busy and self.checks and _node() is None:
            self._call(self._runs, facts_of(op), op, args, kwargs)

    def _runs(self, facts: Any, op: Any, args: Any, kwargs: Any) -> None:
        if not all(map(_is_plain, [t for a in args for t in tensors_in(a)])):
            return
        if not self.updating:
            self._used(facts, args)
        if facts.name == "ones_like" and (frame := inside("_make_grads")) is not None:
            self._backward(args[0], frame.f_back.f_code.co_name == "backward")
        for check in self.checks:
            if facts.name in check.ops:
                self._call(check.op, facts.name, positional(op, tuple(args), kwargs))  # pyright: ignore

    def _used(self, facts: Any, args: Sequence[Any]) -> None:
        """Notes what is written in place, used, and cut off the graph."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and 0 in facts.writes and (self.steps or facts.name == "copy_"):
            known = self.storages.get(_address(first))
            if known is not None and (p := known.ref()) is not None:
                known.written |= _address(p) == _address(first)
        elif facts.name == "detach" and first is not None and first.grad_fn is not None:
            at = here()
            for leaf in graph_of(first.grad_fn)[0] if at and at not in self._cuts else ():
                self.param(leaf).cut = at, "its result is detached from the graph"
            self._cuts.add(at)
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
        self._ask("loss", Loss(loss, here(), in_place, leaves, numbers))

    # --- modules, parameters and optimizers ---

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """See `dispatch.Listener`."""
        has_graph = torch.is_grad_enabled()
        if _node() is None:
            self.quietly(self._ask, "called", module, args, kwargs, has_graph)

    def param(self, p: torch.Tensor) -> Param:
        if (known := self.params.get(p)) is None:
            known = self.params[p] = self.storages[_address(p)] = Param(weakref.ref(p))
            self.every.append(known)
        return known

    def _registered(self, module: nn.Module, name: str, value: Any) -> None:
        if value is not None and not self.busy and (at := here()) is not None:
            self.lines[value] = at

    def _optimizer(self, _: None, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        for p in params_of(optimizer):
            self.param(p).optimised = True
        self._ask("constructed", optimizer)

    def stepping(self, optimizer: Any) -> None:
        """See `dispatch.Listener`."""
        self.updating = True
        self.quietly(self._stepping, optimizer, params_of(optimizer))

    def stepped(self, optimizer: Any) -> None:
        """See `dispatch.Listener`."""
        self.updating = False
        self.quietly(self._ask, "stepped", optimizer, params_of(optimizer))

    def _stepping(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        self.steps += 1
        for p in params:
            param = self.param(p)
            param.optimised, param.trains = True, p.requires_grad
            param.reached |= p.grad is not None
            param.steps += 1
        unnamed = (p for p in self.params.values() if not p.root)
        if self._scans < MOST_SCANS and any(p.reached or p.optimised for p in unnamed):
            self._scan()
        self._ask("stepping", optimizer, params)

    def _scan(self) -> None:
        """Names all parameters that there are, also tensors that a module has as attributes."""
        self._scans += 1
        trees = [list(root.named_modules()) for root in roots()]
        for key, tree in enumerate(trees):
            for path, module in tree:
                if path:
                    inner = [self.param(p) for p in module.parameters()]
                    self.parts.append(Part(path, self.lines.get(module), inner))
                for name, p in (*module._parameters.items(), *vars(module).items()):
                    if isinstance(p, torch.Tensor) and p.requires_grad and p.is_leaf:
                        param, full = self.param(p), f"{path}.{name}".lstrip(".")
                        self.parts.append(Part(full, self.lines.get(p), [param]))
                        if not param.root:
                            param.name, param.root = full, (self._scans, key)
                            param.in_training = module.training
        self._ask("scanned", {module: None for tree in trees for _, module in tree})

    def largest(self, missing: Collection[Param]) -> Iterator[Part]:
        """The largest modules all of whose parameters are missing, and single ones. None in the
        first few steps.
        """
        left = set(missing) if self.steps >= FEW_STEPS else set()
        for part in self.parts:
            if left.intersection(part.params) and all(p in missing for p in part.params):
                left.difference_update(part.params)
                yield part


def _is_plain(t: torch.Tensor) -> bool:
    """It has elements, which can be read: not of a fake tensor."""
    return type(t) in (torch.Tensor, nn.Parameter) and not t.is_meta


def _address(t: torch.Tensor) -> int:
    return t.data_ptr() if t.layout is torch.strided else 0


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


def inside(*names: str) -> Any:
    """The innermost live frame of PyTorch's function with one of these names."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in names and code.co_filename.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


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
