"""Watches ops by a `TorchDispatchMode`: where there is no compiler for the native watcher, and for
what looks at every op.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

import torch
from torch.autograd import _get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from opstep.frontends.torch.eager.births import Before, Births
from opstep.frontends.torch.eager.looking import Looks
from opstep.frontends.torch.eager.ops import READS, TESTS, Facts, facts_of, positional, tensors_in
from opstep.frontends.torch.eager.places import (
    Made,
    Node,
    Place,
    Stack,
    calls,
    current_node,
    makers,
    stack_now,
)
from opstep.frontends.torch.eager.tensors import PLAIN, readable, undispatched

NODES = 1 << 16  # of a thread that are remembered
NEAR = 64  # how far a node's number is from that of its op
SEEN = 1 << 14  # storages whose elements were looked at
_node = torch._C._current_autograd_node  # pyright: ignore[reportAttributeAccessIssue]
_tracing = torch._C._get_tracing_state  # while it is not None, sizes are tensors
_FINITE = Before()


class Listener:
    """Looks at every op, at calls of modules that no other one calls, and at optimizers' steps."""

    watcher: Dispatch

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """It is about to run in this thread."""

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """It has run in this thread."""

    def failed(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """It has raised an error."""

    def called(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Its call is over."""

    def stepping(self, optimizer: Any) -> None:
        """It begins a step."""

    def stepped(self, optimizer: Any) -> None:
        """It has ended it."""


class Seen:
    """Storages that were looked at, as far as a table of fixed size knows."""

    def __init__(self) -> None:
        self.table = [0] * SEEN

    def has(self, storage: int) -> bool:
        return self.table[(storage >> 4) % SEEN] == storage

    def add(self, storage: int) -> None:
        self.table[(storage >> 4) % SEEN] = storage

    def drop(self, storage: int) -> None:
        if self.has(storage):
            self.table[(storage >> 4) % SEEN] = 0


class Dispatch:
    """The watcher in Python. `harm`: what is asked at values that matter, see `harm.Sinks`;
    `looks`: whether anybody wants to know of NaNs and infinities. `noted`: called after each op
    with the thread's mode and facts of the op, of what is skipped only where a number is read.
    Nothing is switched off meanwhile: that takes longer than most ops.
    """

    form = "Python"

    def __init__(
        self, births: Births, harm: Any, listeners: Sequence[Listener] = (), looks: bool = True,
        noted: Callable[..., None] | None = None,
    ):  # fmt: skip
        self.births = births
        self.harm = harm
        for listener in listeners:
            listener.watcher = self
        # Done at each op: most listeners do only one of these.
        self.runs = [one.runs for one in listeners if type(one).runs is not Listener.runs]
        self.ran = [one.ran for one in listeners if type(one).ran is not Listener.ran]
        self.failed = [one.failed for one in listeners if type(one).failed is not Listener.failed]
        self.noted = noted
        self.looks = looks
        self.ops = 0
        self.unseen: dict[str, int] = {}  # results that could not be read, by their kind
        self.empty: dict[int, tuple[StorageWeakRef, Stack]] = {}  # memory that nothing has written
        self._sweep_at = 256
        self.seen = Seen()
        self._stacks: dict[Any, Stack] = {}
        self._threads: dict[int, _Mode] = {}
        self._local = threading.local()
        self._active = False

    def start(self) -> None:
        """Watches this thread; others by `enter`."""
        self._active = True
        births = self.births
        births.made_by, births.empty_at = self.made_by, self._empty_at
        births.made_at = lambda node: self._made(Node(node._sequence_nr(), 0, node.name()))
        self.enter()

    def enter(self) -> None:
        """Watches the thread that calls this, to its end."""
        if self._active and getattr(self._local, "mode", None) is None:
            self._local.mode = self._threads[threading.get_ident()] = _Mode(self)
            self._local.mode.__enter__()

    def stop(self) -> None:
        self._active = False
        mode = getattr(self._local, "mode", None)
        if mode is not None:
            mode.__exit__(None, None, None)
            self._local.mode = None

    def silence(self) -> None:
        """Other threads may still be in their mode: they watch nothing any more."""
        self._active = False

    @property
    def is_active(self) -> bool:
        return self._active

    def counts(self) -> tuple[int, dict[str, int]]:
        """The number of ops that ran; results that were not looked at, by their kind."""
        return self.ops, self.unseen

    def note_unseen(self, t: torch.Tensor) -> None:
        """A result that cannot be looked at."""
        if t.is_meta or not t.numel() or t._is_zerotensor():
            return
        kind = str(t.device) if type(t) in PLAIN else "a subclass of Tensor"
        if t.layout is not torch.strided:
            kind = str(t.layout).removeprefix("torch.")
        self.unseen[kind] = self.unseen.get(kind, 0) + 1

    def emptied(self, t: torch.Tensor, stack: Stack) -> None:
        """`torch.empty` gave it: what is in it nothing has written."""
        storage = t.untyped_storage()
        self.seen.drop(storage._cdata)
        self.empty[storage._cdata] = StorageWeakRef(storage), stack
        if len(self.empty) > self._sweep_at:
            self.empty = {k: v for k, v in self.empty.items() if not v[0].expired()}
            self._sweep_at = 2 * len(self.empty) + 256

    def _empty_at(self, storage: int) -> Stack | None:
        found = self.empty.get(storage)
        return found[1] if found is not None and not found[0].expired() else None

    # --- what this thread is at ---

    @property
    def _mode(self) -> _Mode | None:
        return getattr(self._local, "mode", None)

    def push(self, module: torch.nn.Module) -> None:
        """A module is called."""
        if (mode := self._mode) is not None:
            mode.modules.append(module)

    def pop(self) -> int:
        """Its call is over; the number of those around it."""
        mode = self._mode
        if mode is None or not mode.modules:
            return -1
        mode.modules.pop()
        return len(mode.modules)

    def modules_now(self) -> list[Any]:
        """The modules whose calls this thread is in, outer ones first."""
        mode = self._mode
        return list(mode.modules) if mode is not None else []

    def updating(self, how: int) -> None:
        """An optimizer begins its step (2: with a closure) or ends it (0)."""
        if (mode := self._mode) is not None:
            mode.is_updating = bool(how)

    def place(self) -> Place:
        mode = self._mode
        if mode is None:
            return Place(stack_now(2), 0, current_node())
        module = id(mode.modules[-1]) if mode.modules else 0
        return Place(stack_now(2), module, current_node(), mode.is_updating)

    def level(self, t: torch.Tensor) -> int:
        """See `looking.Looks`."""
        mode = self._mode
        looks = mode.looks if mode is not None else Looks()
        with undispatched():
            return looks.level(t)

    def bad_among(self, tensors: Sequence[torch.Tensor], gradients: bool = False) -> list[int]:
        """Indices of those that are not finite, or whose gradients are not; what was seen to be
        finite is not looked at.
        """
        found: list[int] = []
        if not self.looks:
            return found
        for k, own in enumerate(tensors):
            t = own.grad if gradients else own
            if t is None or not readable(t) or not t.numel():
                continue
            storage = t.untyped_storage()._cdata
            if self.seen.has(storage) and not self.births.is_bad(storage):
                continue
            if self.level(t):
                found.append(k)
            else:
                self.seen.add(storage)
        return found

    # --- nodes ---

    def interned(self, stack: Stack) -> Stack:
        return self._stacks.setdefault(tuple((id(c), k) for c, k in stack), stack)

    def note(self, tensors: Sequence[torch.Tensor], sink: str, gradients: bool = False) -> None:
        """See `native.Native.note`."""

    def step_done(self, wait: bool = False) -> None:
        """See `native.Native.step_done`."""

    def made_by(self, place: Place) -> tuple[Made, ...]:
        """See `places.makers`."""
        return makers(place.node, self._made)

    def _made(self, node: Node) -> Made | None:
        """The thread of a node is not known in Python: this one's are asked first."""
        own = self._mode
        others = [m for m in self._threads.values() if m is not own]
        late = node.is_late
        for mode in [own, *others] if own else others:
            # An op makes its node before it runs, and may make others before it runs another op;
            # late nodes are made after it.
            step = -1 if late else 1
            for number in range(node.number - late, node.number + step * NEAR, step):
                found = mode.made.get(number % NODES)
                if found is not None and found[0] == number:
                    if found[2] and number != node.number:
                        continue  # an op that made no node, though it ran at that number
                    return found[1]
        return None


class _Mode(TorchDispatchMode):
    """Of one thread."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, watcher: Dispatch):
        super().__init__()
        self.watcher = watcher
        self.modules: list[torch.nn.Module] = []
        self.is_updating = False
        self.looks = Looks()
        self.seen = watcher.seen
        self.known: dict[int, tuple[Facts, Any]] = {}  # by the op's id: its hash takes a call
        self.made: dict[int, tuple[int, Made, bool]] = {}
        self.last = _get_sequence_nr()
        self.began = self.ended = 0  # of the op that ran last, where `noted` wants to know
        self._is_within = False

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        watcher = self.watcher
        if self._is_within or not watcher._active or _tracing() is not None:
            return func(*args, **kwargs) if kwargs else func(*args)
        number = _get_sequence_nr()
        if number != self.last:
            self._note(number, func, args)
        known = self.known.get(id(func))
        if known is None:
            known = self.known[id(func)] = facts_of(func), func
        facts = known[0]
        watcher.ops += 1
        for call in watcher.runs:
            self._guarded(call, func, args, kwargs or {})
        try:
            out = self._run(func, facts, args, kwargs)
        except Exception:
            for call in watcher.failed:
                self._guarded(call, func, args, kwargs or {})
            raise
        for call in watcher.ran:
            self._guarded(call, func, args, kwargs or {}, out)
        if watcher.noted is not None and (not facts.skipped or facts.matters):
            watcher.noted(self, func, facts, args, kwargs or {}, out)
        return out

    def _run(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> Any:
        """Runs it, and looks at what it gives, if anybody wants to know."""
        looks, before = self.watcher.looks, None
        if looks and facts.matters:
            self._ask(facts, args[0])
        if looks and facts.writes:
            before = self._before(func, facts, args, kwargs)
        is_timed = self.watcher.noted is not None
        if is_timed:
            self.began = monotonic_ns()
        out = func(*args, **kwargs) if kwargs else func(*args)
        if is_timed:
            self.ended = monotonic_ns()
        if looks and not facts.skipped:
            self._look(func, facts, args, kwargs, out, before)
        elif looks and facts.empty and type(out) is torch.Tensor and out.is_floating_point():
            self.watcher.emptied(out, stack_now(3))
        return out

    def _ask(self, facts: Facts, t: Any) -> None:
        """A value that matters: one that is read or tested, a loss whose backward begins."""
        if not readable(t) or not t.numel():
            return
        storage = t.untyped_storage()._cdata
        if self.seen.has(storage) and storage not in self.watcher.births.held:
            return
        sinks = self.watcher.harm
        if facts.name in TESTS:
            self._guarded(sinks.tested, t)
        elif facts.name in READS:
            self._guarded(sinks.read, t)
        elif _node() is None and calls(stack_now(3), "_make_grads"):
            self._guarded(sinks.loss, t)

    def _guarded(self, call: Any, *args: Any) -> None:
        """Calls it; ops that it runs are not watched."""
        self._is_within = True
        try:
            with undispatched():
                call(*args)
        finally:
            self._is_within = False

    def _note(self, number: int, func: Any, args: Any) -> None:
        """The node before that number belongs to the op that runs now."""
        self.last = number
        tensors = [t for a in args for t in tensors_in(a)]
        makes_none = not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        node = current_node() if _node() is not None else Node()
        stack = self.watcher.interned(stack_now(3))
        module = id(self.modules[-1]) if self.modules else 0
        self.made[(number - 1) % NODES] = (
            number - 1,
            Made(stack, module, node, facts_of(func).name),
            makes_none,
        )

    def _before(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> dict[int, list[Before]]:
        """The operands that the op is to write, as they are where that was not seen, or is bad."""
        found: dict[int, list[Before]] = {}
        for k in facts.writes:
            given = args[k] if k < len(args) else (kwargs or {}).get(facts.arguments[k])
            for t in (given,) if isinstance(given, torch.Tensor) else tensors_in(given):
                one = _FINITE
                if t.dtype in self.looks.watched and readable(t) and t.is_cpu:
                    storage = t.untyped_storage()._cdata
                    known = self.seen.has(storage) and storage not in self.watcher.births.held
                    if not known and storage not in self.watcher.empty:
                        level = self.looks.level(t)
                        one = Before(level, t.detach().clone() if level else None)
                found.setdefault(k, []).append(one)
        return found

    def _look(self, func: Any, facts: Facts, args: Any, kwargs: Any, out: Any, before: Any) -> None:
        if not facts.writes or facts.writes[0] >= 3:  # statistics beside the results
            results = (out,) if type(out) is torch.Tensor else tensors_in(out)
            self._look_at(func, args, kwargs, results, {}, False)
        for k in facts.writes:
            given = args[k] if k < len(args) else (kwargs or {}).get(facts.arguments[k])
            results = (given,) if isinstance(given, torch.Tensor) else tensors_in(given)
            self._look_at(func, args, kwargs, results, before, True)

    def _look_at(self, func, args, kwargs, results, before, written: bool) -> None:
        watcher, looks, seen = self.watcher, self.looks, self.seen
        births = watcher.births
        for k, t in enumerate(results):
            if t.dtype not in looks.watched:
                continue
            if type(t) not in PLAIN or t.layout is not torch.strided or not t.is_cpu:
                watcher.note_unseen(t)
                continue
            level = looks.level(t)
            storage = t.untyped_storage()._cdata
            seen.table[(storage >> 4) % SEEN] = storage
            if level:
                given = positional(func, args, kwargs)
                self._guarded(births.gave, func, given, t, k, level, before, written)
            elif written:
                if storage in births.held:
                    self._guarded(births.healed, t)
                watcher.empty.pop(storage, None)
