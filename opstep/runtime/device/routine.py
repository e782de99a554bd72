"""Routines of other libraries: planned once, then bound to addresses, then enqueued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from opstep.runtime.ir.diagnostics import OpstepError

Enqueue = Callable[[int], None]
"""Puts work onto the stream of that handle (a CUstream), and does not wait for it. On the CPU,
where the handle is 0, it does the work.
"""


class Routine(Protocol):
    """One call with everything chosen but addresses. Bound ones run on any stream of the GPU that
    was current when it was planned.
    """

    name: str  # of the algorithm, for people
    workspace: int  # bytes

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        """`pointers`: one for each of the operands and results that it was planned for, and of
        the pieces of working memory that it shares with other launches of the op.
        """
        ...


class Shared(NamedTuple):
    """A piece of the op's working memory, by where it begins."""

    start: int


class PreparedCall(NamedTuple):
    """A routine of a library without addresses."""

    routine: Routine
    slots: tuple[int | Shared, ...]  # operands and results, in its order
    workspace: int  # where its own begins in the op's

    def bound(self, addresses: Sequence[int], workspace: int) -> BoundCall:
        return BoundCall(self, addresses, workspace)


class BoundCall:
    """A routine with addresses, to be called with a stream; it is bound again after they change.
    `located` says of an error which statement it belongs to; `entered` is told of each call, with
    its stream.
    """

    __slots__ = ("_addresses", "_enqueue", "_prepared", "_workspace", "entered", "located")

    def __init__(self, prepared: PreparedCall, addresses: Sequence[int], workspace: int):
        self._prepared = prepared
        self._addresses = [
            workspace + s.start if isinstance(s, Shared) else addresses[s] for s in prepared.slots
        ]
        self._workspace = workspace + prepared.workspace
        self.located: Callable[[OpstepError], OpstepError] | None = None
        self.entered: Callable[[int], None] | None = None
        self._enqueue: Enqueue | None = self._bind()

    def __call__(self, stream: int) -> None:
        if self._enqueue is None:
            self._enqueue = self._bind()
        if self.entered is not None:
            self.entered(stream)
        try:
            self._enqueue(stream)
        except OpstepError as error:
            if self.located is None:
                raise
            raise self.located(error) from None

    def _bind(self) -> Enqueue:
        return self._prepared.routine.bind(self._addresses, self._workspace)

    def pointers(self, slot: int) -> list[Callable[[int], None]]:
        return [partial(self._move, k) for k, s in enumerate(self._prepared.slots) if s == slot]

    def _move(self, k: int, address: int) -> None:
        self._addresses[k], self._enqueue = address, None
