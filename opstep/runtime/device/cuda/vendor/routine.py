"""What a device runs of a library: planned once, then bound to addresses, then enqueued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Enqueue = Callable[[int], None]
"""Puts work onto the stream of that handle (a CUstream), and does not wait for it."""


class Routine(Protocol):
    """One call with everything chosen but addresses. Bound ones run on any stream of the GPU that
    was current when it was planned.
    """

    name: str  # of the algorithm, for people
    workspace: int  # bytes

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        """`pointers`: one for each of the operands and results that it was planned for."""
        ...
