"""Stops after ops: at breakpoints on their names, at steps by ops, at writes of a watched tensor.

After an op that is asked for it is decided whether the script stops there. Where nothing is asked
for, no op is looked at.
"""

from __future__ import annotations

import linecache
import sys
import threading
import types
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from opstep.frontends.debugging.breakpoints import Breakpoint
from opstep.frontends.debugging.listed import Listing, listed, place_of
from opstep.frontends.debugging.names import ModulePath, Pattern
from opstep.frontends.debugging.watches import Watch
from opstep.frontends.torch.debugging import listing, stops
from opstep.frontends.torch.debugging.listing import Op
from opstep.frontends.torch.eager.dispatch import ASKED, COMPOSITE, NOT_ASKED
from opstep.frontends.torch.eager.names import Names, modules
from opstep.frontends.torch.eager.ops import by_name, facts_of, plain_name, tensors_in
from opstep.frontends.torch.eager.places import forward_frames, frames
from opstep.frontends.torch.eager.tensors import storage_of

if TYPE_CHECKING:
    from opstep.frontends.torch.eager.session import Session

STEP, BREAKPOINT, DATA = "step", "function breakpoint", "data breakpoint"  # as clients name them


@dataclass
class Step:
    """To the next op of a thread; with `caller`, that no function runs which that has called."""

    thread: int
    caller: types.FrameType | None

    def is_over(self, frame: types.FrameType | None, is_elsewhere: bool) -> bool:
        main = threading.main_thread().ident
        if self.thread != (main if is_elsewhere else threading.get_ident()):
            return False
        while frame is not None and (frame := frame.f_back) is not None:
            if frame is self.caller:
                return False
        return True


@dataclass
class Asking:
    """What is asked for. `current`: the op at which the script stands, `place`: its line; `stop`:
    what a client is given of it.
    """

    breakpoints: list[Breakpoint] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)  # of tensors
    step: Step | None = None
    current: Op | None = None
    place: tuple[str, int] = ("", 0)
    stop: dict[str, Any] = field(default_factory=dict)
    session: Session | None = None
    warned: set[str] = field(default_factory=set)  # names of ops that are not seen

    @property
    def ops(self) -> list[Breakpoint]:
        return [b for b in self.breakpoints if isinstance(b.pattern, Pattern)]

    @property
    def modules(self) -> list[Breakpoint]:
        return [b for b in self.breakpoints if isinstance(b.pattern, ModulePath)]

    @property
    def is_any(self) -> bool:
        return bool(self.breakpoints or self.asks_ops)

    @property
    def asks_ops(self) -> bool:
        return bool(self.ops or self.watches or self.step or listed)

    def begin(self, filters: Collection[str]) -> None:
        """From now on ops are asked for that are wanted now; on the script's thread, if nothing is
        watched yet. `filters`: those of NaNs that are on.
        """
        from opstep.frontends.torch.debugging import watching

        composites = [b for b in self.ops if _is_made_of_others(b.pattern)]
        if self.is_any:
            watching.watch(filters, asks=True, builds=bool(composites))
        self.session = watching.session
        self.ask()
        if self.session is not None and self.session.watcher.form != "native":
            for name in {b.pattern.name for b in composites} - self.warned:
                print(_UNSEEN.format(name), file=sys.stderr)
                self.warned.add(name)

    def ask(self) -> None:
        """Its watcher asks for what is wanted now, and for nothing else."""
        if self.session is None:
            return
        self.session.hooks.on_call = _called if self.modules else None
        if self.asks_ops:
            has_composites = any(_is_made_of_others(b.pattern) for b in self.ops)
            self.session.ask(_wants, _asked, has_composites)
        else:
            self.session.ask(None, None)


_UNSEEN = (
    "opstep: where PyTorch runs other ops in place of {}, the script does not stop: the native "
    "watcher, which sees both, is not there"
)
asking = Asking()


def _is_made_of_others(pattern: Any) -> bool:
    """Whether some op of this name is, which is seen at the cost of a microsecond for every op."""
    ops = (op.partition(".") for op in torch._C._dispatch_get_all_op_names())
    found = ((n, o) for n, _, o in ops if o != "deprecated" and pattern.matches(n, o))
    return any(_is_composite(n, o) for n, o in found)


def _is_composite(name: str, overload: str) -> bool:
    op = f"{name}.{overload}" if overload else name
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore
    return has_kernel(op, "CompositeImplicitAutograd")


def _wants(name: str, overload: str) -> int:
    """Asked once of each op."""
    if name.startswith("profiler::"):
        return NOT_ASKED
    is_named = any(b.pattern.matches(name, overload) for b in asking.ops)
    if _is_composite(name, overload):
        return COMPOSITE if is_named else NOT_ASKED
    if is_named or asking.step or listed:
        return ASKED
    return ASKED if asking.watches and facts_of(by_name(name, overload)).writes else NOT_ASKED


