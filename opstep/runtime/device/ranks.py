"""Ranks: processes that run one program together, and what a collective does on the CPU.

A process has at most one `Transport`, which whoever starts the run connects. What goes over it are
bytes: arithmetic is the ops' own, so results do not depend on the library that carries them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.device.routine import Enqueue, PreparedCall
from opstep.runtime.ir.effects import is_shared
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.places import place_of
from opstep.runtime.ir.types import TensorType
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


_connected: Transport | None = None
_standing: tuple[Plan, Step] | None = None
_inside = False  # whether that op is under way


def connect(transport: Transport | None) -> None:
    """From now on collectives of this process use this transport."""
    global _connected
    _connected = transport


def connected() -> Transport:
    if _connected is None:
        message = "this process is no rank of a group: nothing connects it with others"
        raise DeviceError(message, hint="opstep run --ranks 2, torchrun and mpirun start ranks")
    return _connected


def rank_here() -> int | None:
    """The number of this process among ranks; None where it is connected with none."""
    return None if _connected is None else _connected.rank


def stand(plan: Plan, step: Step) -> None:
    """This rank comes to an op that others take part in."""
    global _standing, _inside
    _standing, _inside = (plan, step), True


def standing() -> str:
    """Where this rank is: ``at step.opg:13 (all_reduce)``, or behind it; "" before the first such
    op.
    """
    if _standing is None:
        return ""
    plan, step = _standing
    source = plan.sources.get(plan.frames[step.frame].graph.name.text)
    path, line, _ = place_of(step.statement, source)
    name = f"{path.rpartition('/')[2]}:{line} ({step.op.name})" if line else step.op.name
    return f"{'at' if _inside else 'behind'} {name}"


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
    return is_shared(step.op, step.attrs) or (step.op.by_rank and step.attrs["over"].size > 1)


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
