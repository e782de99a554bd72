"""When ops ran: a kernel of one thread reads the GPU's clock behind each of them.

In a captured graph the next op need not wait for it: that takes 0.2 us, where on the same stream it
takes 0.7. But it is late where the next kernel has taken all multiprocessors; so that one does wait
unless there is room beside it. What is read is copied with the statistics.
Profiling libraries tell of each kernel by itself, but slow all launches of the process by more than
that, and their reports take the host longer than a small network's step takes the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.cuda.compiling.names import global_time
from opstep.runtime.device.cuda.driver.graphs import captured
from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.recording.gathering import step_of
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.protocols import Device
from opstep.runtime.ir.op import Traits
from opstep.runtime.ir.types import TensorType, i64
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.recording import FILL

NO_ROW = -1  # of statistics, which no row tells of; steps without them leave them out
FLAGS = -2  # of what looks for NaNs at the end, in every step
STAMP = TensorType(i64, (1,))
CLOCKS_HOLD = 1_000_000_000  # ns after which the clocks are compared again
READINGS = 7  # of both clocks, of which the closest two are believed
LONGEST = 1_000_000  # ns that they may take
DRIFT = 50_000  # ns in which clocks drift apart by one at most: an H200's by 9 in a million
CHAIN = 64  # stamps behind each other, whose distance is measured


class stamp(PlanOp):
    """The GPU's time, in ns."""

    name = "stamp"
    operands = ()
    attrs = ()
    results = ("at",)
    traits = Traits(moves=True)

    def cuda(at: Arg) -> Grid:  # pyright: ignore
        return Grid(read_clock, at, grid=1, block=1)


def read_clock(at):
    at[0] = global_time()


def launches(device: Device) -> list[Any]:
    """Launches, to be bound to the address that the time is written to."""
    return device.prepare(*step_of(stamp, [], [STAMP]))[0]


class Marks:
    """The stamps of a stream, in steps of one kind: which of them are before and behind each row,
    and each fill. `address`: of the first.
    """

    def __init__(self, device: Any, address: int):
        self.count = 0
        self.rows: list[tuple[int, int]] = []
        self.fills: list[Move] = []
        self.followed: list[tuple[Any, Any]] = []  # stamps, and what is launched behind each
        self._device = device
        self._address = address

    def around(self, launches: Sequence[tuple[int, Any]]) -> list[Any]:
        """What is launched at once, by rows, with its stamps. Where nothing is between two rows one
        stamp ends the first and begins the second.
        """
        made: list[Any] = []
        last = -1  # the stamp that was launched last; -1: something else
        for row, group in groupby(launches, key=itemgetter(0)):
            bound = [launch for _, launch in group]
            if row < 0:
                made += bound
                last = -1
                continue
            first = last if last >= 0 else self._next(made)
            made += bound
            last = self._next(made)
            self.rows.append((first, last))
        for before, launch in pairwise(made):
            if isinstance(before, BoundGrid) and before.stamp:
                self.followed.append((before, launch))
        return made

    def around_fill(self, fill: Any, nbytes: int) -> list[Any]:
        made: list[Any] = []
        first = self._next(made)
        made.append(fill)
        self.fills.append(Move(first, self._next(made), nbytes, FILL))
        return made

    def _next(self, made: list[Any]) -> int:
        made += self._device.stamp(self._address + 8 * self.count)
        self.count += 1
        return self.count - 1


class Move(NamedTuple):
    """A copy or a fill of so many bytes, between two stamps."""

    first: int
    last: int
    nbytes: int
    kind: int


class Clock:
    """A GPU's clock, beside CLOCK_MONOTONIC. `device`: the `CudaDevice`."""

    def __init__(self, device: Any):
        self._device = device
        self._now = device.staging.pinned(1)
        self._read = work_of(device.stamp(self._now.ctypes.data))
        self._gap = self._measured_gap()
        self._offset = 0
        self._compared = 0  # when
        self._believed = 0  # when the offset was found
        self._rate = 0.0  # by which it grew before that: clocks drift apart evenly
        self._closest = 0  # ns between the host's times around the best reading so far
        self._lock = threading.Lock()
        self.compare()

    def compare(self) -> None:
        """Asks both clocks, unless that was done lately. Takes some 0.1 ms where the GPU is idle;
        where it is not, what was found before is believed until the clocks may have drifted apart
        by as much as the new readings are in doubt.
        """
        with self._lock:
            began = monotonic_ns()
            if self._compared and began - self._compared < CLOCKS_HOLD:
                return
            took, offset = self._reading()
            for _ in range(READINGS - 1):
                if monotonic_ns() - began > LONGEST:
                    break
                took, offset = min((took, offset), self._reading())
            self._compared = monotonic_ns()
            since = began - self._believed
            if not self._believed:
                self._offset, self._believed, self._closest = offset, began, took
            elif took < 2 * self._closest + since // DRIFT:
                grown = (offset - self._offset) / since
                self._rate = max(-1 / DRIFT, min(grown, 1 / DRIFT))
                self._offset, self._believed = offset, began
                self._closest = min(took, self._closest)

    def _reading(self) -> tuple[int, int]:
        """How long it took, and what the GPU's clock was ahead of the host's."""
        before = monotonic_ns()
        self._device.now(self._read)
        after = monotonic_ns()
        return after - before, int(self._now[0]) - (before + after) // 2

    def _measured_gap(self) -> int:
        """ns from one stamp to the next in a graph: what it takes to go from kernel to kernel."""
        memory = self._device.alloc(8 * CHAIN, "stamps")
        bound = [b for k in range(CHAIN) for b in self._device.stamp(memory.address + 8 * k)]
        with captured(self._device.gpu, work_of(bound), self._device.stream()) as replay:
            self._device.now(replay)
        times = self._device.read(memory, 0, TensorType(i64, (CHAIN,)))
        return int(times[-1] - times[0]) // (CHAIN - 1)  # a clock may tick once in a microsecond

    def spans(self, stamps: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """i64[n, 2], when what is between two stamps each (`ends`, likewise) began and ended, ns of
        CLOCK_MONOTONIC. It began a gap behind what stood before it; a kernel that is shorter than
        that hides a part of it.
        """
        found = stamps[ends] - self._offset
        found -= ((found - self._believed) * self._rate).astype(np.int64)
        found[:, 0] += np.minimum(self._gap, (found[:, 1] - found[:, 0]) // 2)
        return found
