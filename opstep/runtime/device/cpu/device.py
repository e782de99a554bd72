"""The CPU: streams are worker threads, kernels are compiled by numba and run without the GIL."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.builtin import monotonic_ns
from opstep.runtime.device.cpu import ahead, host_statistics, jit, native
from opstep.runtime.device.cpu.following import ALONE, clamped, rows_of
from opstep.runtime.device.cpu.lowering import Bound, Lowering, Prepared
from opstep.runtime.device.cpu.memory import CpuMemory, want_memory
from opstep.runtime.device.cpu.streams import CpuEvent, CpuStream
from opstep.runtime.device.payload import payload
from opstep.runtime.device.protocols import Bytes, Device, Recorder, Types
from opstep.runtime.device.routine import BoundCall, PreparedCall
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.plan.plan import Step
from opstep.runtime.statistics import WORDS, Statistics, decode, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cpu.tape import CpuTape


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuDevice(Device):
    """`lanes`: threads that share one launch's range; by default all cores that this process may
    use.
    """

    name = "cpu"
    in_host_memory = True
    alignment = 1
    pace = 8

    def __init__(self, lanes: int | None = None):
        self.lanes = native.most_lanes(lanes or usable_cores())
        self._prepared: dict[tuple, tuple[list[Prepared | PreparedCall], int]] = {}

    # --- memory ---

    def alloc(self, nbytes: Bytes, what: str = "") -> CpuMemory:
        return CpuMemory(nbytes, what)

    def want(self, nbytes: Bytes, what: Callable[[], str]) -> None:
        want_memory(nbytes, what)

    def view(self, memory: CpuMemory, offset: int, t: TensorType) -> np.ndarray:
        """The bytes at `offset` as an array of that type; no copy."""
        shape: Any = t.shape  # concrete here
        nbytes = t.nbytes
        return memory.bytes[offset : offset + nbytes].view(t.dtype.numpy).reshape(shape)

    read = view

    def write(self, memory: CpuMemory, offset: int, t: TensorType, array: Any) -> None:
        self.view(memory, offset, t)[...] = array

    def fill(self, memory: CpuMemory, offset: int, nbytes: Bytes, dtype: DType):
        array = memory.bytes[offset : offset + nbytes].view(payload(dtype).dtype)
        pattern = payload(dtype)
        return lambda: array.fill(pattern)

    def words(self, count: int) -> np.ndarray:
        return np.zeros(count, np.int64)

    def seek_payload(
        self, memory: CpuMemory, offset: int, t: TensorType, words: np.ndarray
    ) -> Callable[[], Any]:
        pattern = payload(t.dtype)

        def look() -> None:
            words[0] = 1
            words[1] = (self.view(memory, offset, t).view(pattern.dtype) == pattern).any()

        return look

    def copy(self, source: int, target: int, nbytes: Bytes) -> Callable[[], Any]:
        return lambda: ctypes.memmove(target, source, nbytes)

    def stream(self) -> CpuStream:
        return CpuStream()

    def event(self) -> CpuEvent:
        return CpuEvent()

    # --- launches ---

    def prepare(self, step: Step, types: Types) -> tuple[list[Prepared | PreparedCall], int]:
        # as text, for numbers that are equal and yet not the same: 0.0 and -0.0
        attrs = repr(list(step.attrs.values())) if step.attrs else ""
        key = (step.op, types, step.operand_types, attrs)
        found = self._prepared.get(key)
        if found is None:
            # before tables are made that are as large as the tensors
            want_memory(max([t.nbytes for t in types if t], default=0))  # pyright: ignore
            found = self._prepared[key] = Lowering(step, types, self.lanes).prepared()
        return found

    def fills(self, launches: list[Any]) -> bool:
        if self.lanes == 1:
            return False
        prepared = [p for p in launches if isinstance(p, Prepared)]
        return any(native.lanes_of(p.units, p.grain, self.lanes) == self.lanes for p in prepared)

    def compile_ahead(self, launches: Iterable[Any]) -> None:
        kernels = [p.kernel for p in launches if isinstance(p, Prepared)]
        ahead.compile_ahead([native.RUN_TABLE, *kernels] if kernels else [])

    def uncompiled(self, launches: Iterable[Any]) -> int:
        prepared = [p for p in launches if isinstance(p, Prepared)]
        kernels = {p.kernel for p in prepared}
        if prepared:
            kernels.add(native.RUN_TABLE)
        if self.lanes > 1 and any(p.units > p.grain for p in prepared):
            kernels.add(native.HELP)
        return sum(not k.is_compiled() for k in kernels)

    def bind(self, launches: list[Any], addresses: list[int], workspace: int) -> list[Any]:
        return [p.bound(addresses, workspace) for p in launches]

    def pointers(self, bound: list[Any], slot: int) -> list[Callable[[int], None]]:
        return [setter for b in bound for setter in b.pointers(slot)]

    def stamp(self, address: int) -> Bound:
        """A launch that writes the time, in ns of CLOCK_MONOTONIC, as an i64."""
        return Bound(_stamp(), [address], 0)

    def delay(self, seconds: float) -> Callable[[], None]:
        return lambda: time.sleep(seconds)

    def tape(self, binding: Binding, recorder: Recorder) -> CpuTape:
        from opstep.runtime.device.cpu.tape import CpuTape

        return CpuTape(self, binding, recorder)

    def capture(self, bound: list[Any]) -> Callable[[], None]:
        """Launches as one native call; what other libraries run is called between several."""
        calls = [k for k, b in enumerate(bound) if isinstance(b, BoundCall)]
        if not calls:
            return native.LaunchTable(_rows(bound), self.lanes, keep=bound)
        pieces: list[Callable[[], None]] = []
        for first, k in zip([0, *(k + 1 for k in calls)], [*calls, len(bound)], strict=True):
            if rows := bound[first:k]:
                pieces.append(self.capture(rows))
            if k < len(bound):
                pieces.append(partial(bound[k], 0))
        return partial(self.work_now, pieces)

    def run_now(self, bound: list[Any]) -> None:
        self.capture(bound)()

    def work_now(self, work: list[Callable[[], Any]]) -> None:
        for piece in work:
            piece()


def _rows(bound: list[Bound]) -> list[list[int]]:
    """The rows of a table of these launches."""
    if any(b.prepared.tiles or b.prepared.limits >= 0 for b in bound):
        return rows_of(clamped(bound))
    return [[*b.row, *ALONE] for b in bound]


def read_clock(clock, place, lo, hi):
    place[0] = monotonic_ns(clock)


@cache
def _stamp() -> Prepared:
    clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
    kernel = jit.Kernel(read_clock, ("i", "*i64"), i64, distinct=True)
    return Prepared(kernel, np.array([clock, 0], np.int64), [(1, 0)], [], [], 1, 1)


def execute(op, arrays: list, attrs: dict, lanes: int | None = None) -> list[np.ndarray]:
    """Runs one op on NumPy arrays (None for an absent operand), outside of any graph; attributes
    complete.

    The way in for op tests; graphs go through the interpreter.
    """
    from opstep.runtime.device.single import one_step

    device = CpuDevice(lanes)
    step, stored, results = one_step(op, arrays, attrs)
    launches, workspace = device.prepare(step, (*stored, *results))
    sources = [None if a is None else np.ascontiguousarray(a) for a in arrays]
    sources += [None] * (len(stored) - len(sources))
    targets = [device.alloc(t.nbytes) for t in results]  # pyright: ignore[reportArgumentType]
    for target, t in zip(targets, results, strict=True):
        device.fill(target, 0, target.nbytes, t.dtype)()
    scratch = device.alloc(workspace)
    addresses = [0 if a is None else a.ctypes.data for a in sources]
    addresses += [m.address for m in targets]
    device.capture(device.bind(launches, addresses, scratch.address))()
    return [device.view(m, 0, t) for m, t in zip(targets, results, strict=True)]


def statistics_of(array: np.ndarray, filled: bool = False, lanes: int | None = None) -> Statistics:
    """Statistics of an array of any dtype that the language knows.

    `filled`: its memory held the payload (see `payload`) before it was written.
    """
    from opstep.runtime.ir.types import dtype_of

    return decode(statistics_words(array, filled, lanes), dtype_of(array.dtype))


def statistics_words(
    array: np.ndarray, filled: bool = False, lanes: int | None = None
) -> np.ndarray:
    """`statistics_of`, as devices record them."""
    from opstep.runtime.ir.types import dtype_of

    device = CpuDevice(lanes)
    t = TensorType(dtype_of(array.dtype), array.shape)
    launches, workspace = device.prepare(*step_for(t, filled))
    if device.uncompiled(launches):
        words = host_statistics.statistics_words(array, filled)
        if host_statistics.Rent.exceeds_a_kernel(array):
            device.compile_ahead(launches)
        if words is not None:
            return words
    arrays = [np.ascontiguousarray(array), np.ones((), np.int64), np.zeros(WORDS, np.int64)]
    scratch = device.alloc(workspace)
    addresses = [a.ctypes.data for a in arrays]
    device.capture(device.bind(launches, addresses, scratch.address))()
    return arrays[-1]
