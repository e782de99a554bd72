"""What the child does with a job: the launches before the wanted one, then the wanted block.

To find the thread that writes an element, blocks run on copies of results until one does. debugpy
stops at an ordinary breakpoint with a condition, set as a client would set it: to ask for a stop as
soon as possible would stop in whatever Python runs next, the debugger's own helpers included.
"""

from __future__ import annotations

import dis
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, zip_longest
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.debugger.kernel.block import run_block, run_unit
from opstep.runtime.debugger.kernel.job import Order
from opstep.runtime.debugger.kernel.launches import kernel_launches, lowered
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.cuda.simulator.simulated import this_thread
from opstep.runtime.device.cuda.simulator.simulated_thread import Three
from opstep.runtime.device.cuda.simulator.simulator import Pointer
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import TensorType

PATIENCE = 60.0  # seconds


class NotFound(Exception):
    """No thread that was tried writes the element."""


class Noticing(Pointer):
    """A pointer that calls `notice` before one element of its array is written."""

    __slots__ = ("notice", "watched")

    def __init__(self, pointer: Pointer, watched: int, notice: Callable[[], None]):
        super().__init__(pointer.array, pointer.seen, pointer.start)
        self.watched = watched
        self.notice = notice

    def __setitem__(self, index: int, value: Any) -> None:
        if self._index(index) == self.watched:
            self.notice()
        super().__setitem__(index, value)

    def store(self, index: int, values: tuple, count: int) -> None:
        if 0 <= self.watched - self.vector_place(index, count) < count:
            self.notice()
        super().store(index, values, count)

    def moved(self, count: int) -> Pointer:
        return Noticing(super().moved(count), self.watched, self.notice)

    def as_stored(self) -> Pointer:
        return Noticing(super().as_stored(), self.watched, self.notice)


