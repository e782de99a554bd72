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
    stack_kept,
    stack_now,
)
from opstep.frontends.torch.eager.tensors import (
    FINITE,
    NAN,
    PLAIN,
    readable,
    storage_of,
    undispatched,
)

NODES = 1 << 16  # of a thread that are remembered
NEAR = 64  # how far a node's number is from that of its op
SEEN = 1 << 14  # storages that were looked at, which are remembered
_node = torch._C._current_autograd_node  # pyright: ignore[reportAttributeAccessIssue]
_WATCHED = Looks.watched
NOT_ASKED, ASKED = 0, 1
COMPOSITE = 2  # it is made of other ops, which run in its place
Wants = Callable[[str, str], int]  # one of these, for an op's name and its overload
# With its arguments, its results, and the names of composites that it runs for.
Asked = Callable[[str, str, list[Any], list[torch.Tensor], list[str]], None]
_tracing = torch._C._get_tracing_state  # while it is not None, sizes are tensors
_mode_of, _PROXY = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY  # pyright: ignore


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


class _Local(threading.local):
    mode: _Mode | None = None


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
        self._looks = looks
        self._listening = list(self.ran)
        self.is_alone = not listeners and noted is None
        self.ops = 0
        self.unseen: dict[str, int] = {}  # results that could not be read, by their kind
        self.empty: dict[int, tuple[StorageWeakRef, Stack]] = {}  # memory that nothing has written
        self._sweep_at = 256
        self.seen: set[int] = set()  # storages whose elements were looked at
        self._threads: dict[int, _Mode] = {}
        self._local = _Local()
        self.is_active = False

    @property
    def looks(self) -> bool:
        return self._looks

    @looks.setter
    def looks(self, value: bool) -> None:
        self._looks = value
        self.seen.clear()  # what is in it may be written meanwhile

    def ask(self, wants: Wants | None, asked: Asked | None, has_composites: bool = False) -> None:
        """`asked` is called after each op that is wanted; no more with None. Composites are not
        seen here.
        """
        self.ran = [*self._listening]
        if wants is not None and asked is not None:
            self.ran.append(_asking(wants, asked))
        self.is_alone = not (self.ran or self.runs or self.failed or self.noted)

    def start(self) -> None:
        """Watches this thread; others by `enter`."""
        self.is_active = True
        births = self.births
        births.made_by, births.empty_at = self.made_by, self._empty_at
        births.made_at = lambda node: self._made(Node(node._sequence_nr(), 0, node.name()))
        self.enter()

    def enter(self) -> None:
        """Watches the thread that calls this, to its end."""
        if self.is_active and self._local.mode is None:
            self._local.mode = self._threads[threading.get_ident()] = _Mode(self)
            self._local.mode.__enter__()

    def stop(self) -> None:
        self.is_active = False
        mode = self._local.mode
        if mode is not None:
            mode.__exit__(None, None, None)
            self._local.mode = None

    def silence(self) -> None:
        """Other threads may still be in their mode: they watch nothing any more."""
        self.is_active = False

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
        self.seen.discard(storage._cdata)
        self.empty[storage._cdata] = StorageWeakRef(storage), stack
        if len(self.empty) > self._sweep_at:
            self.empty = {k: v for k, v in self.empty.items() if not v[0].expired()}
            self._sweep_at = 2 * len(self.empty) + 256

    def _empty_at(self, storage: int) -> Stack | None:
        found = self.empty.get(storage)
        return found[1] if found is not None and not found[0].expired() else None

    # --- what this thread is at ---

    def push(self, module: torch.nn.Module) -> None:
        """A module is called."""
        if (mode := self._local.mode) is not None:
            mode.modules.append(module)

    def pop(self) -> int:
        """Its call is over; the number of those around it."""
        mode = self._local.mode
        if mode is None or not mode.modules:
            return -1
        mode.modules.pop()
        return len(mode.modules)

    def modules_now(self) -> list[Any]:
        """The modules whose calls this thread is in, outer ones first."""
        mode = self._local.mode
        return list(mode.modules) if mode is not None else []

    def updating(self, how: int) -> None:
        """An optimizer begins its step (2: with a closure) or ends it (0)."""
        if (mode := self._local.mode) is not None:
            mode.is_updating = bool(how)

    def place(self) -> Place:
        mode = self._local.mode
        if mode is None:
            return Place(stack_kept(2), 0, current_node())
        module = id(mode.modules[-1]) if mode.modules else 0
        return Place(stack_kept(2), module, current_node(), mode.is_updating)

    def level(self, t: torch.Tensor) -> int:
        """See `looking.Looks`. What was seen to be finite is not looked at again."""
        if not _has_elements(t):
            return FINITE
        storage = t.untyped_storage()._cdata
        if storage in self.seen and not self.births.is_bad(storage):
            return FINITE
        mode = self._local.mode
        with undispatched():
            level = (mode.looks if mode is not None else Looks()).level(t)
        if not level:
            self.seen.add(storage)
        return level

    def bad_among(self, tensors: Sequence[torch.Tensor], gradients: bool = False) -> list[int]:
        """Indices of those that are not finite, or whose gradients are not."""
        found: list[int] = []
        for k, t in enumerate([t.grad for t in tensors] if gradients else tensors):
            if t is None or ((s := storage_of(t)) in self.seen and s not in self.births.held):
                continue
            if readable(t) and t.numel() and self.level(t):
                found.append(k)
        return found

    # --- nodes ---

    def note(self, tensors: Sequence[torch.Tensor], sink: str, gradients: bool = False) -> bool:
        """See `native.Native.note`: here all is looked at at once."""
        return False

    def step_done(self, wait: bool = False) -> None:
        """See `native.Native.step_done`."""

    def sizes(self) -> list[tuple[int, float, float]]:
        """Of parameters, before and after an update: only the native watcher knows them."""
        return []

    def made_by(self, place: Place) -> tuple[Made, ...]:
        """See `places.makers`."""
        return makers(place.node, self._made)

    def _made(self, node: Node) -> Made | None:
        """The thread of a node is not known in Python: this one's are asked first."""
        own = self._local.mode
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
                    return Made(*found[1])
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
        self.known: dict[int, tuple[Facts, Any, Any]] = {}  # by the op's id: its hash takes a call
        self.made: dict[int, tuple[int, tuple, bool]] = {}
        self.last = _get_sequence_nr()
        self.began = self.ended = 0  # of the op that ran last, where `noted` wants to know
        self._is_within = False

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        watcher = self.watcher
        if self._is_within or not watcher.is_active or _is_traced():
            return func(*args, **kwargs) if kwargs else func(*args)
        known = self.known.get(id(func))
        if known is None:  # what is kept of an op's packet is called without Python between
            run = func._op if type(func) is torch._ops.OpOverload else func
            self.known[id(func)] = known = facts_of(func), run, func
        facts, run, _ = known
        number = _get_sequence_nr()
        if number != self.last:
            self._note(number, facts, args)
        watcher.ops += 1
        if facts.passes and watcher.is_alone:
            return run(*args, **kwargs) if kwargs else run(*args)
        noted, looks = watcher.noted, watcher.looks
        for call in watcher.runs:
            self._guarded(call, func, args, kwargs or {})
        before: dict[int, list[Before]] = {}
        if looks and facts.matters:
            for t in args[: 1 + facts.compares]:
                if isinstance(t, torch.Tensor):
                    self._ask(facts, t)
        written = self._written(facts, args, kwargs, before) if looks and facts.writes else ()
        if noted is not None:
            self.began = monotonic_ns()
        try:
            out = run(*args, **kwargs) if kwargs else run(*args)
        except Exception:
            for call in watcher.failed:
                self._guarded(call, func, args, kwargs or {})
            raise
        if noted is not None:
            self.ended = monotonic_ns()
        for call in watcher.ran:  # before what it gave is reported
            self._guarded(call, func, args, kwargs or {}, out)
        if looks and not facts.skipped:
            if not facts.writes or facts.statistics:
                found = (out,) if type(out) is torch.Tensor else tensors_in(out)
                self._look_at(func, args, kwargs, self._lookable(found), before, False)
            if written:
                self._look_at(func, args, kwargs, written, before, True)
        elif looks and facts.empty and type(out) is torch.Tensor and out.is_floating_point():
            watcher.emptied(out, stack_now(2))
        if noted is not None and (not facts.skipped or facts.matters):
            noted(self, func, facts, args, kwargs or {}, out)
        return out

    def _ask(self, facts: Facts, t: Any) -> None:
        """A value that matters: one that is read, compared or tested, a loss."""
        for _, _, storage in self._lookable((t,)):
            if storage in self.seen and storage not in self.watcher.births.held:
                continue
            sinks = self.watcher.harm
            if facts.compares:
                if not t.dim() and self.looks.level(t) == NAN:
                    self._guarded(sinks.read, t)
            elif facts.name in TESTS:
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

    def _note(self, number: int, facts: Facts, args: Any) -> None:
        """The node before that number belongs to the op that runs now."""
        self.last = number
        makes_none = not (torch.is_grad_enabled() and any(map(_needs_grad, args)))
        module = id(self.modules[-1]) if self.modules else 0
        made = stack_kept(3), module, current_node(), facts.name
        self.made[(number - 1) % NODES] = number - 1, made, makes_none

    def _lookable(self, tensors: Sequence[torch.Tensor]) -> list[tuple[int, torch.Tensor, int]]:
        """Those whose elements can be infinite, and be read: index, tensor, storage."""
        found = []
        for k, t in enumerate(tensors):
            if t.dtype not in _WATCHED:
                continue
            if type(t) in PLAIN and t.layout is torch.strided and (t.is_cpu or _has_elements(t)):
                found.append((k, t, t.untyped_storage()._cdata))
            else:
                self.watcher.note_unseen(t)
        return found

    def _written(self, facts: Facts, args: Any, kwargs: Any, before: Any) -> Any:
        """The operands that the op is to write. `before` gets those that are bad as they are."""
        found = []
        watcher = self.watcher
        for k in facts.writes:
            given = args[k] if k < len(args) else (kwargs or {}).get(facts.arguments[k])
            tensors = (given,) if isinstance(given, torch.Tensor) else tensors_in(given)
            for one in self._lookable(tensors):
                found.append(one)
                n, t, storage = one
                if storage in self.seen and storage not in watcher.births.held:
                    continue
                if storage not in watcher.empty and (level := self.looks.level(t)):
                    of_argument = before.setdefault(k, [Before()] * len(tensors))
                    of_argument[n] = Before(level, t.detach().clone())
        return found

    def _look_at(self, func, args, kwargs, given, before, written: bool) -> None:
        watcher, seen = self.watcher, self.seen
        births = watcher.births
        for k, t, storage in given:
            level = self.looks.level(t)
            seen.add(storage)
            if level:
                operands = positional(func, args, kwargs)
                self._guarded(births.gave, func, operands, t, k, level, before, written)
            elif written:
                if storage in births.held:
                    self._guarded(births.healed, t)
                watcher.empty.pop(storage, None)
        if len(seen) > SEEN:
            seen.clear()


