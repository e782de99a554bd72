"""One block of a launch, as Python threads that wait for each other at barriers.

numba's simulator has the parts (`cuda.threadIdx`, shared memory, …); its own loop over a block asks
each thread again and again how far it is, which keeps a core busy for as long as someone looks at
one of them. Here a thread at a barrier sleeps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from opstep.runtime.debugger.kernel.launches import Three
from opstep.runtime.device import source
from opstep.runtime.device.cuda.compiler import CUDA
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.names import Deferred
from opstep.runtime.device.cuda.simulator import SIMULATOR, arguments
from opstep.runtime.device.texts import text_of
from opstep.runtime.ir.types import DType


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


Adapt = Callable[[tuple], tuple]


class Inside:
    """A target: plain functions, in which `cuda` is that of the block that runs. Texts of kernels
    that were written by code are put into `folder`, where debuggers find them.
    """

    body = CUDA.body

    def __init__(self, cuda: Any, folder: Path | None = None):
        self.cuda = cuda
        self.folder = folder
        self._callees: dict[tuple[FunctionType, str], FunctionType] = {}

    def callee(self, function: FunctionType, dtype: DType) -> FunctionType:
        dtype = source.dtype_within(function, dtype)
        key = (function, dtype.name)
        if key not in self._callees:
            made = source.specialise(function, dtype, self)
            text = text_of(function.__code__)
            if text is not None and self.folder is not None:
                path = self.folder / f"{function.__name__}.py"
                path.write_text(text, encoding="utf-8")
                made.__code__ = made.__code__.replace(co_filename=str(path))
            self._callees[key] = made
        return self._callees[key]

    def value(self, value: Any, dtype: DType) -> Any:
        if isinstance(value, Deferred) and value.module == "numba.cuda":
            return self.cuda
        return SIMULATOR.value(value, dtype)


def run_block(
    launch: Prepared, memory: list, workspace: np.ndarray, block: Three, wanted: Three,
    enter: Enter, every: bool = False, folder: Path | None = None, seen: Adapt = tuple,
) -> None:  # fmt: skip
    """Runs one block; `enter` calls the kernel in the thread that is wanted, and where `every`
    holds, debuggers see the other threads, too. `folder`: see `Inside`. `seen`: makes of the
    kernel's arguments what it gets.
    """
    from numba.cuda.simulator.kernelapi import FakeCUDAModule

    module = FakeCUDAModule(launch.grid, launch.block, launch.shared)
    kernel = Inside(module, folder).callee(launch.kernel.function, launch.kernel.dtype)  # pyright: ignore[reportArgumentType]
    args = seen(arguments(launch, memory, workspace))
    enter.prepare(kernel)
    barrier, plainly = Barrier(launch.block), Plainly()
    threads = []
    for z, y, x in product(*map(range, reversed(launch.block))):
        place = (x, y, z)
        call = enter if place == wanted else plainly
        threads.append(BlockThread(barrier, launch, kernel, args, call, block, place))
        threads[-1].hidden = not every and place != wanted
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_unit(
    launch: Prepared, memory: list, workspace: np.ndarray, units: range,
    enter: Enter = Plainly(), folder: Path | None = None, seen: Adapt = tuple,
) -> None:  # fmt: skip
    """Runs units of a CPU's launch."""
    kernel = Inside(None, folder).callee(launch.kernel.function, launch.kernel.dtype)  # pyright: ignore[reportArgumentType]
    args = seen(arguments(launch, memory, workspace))
    enter.prepare(kernel)
    enter(kernel, (*args, units.start, units.stop, *_lane(launch, 0)))


def _lane(launch: Prepared, lane: int) -> tuple[int, ...]:
    code = launch.kernel.function.__code__  # pyright: ignore[reportFunctionMemberAccess]
    return (lane,) if code.co_varnames[code.co_argcount - 1] == "lane" else ()


class Failed(Exception):
    """Another thread of the block has failed: nobody will come to the barrier."""


class Barrier:
    """Where the threads of a block wait until all that are still running have come."""

    def __init__(self, block: Three):
        self._block_dim = block  # as numba's and the intrinsics' code calls it
        self.given: dict[Three, Any] = {}
        self._changed = threading.Condition()
        self._alive = block[0] * block[1] * block[2]
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


class BlockThread(threading.Thread):
    """One thread of a block, with the attributes that numba's simulated `cuda` asks it for."""

    def __init__(self, barrier: Barrier, launch: Prepared, kernel, args, call: Enter, block, place):
        named = f"block {_written(block)}, thread {_written(place)}"
        super().__init__(name=named, daemon=True)
        from numba.cuda.simulator.kernelapi import Dim3

        x, y, _ = launch.block
        self._manager = barrier
        self._launch, self._kernel, self._args, self._call = launch, kernel, args, call
        self.blockIdx = Dim3(*block)
        self.threadIdx = Dim3(*place)
        self.thread_id = place[0] + x * (place[1] + y * place[2])
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
            self._manager.left(failed)

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

    # --- what kernels call through `cuda` ---

    def syncthreads(self) -> None:
        self._manager.wait()

    def _together(self, value: Any) -> list[Any]:
        """What all threads gave."""
        given = self._manager.given
        given[tuple(self.threadIdx)] = value
        self.syncthreads()
        found = list(given.values())
        self.syncthreads()
        return found

    def syncthreads_count(self, value: Any) -> int:
        return sum(map(bool, self._together(value)))

    def syncthreads_and(self, value: Any) -> int:
        return int(all(self._together(value)))

    def syncthreads_or(self, value: Any) -> int:
        return int(any(self._together(value)))


def _written(three: Three) -> str:
    return f"({three[0]},{three[1]},{three[2]})"
