"""Launches bound to addresses, handed to the driver by native code: one call for a whole stretch.

A row of a table is what `cuLaunchKernel` takes: function, grid, block, shared memory, and the
address of an array of pointers to the arguments. To hand over a row costs no Python. Rows that may
run beside each other are spread over streams where a graph is captured: one after the other each
would wait some microseconds for the end of the one before. Those that nothing waits for are on
streams of their own there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from opstep.runtime.device.builtin import launch_kernel, offset
from opstep.runtime.device.cpu import jit
from opstep.runtime.device.cpu.lowering import setters
from opstep.runtime.device.cpu.native import call
from opstep.runtime.device.cuda.driver.driver import driver, launcher
from opstep.runtime.device.cuda.driver.streams import Sides, capturing
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.ir.types import i64

ROW = 9  # words
_LAUNCH, _STREAM, _FAILED, _AT = range(4)  # words of the state


def launch_rows(table, state, lo, hi):
    """Launches rows lo..hi on a stream; stops at the first that fails."""
    for row in range(lo, hi):
        code = launch_kernel(state[_LAUNCH], offset(table, row * ROW), state[_STREAM])
        if code != 0:
            state[_FAILED] = code
            state[_AT] = row
            break


@cache
def _entry() -> int:
    return jit.address(launch_rows, ("*i64", "*i64"), i64)


class BoundGrid:
    """A launch with addresses: its arguments stand in memory of the host, ready to be copied by the
    driver. `beside`: it may run beside the one before it, and beside those that this may. `stamp`:
    it comes behind the one before it and behind the stamp before; with `aside` nothing has to wait
    for it.
    """

    __slots__ = ("_pointers", "_prepared", "_words", "aside", "beside", "name", "row", "stamp")

    def __init__(
        self, prepared: Prepared, function: int, constants: dict[int, int],
        addresses: Sequence[int], workspace: int,
    ):  # fmt: skip
        words = np.array(prepared.words or (0,), np.int64)
        for word, slot in prepared.slots:
            words[word] = addresses[slot]
        for word, start in prepared.workspace:
            words[word] = workspace + start
        for word, address in constants.items():
            words[word] = address
        self._prepared = prepared
        self._words = words
        self._pointers = words.ctypes.data + 8 * np.arange(len(words), dtype=np.int64)
        self.name = prepared.kernel.function.__name__
        self.beside = self.stamp = self.aside = False
        grid, block = prepared.grid, prepared.block
        self.row = (function, *grid, *block, prepared.shared, self._pointers.ctypes.data)

    def pointers(self, slot: int) -> list[Callable[[int], None]]:
        """The driver copies the words when a kernel is launched, so they may change behind it."""
        return setters(self._words, self._prepared.slots, slot)


class Launches:
    """Work for a stream: rows that follow each other."""

    def __init__(self, bound: Sequence[BoundGrid]):
        self.bound = bound
        self._table = np.array([b.row for b in bound], np.int64).reshape(len(bound), ROW)
        self._state = np.array([launcher(), 0, 0, 0], np.int64)
        self._args = np.array([self._table.ctypes.data, self._state.ctypes.data], np.int64)
        self._words = self._args.ctypes.data
        self._count = len(bound)
        self._entry = _entry()
        self._groups = _groups(bound)

    def __call__(self, stream: int) -> None:
        sides, done = capturing.sides, 0
        if sides is not None:
            for lo, hi in self._groups:
                self._launch(stream, done, lo)
                if not self.bound[lo].stamp:
                    self._spread(sides, stream, lo, hi)
                elif self.bound[lo].aside:
                    self._launch(sides.behind(stream), lo, hi)
                else:
                    sides.catch_up(stream)
                    self._launch(stream, lo, hi)
                done = hi
        self._launch(stream, done, self._count)

    def _spread(self, sides: Sides, stream: int, lo: int, hi: int) -> None:
        sides.fork(stream)
        for row in range(lo, hi):
            self._launch(sides.streams[row % len(sides.streams)].handle, row, row + 1)
        sides.join(stream)

    def _launch(self, stream: int, lo: int, hi: int) -> None:
        state = self._state
        state[_STREAM] = stream
        call(self._entry, self._words, lo, hi)
        if state[_FAILED]:
            code, name = int(state[_FAILED]), self.bound[int(state[_AT])].name
            state[_FAILED] = 0
            raise driver().error(f"the launch of {name}", code)


def _groups(bound: Sequence[BoundGrid]) -> list[tuple[int, int]]:
    """Rows that may run beside each other, and stamps: from, to."""
    firsts = [k for k, b in enumerate(bound) if not b.beside] or [0]
    ends = [*firsts[1:], len(bound)]
    pairs = zip(firsts, ends, strict=True)
    return [(lo, hi) for lo, hi in pairs if hi - lo > 1 or any(b.stamp for b in bound[lo:hi])]


def work_of(bound: Sequence[Any]) -> Callable[[int], None]:
    """Launches in order as one piece of work: rows of one table where they are kernels of ours, and
    what other libraries run (anything that is called with a stream) between them.
    """
    parts: list[Callable[[int], None]] = []
    rows: list[BoundGrid] = []
    for b in bound:
        if isinstance(b, BoundGrid):
            rows.append(b)
            continue
        if rows:
            parts.append(Launches(rows))
            rows = []
        parts.append(b)
    if rows:
        parts.append(Launches(rows))
    return parts[0] if len(parts) == 1 else Parts(bound, parts)


class Parts:
    """Work for a stream: launches of ours and of other libraries."""

    def __init__(self, bound: Sequence[Any], parts: Sequence[Callable[[int], None]]):
        self.bound = bound
        self._parts = parts

    def __call__(self, stream: int) -> None:
        for part in self._parts:
            part(stream)