def writer_of(
    target: str, launch: Prepared, memory: list, workspace: np.ndarray, slot: int, offset: int,
    operands: int,
) -> tuple[Three, Three, int]:  # fmt: skip
    """Block and thread (or, of a kernel of the CPU, the unit) that write the byte at `offset` of a
    result; the memory of `operands` comes before that of results. The place in the range that
    corresponds to it is tried first, then what lies next to it. Raises `NotFound`.
    """
    until = time.monotonic() + PATIENCE
    count = launch.words[-1] if target == "cpu" else prod(launch.grid)
    who: Callable[[], Three] = (lambda: (0, 0, 0)) if target == "cpu" else _this_thread
    tried = 0
    for number in _outwards(offset * count // max(len(memory[slot]), 1), count):
        noticed: list[Three] = []
        copies = [*memory[:operands], *(m.copy() for m in memory[operands:])]
        arguments = (launch, copies, workspace.copy())

        def noticing(args: tuple, found=noticed, array=copies[slot]) -> tuple:
            return tuple(_noticing(a, array, offset, lambda: found.append(who())) for a in args)

        if target == "cpu":
            run_unit(*arguments, range(number, number + 1), adapt=noticing)
        else:
            simulator.run(*arguments, [_block(number, launch.grid)], noticing)
        tried += 1
        if noticed and target == "cpu":
            return (0, 0, 0), noticed[-1], number
        if noticed:
            return _block(number, launch.grid), noticed[-1], 0
        if time.monotonic() > until:
            break
    what = "units" if target == "cpu" else "blocks"
    raise NotFound(f"none of the {tried:,} {what} that were tried writes it")


def _this_thread() -> Three:
    x, y, z = this_thread().threadIdx
    return x, y, z


def _noticing(argument: Any, array: Any, offset: int, notice: Callable[[], None]) -> Any:
    if not isinstance(argument, Pointer) or not np.shares_memory(argument.array, array):
        return argument
    return Noticing(argument, offset // argument.array.itemsize, notice)


def _outwards(first: int, count: int) -> Iterator[int]:
    """All numbers below `count`, those near to the first one first."""
    first = min(first, count - 1)
    sides = zip_longest(range(first, count), range(first - 1, -1, -1))
    return (number for number in chain.from_iterable(sides) if number is not None)


def _block(number: int, grid: Three) -> Three:
    x, rest = number % grid[0], number // grid[0]
    return x, rest % grid[1], rest // grid[1]


NUMBER = 1 << 30  # of the breakpoint; clients' are numbered from 1 on

_stopping_thread: list[int] = []  # the thread that is to stop


def reached() -> bool:
    """The breakpoint's condition: true once, in the thread that is wanted."""
    if _stopping_thread != [threading.get_ident()]:
        return False
    _stopping_thread.clear()
    return True


class Stopping:
    """Calls a kernel so that debugpy stops at its first line; a client must be there. Breakpoints
    that it sets in the same file later take the place of this one, when it has done its work.
    """

    def __init__(self) -> None:
        self._stopped = False

    def prepare(self, kernel: Callable[..., None]) -> None:
        """Sets the breakpoint."""
        # debugpy carries them
        import pydevd  # pyright: ignore[reportMissingImports]
        from _pydevd_bundle.pydevd_api import PyDevdAPI  # pyright: ignore[reportMissingImports]

        code: Any = kernel.__code__  # pyright: ignore[reportFunctionMemberAccess]
        condition = f"__import__('sys').modules[{__name__!r}].reached()"
        PyDevdAPI().add_breakpoint(
            pydevd.get_global_debugger(), code.co_filename, "python-line", NUMBER,
            first_line(code), condition, "None", None, "ALL", None, False,
        )  # fmt: skip

    def __call__(self, kernel: Callable[..., None], args: tuple) -> None:
        if not self._stopped:
            self._stopped = True
            _stopping_thread[:] = [threading.get_ident()]
        kernel(*args)


def first_line(code: Any) -> int:
    """Of a function's body; that of ``def`` where they are one."""
    lines = (line for _, line in dis.findlinestarts(code) if line and line > code.co_firstlineno)
    return next(lines, code.co_firstlineno)


SHOWN = 4  # elements of a result that are told


class Work:
    """`prepare`, then `run` with a debugger of Python attached."""

    def __init__(self, path: Path):
        self.order = Order(path)
        self.folder = path.parent

    def prepare(self) -> None:
        """Memory as it is before the wanted launch; what came before it has run."""
        order = self.order
        self.launches, size = lowered(order.step, order.types, order.target, order.arch)
        self.memory = [None if m is None else m.copy() for m in order.memory]
        self.memory += [_filled(t) for t in order.results]
        self.workspace = np.full(size + 8, 0xFF, np.uint8)
        for launch in self.launches[: order.number]:
            if order.target == "cpu":
                units = range(launch.words[-1])
                run_unit(launch, self.memory, self.workspace, units)
            else:
                simulator.run(launch, self.memory, self.workspace)

        if order.element is not None:
            self._find(*order.element)

    def _find(self, result: int, index: int) -> None:
        """Makes the thread that writes an element the wanted one. Raises `NotFound`."""
        order, launch = self.order, self.launch
        t = order.results[result]
        at = len(order.memory) + result
        arguments = (order.target, launch, self.memory, self.workspace)
        found = writer_of(*arguments, at, index * t.dtype.itemsize, len(order.memory))
        order.block, order.thread, order.unit = found
        launches = kernel_launches(order.step, order.types, order.target, order.arch)
        order.label = launches[order.number].label(*found)

    @property
    def launch(self) -> Prepared:
        return self.launches[self.order.number]

    def run(self) -> None:
        """The wanted block; it stops at the kernel's first line in the wanted thread."""
        order, arguments = self.order, (self.launch, self.memory, self.workspace)
        print(f"{order.label}: runs as Python. Its end tells what it wrote.", flush=True)
        if order.target == "cpu":
            units = range(order.unit, order.unit + 1)
            of_its_own = partial(run_unit, *arguments, units, Stopping(), self.folder)
            thread = threading.Thread(target=of_its_own, name=f"work item {order.unit}")
            thread.start()
            thread.join()
        else:
            run_block(*arguments, order.block, order.thread, Stopping(), order.every, self.folder)
        print(f"{order.label}: done. {self._written_text()}", flush=True)

    def _written_text(self) -> str:
        """Which elements of the results the block wrote."""
        texts = []
        results: Any = self.memory[len(self.order.memory) :]  # they are never absent
        for k, (t, found) in enumerate(zip(self.order.results, results, strict=True)):
            mark = payload(t.dtype)
            places = np.flatnonzero(found.view(mark.dtype) != mark)
            values = found.view(t.dtype.numpy)[places[:SHOWN]]
            shown = ", ".join(f"[{i}] = {v}" for i, v in zip(places, values, strict=False))
            more = ", …" if len(places) > SHOWN else ""
            texts.append(
                f"Result {k}: {len(places):,} of {t.size:,} elements written {shown}{more}"
            )
        return "; ".join(texts)


def _filled(t: TensorType) -> np.ndarray:
    """The bytes of a result as debug memory has them before they are written."""
    size: Any = t.size  # concrete here
    return np.full(size, payload(t.dtype)).view(np.uint8)
