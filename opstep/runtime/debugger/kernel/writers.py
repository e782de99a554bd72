"""Which thread of a launch writes an element: blocks run, on copies of results, until one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.debugger.kernel.block import run_unit
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.cuda.simulator.simulated import this_thread
from opstep.runtime.device.cuda.simulator.simulated_thread import Three
from opstep.runtime.device.cuda.simulator.simulator import Pointer

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
