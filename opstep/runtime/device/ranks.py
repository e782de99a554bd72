"""Ranks: processes that run one program together, and what a collective does on the CPU.

A process has at most one `Transport`; the program that starts the run calls `connect`. A transport
carries bytes and ops do the arithmetic, so results do not depend on the library that carries them.
Between GPUs NCCL carries the bytes (`cuda.vendor.nccl`), and its setup goes over the transport.

This module also records which collective the process has reached last (`stand`), for messages about
ranks that are lost or wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from opstep.runtime.device.errors import error_in
from opstep.runtime.device.routine import Enqueue, PreparedCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.places import place_of
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import assert_
from opstep.runtime.plan.plan import Plan, Step


class Ranks(Protocol):
    """A group of ranks, as one of them sees it: `index` is its own number in the group, of `size`
    ranks. Arrays that are sent may have any strides; those received are contiguous. Methods raise
    `DeviceError` where a rank has ended.
    """

    index: int
    size: int

    def exchange(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sends ``parts[k]`` to rank k. Returns what each rank sent to this one, in their order,
        with the shape of this rank's own part.
        """
        ...

    def gather(self, array: np.ndarray, sizes: Sequence[int] = ()) -> list[np.ndarray]:
        """The arrays of all ranks: of one shape, or of one axis with these `sizes`."""
        ...

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray: ...

    def send(self, array: np.ndarray, to: int) -> None: ...

    def recv(self, like: np.ndarray, source: int) -> np.ndarray: ...

    def barrier(self) -> None: ...


class Transport(Protocol):
    """The connection of this process to the others. `rank`: its own number; `world`: all ranks."""

    rank: int

    @property
    def world(self) -> Ranks: ...

    def ranks(self, group: Group) -> Ranks: ...

    def wait_for(self, others: Collection[int]) -> None:
        """From now on this process waits, on a GPU, for these ranks, or for none."""
        ...

    def when_lost(self, call: Callable[[str], Any]) -> None:
        """Calls `call` with the reason, from another thread, once ranks that a GPU waits for have
        ended.
        """
        ...


Place = tuple[Plan, Step]
_E = TypeVar("_E", bound=DeviceError)

_connected: Transport | None = None
_standing: Place | None = None  # the last collective that was reached
_first: Place | None = None  # the first of those under way
_inside = False  # whether any is under way
_owed: dict[int, set[int]] = {}  # stream of a GPU -> ranks in the collectives issued to it
_noted: list[Place] | None = None
_check: Callable[[Plan, Step], Any] | None = None


def connect(transport: Transport | None, check: Callable[[Plan, Step], Any] | None = None) -> None:
    """Has the collectives of this process use this transport (None: none). `check` is called before
    each of them, and raises `OpstepError` where other ranks have reached another one.
    """
    global _connected, _check
    _connected, _check = transport, check


def connected() -> Transport:
    """The transport. Raises `DeviceError` where there is none."""
    if _connected is None:
        message = "this process is no rank of a group: nothing connects it with others"
        raise DeviceError(message, hint="opstep run --ranks 2, torchrun and mpirun start ranks")
    return _connected


def rank_here() -> int | None:
    """The number of this process among ranks; None where it is connected with none."""
    return None if _connected is None else _connected.rank


def stand(plan: Plan, step: Step, stream: int = 0) -> None:
    """Records that this rank has reached an op in which others take part. `stream`: handle of the
    GPU's stream that it is issued to, 0 on the CPU.
    """
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
    """Within, the collectives that this rank reaches are appended to the list; at the end it keeps
    the first, one of each group, and the last.
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
    """The ranks in collectives that were issued to a GPU and are not known to be done."""
    return set().union(*_owed.values()) if _owed else ()


@contextmanager
def awaited(stream: int) -> Iterator[None]:
    """Within, the host waits for all work of a stream of a GPU, and so for other ranks in it."""
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
    """The collective that this rank has reached: ``at step.opg:13 (all_reduce)``, or ``behind`` it
    when it is done, or ``between`` two that were issued to a GPU at once; "" before the first one.
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
    """The error with the place of the collective that this rank has reached."""
    at = standing()
    if at.startswith("at ") and _standing is not None:
        placed: Any = error_in(*_standing, error)
        return placed
    if not at:
        return error
    return type(error)(f"{error.diagnostics[0].message}; it stands {at}")


class JoinedCall(NamedTuple):
    """A collective of several ranks, as a `Routine` of the CPU."""

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


def may_agree(plan: Plan) -> bool:
    """Whether ranks have to agree that no assert of any rank failed before a plan's updates are
    made.
    """
    return (
        rank_here() is not None
        and any(s.op.traits.host or s.op.is_shared(s.attrs) for s in plan.steps)
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
