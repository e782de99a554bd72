"""One block of a launch, as threads of Python, which debuggers can show and stop one by one. A
thread at a barrier sleeps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator.simulated_thread import (
    BlockThread,
    Three,
    Together,
    places,
)
from opstep.runtime.device.cuda.simulator.simulator import Adapt, Simulated, arguments


class Plainly:
    """How a kernel is entered; `Stopping` does it with a debugger."""

    def prepare(self, kernel: Callable[..., None]) -> None:
        """Before any thread calls it."""

    def __call__(self, kernel: Callable[..., None], args: tuple) -> None:
        kernel(*args)


class Enter(Protocol):
    """Like `Plainly`: for the thread that is looked at."""

    def prepare(self, kernel: Callable[..., None]) -> None: ...
    def __call__(self, kernel: Callable[..., None], args: tuple) -> None: ...


def run_block(
    launch: Prepared, memory: list, workspace: np.ndarray, block: Three, chosen: Three,
    enter: Enter, every: bool = False, folder: Path | None = None, adapt: Adapt = tuple,
) -> None:  # fmt: skip
    """Runs one block; `enter` calls the kernel in the thread that is wanted, and where `every`
    holds, debuggers see the other threads, too. `folder`: see `Simulated`. `adapt`: makes of the
    kernel's arguments what it gets.
    """
    from opstep.runtime.device.cuda.simulator.simulated_block import Cuda

    cuda = Cuda(launch)
    cuda.begin_block()
    kernel = Simulated(cuda, folder).callee(launch.kernel.function, launch.kernel.dtype)  # pyright: ignore[reportArgumentType]
    args = adapt(arguments(launch, memory, workspace))
    enter.prepare(kernel)
    barrier, plainly = Barrier(prod(launch.block)), Plainly()
    threads = []
    for index in places(launch.block):
        call = enter if index == chosen else plainly
        threads.append(SeenThread(barrier, launch, kernel, args, call, block, index))
        threads[-1].hidden = not every and index != chosen
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_unit(
    launch: Prepared, memory: list, workspace: np.ndarray, units: range,
    enter: Enter = Plainly(), folder: Path | None = None, adapt: Adapt = tuple,
) -> None:  # fmt: skip
    """Runs units of a CPU's launch."""
    kernel = Simulated(None, folder).callee(launch.kernel.function, launch.kernel.dtype)  # pyright: ignore[reportArgumentType]
    args = adapt(arguments(launch, memory, workspace))
    enter.prepare(kernel)
    enter(kernel, (*args, units.start, units.stop, *_lane(launch, 0)))


def _lane(launch: Prepared, lane: int) -> tuple[int, ...]:
    code = launch.kernel.function.__code__  # pyright: ignore[reportFunctionMemberAccess]
    return (lane,) if code.co_varnames[code.co_argcount - 1] == "lane" else ()


class Failed(Exception):
    """Another thread of the block has failed: nobody will come to the barrier."""


class Barrier(Together):
    """Where the threads of a block wait until all that are still running have come."""

    def __init__(self, count: int):
        super().__init__()
        self._changed = threading.Condition()
        self._alive = count
        self._waiting = 0
        self._round = 0
        self.failed = False

    def wait(self) -> None:
        with self._changed:
            mine = self._round
            self._waiting += 1
            self._pass_on()
            while self._round == mine and not self.failed:
                self._changed.wait()
            if self.failed:
                raise Failed

    def left(self, failed: bool) -> None:
        """A thread has ended."""
        with self._changed:
            self._alive -= 1
            self.failed = self.failed or failed
            self._pass_on()

    def _pass_on(self) -> None:
        if self.failed or self._waiting >= self._alive:
            self._waiting = 0
            self._round += 1
            self._changed.notify_all()


class SeenThread(threading.Thread, BlockThread):
    """One thread of a block, for debuggers to see."""

    def __init__(self, barrier: Barrier, launch: Prepared, kernel, args, call: Enter, block, index):
        super().__init__(daemon=True)
        self.put(launch, barrier, block, index)
        self.name = self.title
        self._barrier = barrier
        self._launch, self._kernel, self._args, self._call = launch, kernel, args, call
        self.hidden = False

    def start(self) -> None:
        if self.hidden:  # as debugpy calls threads that it neither traces nor shows
            self.pydev_do_not_trace = True
            self.is_pydev_daemon_thread = True
        super().start()

    def run(self) -> None:
        failed = True
        try:
            with np.errstate(all="ignore"):  # what floats do, they do on a GPU silently
                for args in self._turns():
                    self._call(self._kernel, args)
            failed = False
        except Failed:
            pass
        except Exception:
            print(f"{self.name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        finally:
            self._barrier.left(failed)

    def _turns(self) -> Iterator[tuple]:
        """What the kernel is called with; one of the CPU's once a unit that falls to the thread."""
        launch = self._launch
        if not launch.kernel.per_unit:
            yield self._args
            return
        size = launch.block[0]
        thread = self.blockIdx.x * size + self.threadIdx.x
        for unit in range(thread, launch.words[-1], launch.grid[0] * size):
            yield (*self._args, unit, unit + 1, *_lane(launch, thread))

    def syncthreads(self) -> None:
        self._barrier.wait()
