"""A block of simulated threads: what kernels find in `cuda` there, and threads that take turns.

numba's simulator has most of the parts. Its own loop starts a thread of Python for each of CUDA's
and asks all of them again and again how far they are; here they are greenlets, each of which runs
until its next barrier, which is some thirty times faster and gives the same in every run.
"""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false
# numba: its properties are class attributes to a checker
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet
from numba.cuda.simulator.kernelapi import FakeCUDAModule

from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator.simulated_thread import (
    BlockThread,
    Three,
    Together,
    places,
)

JUNK = 0xFF  # bytes of memory that nobody has written: floats are NaN, integers -1


class Turn(greenlet, BlockThread):
    """A thread that runs until its next barrier, or its end, whenever it is switched to."""

    def syncthreads(self) -> None:
        parent: Any = self.parent
        parent.switch()


def current() -> Any:
    """The `BlockThread` that runs. Under a debugger they are threads of Python."""
    running = getcurrent()
    return running if isinstance(running, Turn) else threading.current_thread()


class Cuda(FakeCUDAModule):
    """`cuda`, as kernels name it, within a launch. Memory that they ask for holds junk at first."""

    def __init__(self, launch: Prepared):
        super().__init__(launch.grid, launch.block, launch.shared)
        self._nbytes = launch.shared
        self._local = _Local()

    def begin_block(self) -> None:
        """Shared memory is a block's own: before each one."""
        self._shared = _Shared(self._nbytes)

    threadIdx = property(lambda self: current().threadIdx)  # noqa: N815 - CUDA's names
    blockIdx = property(lambda self: current().blockIdx)  # noqa: N815
    laneid = property(lambda self: current().thread_id % 32)

    def syncthreads(self) -> None:
        current().syncthreads()

    def syncwarp(self) -> None:
        """As for shuffles, the whole block comes to it."""
        current().syncthreads()

    def syncthreads_count(self, value: Any) -> int:
        return sum(map(bool, current().exchanged(value).values()))

    def syncthreads_and(self, value: Any) -> int:
        return int(all(current().exchanged(value).values()))

    def syncthreads_or(self, value: Any) -> int:
        return int(any(current().exchanged(value).values()))


class _Local:
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        return _junk(shape, dtype)


class _Shared:
    """Arrays by the place in the code that asks for them."""

    def __init__(self, nbytes: int):
        self._dynamic = np.full(nbytes, JUNK, np.uint8)
        self._static: dict[Any, np.ndarray] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        if shape == 0:
            size = np.dtype(dtype).itemsize
            return self._dynamic[: len(self._dynamic) // size * size].view(np.dtype(dtype))
        asked = sys._getframe(1)
        key = (id(asked.f_globals), asked.f_lasti)  # each function has globals of its own here
        found = self._static.get(key)
        return self._static.setdefault(key, _junk(shape, dtype)) if found is None else found


def _junk(shape: Any, dtype: Any) -> np.ndarray:
    made = np.empty(shape, np.dtype(dtype))
    made.reshape(-1).view(np.uint8).fill(JUNK)
    return made


def take_turns(
    launch: Prepared, kernel: Callable[..., None], args: tuple, block: Three, order: Random
) -> None:
    """Runs one block. Between two barriers the threads run one after the other, as `order` shuffles
    them each time, so a barrier that is missing shows, if there is no exchange in its place. What a
    thread raises is told where.
    """
    together, running = Together(), []
    with np.errstate(all="ignore"):  # what floats do, they do on a GPU silently
        context = copy_context()
        for place in places(launch.block):
            running.append(Turn(partial(kernel, *args)))
            running[-1].gr_context = context
            running[-1].put(launch, together, block, place)
        while running:
            order.shuffle(running)
            for turn in running:
                try:
                    turn.switch()
                except Exception as error:
                    error.add_note(f"in {turn.title}")
                    raise
            running = [turn for turn in running if not turn.dead]