def _asking(wants: Wants, asked: Asked) -> Callable[..., None]:
    known: dict[Any, int] = {}

    def ran(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        schema = getattr(op, "_schema", None)
        if schema is None:  # a higher-order op's
            return
        asking = known.get(op)
        if asking is None:
            asking = known[op] = wants(schema.name, schema.overload_name)
        if asking == ASKED:
            arguments = positional(op, args, kwargs)
            found = tensors_in(result) if not isinstance(result, tuple) else [
                t for one in result for t in tensors_in(one)
            ]  # fmt: skip
            written = (t for k in facts_of(op).writes for t in tensors_in(arguments[k]))
            asked(schema.name, schema.overload_name, arguments, found or list(written), [])

    return ran


def _is_traced() -> bool:
    """Whether ops are recorded, those that look at a result among them."""
    return _tracing() is not None or _mode_of(_PROXY) is not None


def _has_elements(t: torch.Tensor) -> bool:
    """Whether they can be read now: not while a GPU's ops are captured."""
    return t.is_cpu or (t.is_cuda and not torch.cuda.is_current_stream_capturing())


def _needs_grad(argument: Any) -> bool:
    if isinstance(argument, torch.Tensor):
        return argument.requires_grad
    return any(t.requires_grad for t in tensors_in(argument))