def _asked(
    name: str, overload: str, arguments: list[Any], results: list[torch.Tensor],
    composites: Sequence[str],
) -> None:  # fmt: skip
    """After an op that was asked for."""
    if stops.is_stopped() or torch.compiler.is_compiling():
        return
    frame, is_elsewhere = stops.script_frame(sys._getframe().f_back)
    if frame is None:
        return
    op = Op(name, overload, arguments, results)
    if listed and not _is_composite(name, overload):
        listing.add(op, frame)
    hits: list[int] = []
    reason, error = "", ""
    for one in asking.ops:
        if any(one.pattern.matches(c, "") for c in composites):
            continue  # it stops after that
        if one.pattern.matches(name, overload):
            is_hit, why = _meets(one, op, frame)
            error = error or why
            hits += [one.id] * is_hit
            reason = BREAKPOINT if is_hit else reason
    for one in _written(op) if asking.watches else ():
        is_hit, why = one.point.meets(_values_around(one, frame))
        error = error or why
        hits += [one.point.id] * is_hit
        if is_hit and not reason:
            reason, error = DATA, why or f"{name} has written {one.point.pattern}"
    if not reason and asking.step is not None and asking.step.is_over(frame, is_elsewhere):
        reason = STEP
    if reason:
        _stop(op, reason, hits, error, frame)


def _meets(one: Breakpoint, op: Op, frame: types.FrameType) -> tuple[bool, str]:
    asking.current = op
    try:
        own = {"result": op.result, "operands": op.operands}
        return one.meets({**frame.f_globals, **frame.f_locals, **own})
    finally:
        asking.current = None


def _called(module: torch.nn.Module, arguments: Sequence[Any]) -> None:
    """Before the call of a module."""
    frame, _ = stops.script_frame(sys._getframe().f_back)
    if frame is None or stops.is_stopped():
        return
    path = module_paths.of(module)
    values = {**frame.f_globals, **frame.f_locals, "module": module, "arguments": arguments}
    met = {b.id: b.meets(values) for b in asking.modules if b.pattern.path == path}
    if hits := [number for number, (is_hit, _) in met.items() if is_hit]:
        text = next(filter(None, (error for _, error in met.values())), f"before {path} is called")
        about = {"reason": BREAKPOINT, "ids": hits, "text": text}
        _show(about | {"description": f"Paused before {path}"})


class _Paths:
    """The paths of modules, found again where one is called that is not known."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

    def of(self, module: torch.nn.Module) -> str:
        found = self._known.get(id(module))
        if found is None or found[0]() is not module:
            names = Names()
            every = (*modules(), module)
            self._known = {id(m): (weakref.ref(m), names.module(id(m))) for m in every}
        return self._known[id(module)][1]


module_paths = _Paths()


def _written(op: Op) -> list[Watch]:
    writes = facts_of(by_name(op.name, op.overload)).writes
    storages = {storage_of(t) for k in writes for t in tensors_in(op.arguments[k])} - {None}
    held = ((w, w.tensor()) for w in asking.watches)
    return [w for w, t in held if t is not None and storage_of(t) in storages]


def _values_around(watch: Watch, frame: types.FrameType | None) -> dict[str, Any]:
    """Of the function that a watch is in, if that runs."""
    while frame is not None:
        code = frame.f_code
        if code.co_firstlineno == watch.first and place_of(frame)[0] == watch.path:
            return {**frame.f_globals, **frame.f_locals}
        frame = frame.f_back
    return {}


def _stop(
    op: Op, reason: str, hits: list[int], text: str, frame: types.FrameType
) -> None:  # fmt: skip
    assert asking.session is not None
    place = asking.session.births.place_of()
    own = frames(place.stack)
    if place.phase == "backward":
        own = forward_frames(place.stack, asking.session.watcher.made_by(place)) or own
    name = plain_name(op.name.partition("::")[2])
    asking.current, asking.place = op, place_of(frame)
    about = {
        "reason": reason, "ids": hits, "op": name, "phase": place.phase,
        "description": f"Paused after {name}",
        "listed": listed.get(asking.place, Listing()).count,
        "text": text or f"after {op.name}",
        "frames": [{"name": f.function, "path": f.file, "line": f.line} for f in own],
        "line": linecache.getline(own[0].file, own[0].line).strip() if own else "",
    }  # fmt: skip
    try:
        _show(about)
    finally:
        asking.current = None


def _show(about: dict[str, Any]) -> None:
    """The script stands there. A step by ops is over; what it asked for is asked for no more."""
    was_step, asking.step = asking.step is not None, None
    asking.stop = about
    stops.stop(about["text"], stops.AtOp)
    if was_step and asking.step is None:
        asking.ask()


def step(over: bool) -> None:
    """The thread that calls it is to stop after its next op."""
    frame, is_elsewhere = stops.script_frame(sys._getframe().f_back)
    thread = threading.main_thread().ident if is_elsewhere else threading.get_ident()
    asking.step = Step(thread or 0, frame if over else None)


def list_op(place: tuple[str, int]) -> None:
    """See `op_stops.list_op`."""
    if asking.current is not None and place == asking.place:
        found = listed[place]
        found.ops, found.count = [listing.op_text(asking.current)], 1


def shown() -> types.SimpleNamespace:
    """What the op was given at which the script stands, and its result."""
    op = asking.current
    if op is None:
        return types.SimpleNamespace()
    return types.SimpleNamespace(result=op.result, **vars(op.operands))
