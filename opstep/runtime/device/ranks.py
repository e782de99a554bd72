"""Ranks: processes that run one program together, and what a collective does on the CPU.

A process has at most one `Transport`, which whoever starts the run connects. What goes over it are
bytes: arithmetic is the ops' own, so results do not depend on the library that carries them.
Between GPUs NCCL takes its place (`cuda.vendor.nccl`); ranks find each other over it all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from opstep.runtime.device.errors import error_in
from opstep.runtime.device.routine import Enqueue, PreparedCall
from opstep.runtime.ir.effects import is_shared
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.places import place_of
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import assert_
from opstep.runtime.plan.plan import Plan, Step


class Ranks(Protocol):
    """One rank's door to the others of a group. Arrays may have any strides; those that come are
    contiguous. Raises `DeviceError` where a rank is gone.
    """

    index: int
    size: int

    def exchange(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Gives each rank its part; what each gives this one, of the shape of its own part."""
        ...

    def gather(self, array: np.ndarray, sizes: Sequence[int] = ()) -> list[np.ndarray]:
        """The arrays of all: of one shape, or of one axis and these `sizes`."""
        ...

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray: ...

    def send(self, array: np.ndarray, to: int) -> None: ...

    def recv(self, like: np.ndarray, source: int) -> np.ndarray: ...

    def barrier(self) -> None: ...


class Transport(Protocol):
    """What connects this process with the others. `rank`: its own number; `world`: all of them."""

    rank: int

    @property
    def world(self) -> Ranks: ...

    def ranks(self, group: Group) -> Ranks: ...

    def wait_for(self, others: Collection[int]) -> None:
        """From now on this process waits for these ranks, on a GPU; or for none."""
        ...

    def when_lost(self, call: Callable[[str], Any]) -> None:
        """`call` is told, from another thread, once ranks that a GPU waits for will never come:
        why.
        """
        ...


Place = tuple[Plan, Step]
_E = TypeVar("_E", bound=DeviceError)

_connected: Transport | None = None
_standing: Place | None = None
_first: Place | None = None  # of what is under way, where several are
_inside = False  # whether any is under way
_owed: dict[int, set[int]] = {}  # ranks that have a part in what a stream of a GPU was given
_noted: list[Place] | None = None
_check: Callable[[Plan, Step], Any] | None = None


def connect(transport: Transport | None, check: Callable[[Plan, Step], Any] | None = None) -> None:
    """From now on collectives of this process use this transport. `check` is called before each,
    and raises `OpstepError` where others are at another one.
    """
    global _connected, _check
    _connected, _check = transport, check


def connected() -> Transport:
    if _connected is None:
        message = "this process is no rank of a group: nothing connects it with others"
        raise DeviceError(message, hint="opstep run --ranks 2, torchrun and mpirun start ranks")
    return _connected


def rank_here() -> int | None:
    """The number of this process among ranks; None where it is connected with none."""
    return None if _connected is None else _connected.rank


def stand(plan: Plan, step: Step, stream: int = 0) -> None:
    """This rank comes to an op that others take part in; on a GPU, hands it to a stream."""
    global _standing, _first, _inside
    place = (plan, step)
    _first = _first if _inside else place
    _standing, _inside = place, True
    if _noted is not None:
        _noted.append(place)
    if stream:
        others = _owed.setdefault(stream, set())
        others.update(step.attrs["over"].members(connected().rank))
    if _check is not None:
        _check(plan, step)


@contextmanager
def noted() -> Iterator[list[Place]]:
    """Within, what this rank comes to is noted: on the way out there are the first and the last of
    it, and one of each group.
    """
    global _noted
    before, _noted = _noted, []
    try:
        yield (found := _noted)
    finally:
        _noted = before
    if found:
        of_groups = {step.attrs["over"]: (plan, step) for plan, step in found}
        found[:] = [found[0], *of_groups.values(), found[-1]]


def owed() -> Collection[int]:
    """The ranks that have a part in what streams of a GPU were given, and nobody saw done."""
    return set().union(*_owed.values()) if _owed else ()


@contextmanager
def awaited(stream: int) -> Iterator[None]:
    """Within, the host waits for all that a stream of a GPU was given, and what others were that it
    waits for.
    """
    global _inside
    transport = connected()
    transport.wait_for(owed())
    try:
        yield
    finally:
        transport.wait_for(())
    _owed.pop(stream, None)
    _inside = bool(_owed)


def standing() -> str:
    """Where this rank is: ``at step.opg:13 (all_reduce)``, or behind it, or between two of what a
    GPU was given at once; "" before the first such op.
    """
    if _standing is None or _first is None:
        return ""
    if _inside and _first[1] is not _standing[1]:
        return f"between {_named(*_first)} and {_named(*_standing)}"
    return f"{'at' if _inside else 'behind'} {_named(*_standing)}"


def _named(plan: Plan, step: Step) -> str:
    source = plan.frames[step.frame].source
    path, line, _ = place_of(step.statement, source)
    return f"{path.rpartition('/')[2]}:{line} ({step.op.name})" if line else step.op.name


def located(error: _E) -> _E:
    """An error of this rank where it stands: at an op, if it is at one."""
    at = standing()
    if at.startswith("at ") and _standing is not None:
        placed: Any = error_in(*_standing, error)
        return placed
    if not at:
        return error
    return type(error)(f"{error.diagnostics[0].message}; it stands {at}")


class JoinedCall(NamedTuple):
    """One op of a group of several ranks, on concrete types."""

    op: Any
    types: tuple[TensorType, ...]  # of operands and results
    attrs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def workspace(self) -> int:
        return 0

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        arrays = [_array(p, t) for p, t in zip(pointers, self.types, strict=True)]
        op, attrs = self.op, self.attrs

        def run(stream: int) -> None:
            global _inside
            op.joined(connected().ranks(attrs["over"]), *arrays, **attrs)
            _inside = False

        return run


def is_joined(step: Step) -> bool:
    """Whether other ranks have a part in it."""
    return is_shared(step.op, step.attrs) or (
        step.op.traits.by_rank and step.attrs["over"].size > 1
    )


def may_agree(plan: Plan) -> bool:
    """Whether ranks may have to tell each other, before what a plan updates is kept, that no assert
    of any failed.
    """
    return (
        rank_here() is not None
        and any(s.op.traits.host or is_shared(s.op, s.attrs) for s in plan.steps)
        and any(s.op.traits.host or s.op is assert_ for s in plan.steps)
    )


def prepared(step: Step, types: Sequence[TensorType | None]) -> PreparedCall:
    """The call of a step, given the types of its operands, then of its results."""
    known = tuple(t for t in types if t is not None)
    call: Any = JoinedCall(step.op, known, step.attrs)
    return PreparedCall(call, tuple(range(len(known))), 0)


def _array(address: int, t: TensorType) -> np.ndarray:
    """An array over memory of a plan."""
    from ctypes import c_char

    shape: Any = t.shape
    nbytes: Any = t.nbytes
    if not nbytes:
        return np.empty(shape, t.dtype.numpy)
    memory = (c_char * nbytes).from_address(address)
    return np.frombuffer(memory, t.dtype.numpy).reshape(shape)
