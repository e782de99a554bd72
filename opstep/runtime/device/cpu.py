"""The CPU: streams are worker threads, kernels are compiled by numba and run without the GIL."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.device import internal, jit, native
from opstep.runtime.device.convert import conversion
from opstep.runtime.device.launch import Arg, Blas, Launch, Scratch
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.graph import NOWHERE
from opstep.runtime.ir.types import DType, TensorType, f32, i64
from opstep.runtime.plan.plan import Step

ALIGNMENT = 64
_LARGE = 64 << 20  # bytes; only above this is the system asked first


def _available() -> int:
    """Bytes that can be had without swapping. Linux grants more, and kills who uses it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = [line for line in file if line.startswith("MemAvailable")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return sys.maxsize


def out_of_memory(nbytes: int) -> DeviceError:
    return DeviceError(
        f"out of memory: {nbytes / 2**30:.3g} GiB are wanted, "
        f"{_available() / 2**30:.3g} GiB are free",
        hint="use a smaller batch, or --alloc reuse",
    )


class CpuMemory:
    """Aligned bytes of this process."""

    __slots__ = ("_array", "address", "nbytes")

    def __init__(self, nbytes: int):
        if nbytes > _LARGE and nbytes > _available():
            raise out_of_memory(nbytes)
        try:
            self._array = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):
            raise out_of_memory(nbytes) from None
        start = -self._array.ctypes.data % ALIGNMENT
        self.address = self._array.ctypes.data + start
        self._array = self._array[start : start + nbytes]
        self.nbytes = nbytes

    @property
    def bytes(self) -> np.ndarray:
        return self._array


class CpuEvent:
    """Set once by the stream that records it; `reset` before it is recorded again."""

    def __init__(self):
        self._flag = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        self._flag.clear()

    def done(self) -> bool:
        return self._flag.is_set()

    def wait(self) -> None:
        self._flag.wait()

    def set(self) -> None:
        with self._lock:
            self._flag.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_done(self, callback: Callable[[], Any]) -> None:
        with self._lock:
            if not self._flag.is_set():
                self._callbacks.append(callback)
                return
        callback()


class _Queue:
    """Work in order, done by whoever has the turn."""

    def __init__(self):
        self.items: deque[Callable[[], None]] = deque()
        self.turn = threading.Lock()
        self.wanted = threading.Semaphore(0)
        self.closed = False
        self.error: BaseException | None = None

    def drain(self) -> None:
        items = self.items
        with self.turn:
            while items:
                work = items.popleft()
                try:
                    work()
                except Exception as error:  # told to the host when it synchronises
                    self.error = self.error or error

    def work(self) -> None:
        """The worker thread's life."""
        while not self.closed:
            self.wanted.acquire()
            self.drain()

    def close(self) -> None:
        self.closed = True
        self.wanted.release()


class CpuStream:
    """A queue, and a thread that works through it from the first `start` until the stream is
    dropped.

    A host that would only wait for the queue works through it itself (`synchronize`): one thread at
    a time has the turn, so the order is kept whoever does it, and a short run pays for no thread
    switch.
    """

    def __init__(self):
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self.submit = self._queue.items.append
        weakref.finalize(self, self._queue.close)

    def record(self, event: CpuEvent) -> None:
        self.submit(event.set)

    def wait(self, event: CpuEvent) -> None:
        self.submit(event.wait)

    def start(self) -> None:
        """Lets the worker begin with what is queued."""
        if not self._queue.items:
            return
        if self._thread is None:
            work = self._queue.work  # not a method of the stream: the thread must not keep it alive
            self._thread = threading.Thread(target=work, daemon=True, name="opstep stream")
            self._thread.start()
        self._queue.wanted.release()

    def synchronize(self) -> None:
        """Returns when the queue is empty and its last work done; raises what that work raised."""
        queue = self._queue
        queue.drain()
        if queue.error is not None:
            error, queue.error = queue.error, None
            raise error

    def abandon(self) -> None:
        """Drops what is queued and waits for the work under way, after the events it may wait for
        are set.
        """
        queue = self._queue
        queue.items.clear()
        with queue.turn:
            queue.items.clear()
        queue.error = None


class Prepared:
    """A launch without addresses: its argument words, and which of them are which operand's
    pointer.
    """

    __slots__ = ("_kept", "entry", "grain", "slots", "units", "words", "workspace")

    def __init__(self, entry, words, slots, workspace, kept, units, grain):
        self.entry = entry
        self.words = words
        self.slots = slots  # [(word, operand or result)]
        self.workspace = workspace  # [(word, offset)]
        self._kept = kept  # arrays whose addresses stand in the words
        self.units = units
        self.grain = grain


class Bound:
    """A launch with addresses: a row of a table."""

    __slots__ = ("_prepared", "_words", "row")

    def __init__(self, prepared: Prepared, addresses: list[int], workspace: int):
        words = prepared.words.copy()
        for word, slot in prepared.slots:
            words[word] = addresses[slot]
        for word, offset in prepared.workspace:
            words[word] = workspace + offset
        self._words = words
        self._prepared = prepared
        self.row = (prepared.entry, words.ctypes.data, prepared.units, prepared.grain)


class CpuDevice:
    """`lanes`: threads that share one launch's range; by default all cores that this process may
    use.
    """

    name = "cpu"

    def __init__(self, lanes: int | None = None):
        self.lanes = native.team(lanes or len(os.sched_getaffinity(0))).lanes
        self._prepared: dict[tuple, tuple[list[Prepared], int]] = {}

    # --- memory ---

    def alloc(self, nbytes: int) -> CpuMemory:
        return CpuMemory(nbytes)

    def view(self, memory: CpuMemory, offset: int, t: TensorType) -> np.ndarray:
        """The bytes at `offset` as an array of that type; no copy."""
        shape: Any = t.shape  # concrete here
        nbytes = t.nbytes
        return memory.bytes[offset : offset + nbytes].view(t.dtype.numpy).reshape(shape)

    def fill(self, memory: CpuMemory, offset: int, nbytes: int, dtype: DType):
        array = memory.bytes[offset : offset + nbytes].view(payload(dtype).dtype)
        pattern = payload(dtype)
        return lambda: array.fill(pattern)

    def copy(self, source: int, target: int, nbytes: int) -> Callable[[], Any]:
        return lambda: ctypes.memmove(target, source, nbytes)

    def stream(self) -> CpuStream:
        return CpuStream()

    def event(self) -> CpuEvent:
        return CpuEvent()

    # --- launches ---

    def prepare(
        self, step: Step, types: tuple[TensorType | None, ...]
    ) -> tuple[list[Prepared], int]:
        """Launches of a step and the bytes of working memory that they share.

        `types`: the operands as they are stored, then the results.
        """
        key = (step.op, types, step.operand_types, tuple(step.attrs.values()))
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = _Lowering(step, types, self.lanes).prepared()
        return found

    def bind(self, launches: list[Prepared], addresses: list[int], workspace: int) -> list[Bound]:
        """`addresses`: of operands, then results, in the order given to `prepare`."""
        return [Bound(p, addresses, workspace) for p in launches]

    def capture(self, bound: list[Bound]) -> Callable[[], None]:
        """Launches as one native call."""
        return native.Table([b.row for b in bound], self.lanes, keep=bound)


def payload(dtype: DType) -> np.generic:
    """What debug memory holds before it is written: a NaN with a payload of its own, or the largest
    integer.

    As an unsigned integer of the type's width.
    """
    patterns = {"f64": 0x7FF8_DEAD_0B5E_55ED, "f32": 0x7FC0_5EED, "f16": 0x7E5D, "bf16": 0x7FDE}
    width = np.dtype(f"u{dtype.itemsize}")
    if dtype.name in patterns:
        return width.type(patterns[dtype.name])
    return width.type(
        {"i": (1 << dtype.bits - 1) - 1, "u": (1 << dtype.bits) - 1, "b": 1}[dtype.kind]
    )


class _Lowering:
    """Turns an op's launches into argument words; puts conversions around it where types differ.

    The op's kernels see operands in the promoted type, and f16 and bf16 as f32 unless the op only
    moves elements.
    """

    def __init__(self, step: Step, types: tuple[TensorType | None, ...], lanes: int):
        self.step = step
        self.types = types
        self.lanes = lanes
        self.size = 0  # of the workspace, in bytes
        self.places: dict[int, int] = {}  # id of a Scratch -> offset
        self.keep: list[Scratch] = []  # ids stay unique while their objects live

    def prepared(self) -> tuple[list[Prepared], int]:
        op, count = self.step.op, len(self.step.operand_types)
        before: list[Launch] = []
        after: list[Launch] = []
        operands = [
            self._operand(k, stored, seen, before)
            for k, (stored, seen) in enumerate(
                zip(self.types[:count], self.step.operand_types, strict=True)
            )
        ]
        there = [t for t in self.types[count:] if t is not None]  # results are never absent
        results = [self._result(count + k, t, after) for k, t in enumerate(there)]
        cpu = internal.CPU.get(op.name) or op.cpu
        given = cpu(*operands, *results, **self.step.attrs)
        launches = before + ([given] if isinstance(given, Launch) else list(given)) + after
        return [self._lower(launch) for launch in launches if launch.units > 0], self.size

    def _seen(self, t: TensorType) -> TensorType:
        return t.with_dtype(f32) if t.dtype.is_half and not self.step.op.moves else t

    def _temporary(self, size: int) -> Arg:
        scratch = Scratch(f32, size)
        self._place(scratch)
        return _Staged(TensorType(f32, (size,)), scratch)

    def _operand(self, k: int, stored: TensorType | None, seen: TensorType | None, before):
        if stored is None or seen is None:
            return None
        seen = self._seen(seen)
        arg = Arg(stored, k)
        if seen.dtype is stored.dtype:
            return arg
        staged = _Staged(seen, Scratch(seen.dtype, arg.size))
        before += conversion(arg, staged, self._temporary)
        return staged

    def _result(self, slot: int, t: TensorType, after) -> Arg:
        seen = self._seen(t)
        if seen.dtype is t.dtype:
            return Arg(t, slot)
        arg = Arg(t, slot)
        staged = _Staged(seen, Scratch(seen.dtype, arg.size))
        after += conversion(staged, arg, self._temporary)
        return staged

    def _place(self, scratch: Scratch) -> int:
        """The scratch's offset in the workspace."""
        if id(scratch) not in self.places:
            lanes = self.lanes if scratch.per_lane else 1
            self.places[id(scratch)] = self.size
            self.keep.append(scratch)
            nbytes = scratch.size * scratch.dtype.itemsize * lanes
            self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self.places[id(scratch)]

    def _lower(self, launch: Launch) -> Prepared:
        signature: list[str] = []
        words: list[int] = []
        slots: list[tuple[int, int]] = []
        workspace: list[tuple[int, int]] = []
        kept: list[np.ndarray] = []
        for k, a in enumerate(launch.args):
            value = 0
            if isinstance(a, _Staged):
                a = a.scratch
            if isinstance(a, Arg):
                slots.append((k, a.slot))
                signature.append(f"*{a.dtype.name}")
            elif isinstance(a, Scratch):
                workspace.append((k, self._place(a)))
                signature.append(f"*{a.dtype.name}")
            elif isinstance(a, tuple):
                kept.append(np.array(a or (0,), np.int64))
                value = kept[-1].ctypes.data
                signature.append("*i64")
            elif isinstance(a, float):
                value = struct.unpack("<q", struct.pack("<d", a))[0]
                signature.append("f")
            elif isinstance(a, Blas):
                value = a.address
                signature.append("i")
            else:
                value = int(a)
                signature.append("i")
            words.append(value)
        dtype = _kernel_dtype(launch)
        entry = jit.address(launch.kernel, tuple(signature), dtype, distinct=True)
        block = np.array(words or [0], np.int64)
        return Prepared(entry, block, slots, workspace, kept, launch.units, launch.grain)


class _Staged(Arg):
    """An operand or result that stands in the workspace in the type that the kernel sees."""

    __slots__ = ("scratch",)

    def __init__(self, t: TensorType, scratch: Scratch):
        super().__init__(t, -1)
        self.scratch = scratch


def _kernel_dtype(launch: Launch) -> DType:
    pointers = [a.dtype for a in launch.args if isinstance(a, (Arg, Scratch))]
    floating = [t for t in pointers if t.is_float]
    return (floating or pointers or [i64])[0]


def execute(op, arrays: list, attrs: dict, lanes: int | None = None) -> list[np.ndarray]:
    """Runs one op on NumPy arrays (None for an absent operand), outside of any graph; attributes
    complete.

    The way in for op tests; graphs go through the interpreter.
    """
    from opstep.runtime.ir.graph import Apply, Name
    from opstep.runtime.ir.op import resolve
    from opstep.runtime.ir.types import dtype_of

    device = CpuDevice(lanes)
    stored = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays if a is not None]
    resolved = resolve(op, stored, attrs)
    stored += [None] * (len(resolved.operands) - len(stored))
    statement = Apply((), Name(op.name, NOWHERE), ())
    step = Step(op, (), (), resolved.operands, attrs, 0, statement)
    launches, workspace = device.prepare(step, (*stored, *resolved.results))
    sources = [None if a is None else np.ascontiguousarray(a) for a in arrays]
    sources += [None] * (len(resolved.operands) - len(sources))
    targets = [device.alloc(t.nbytes) for t in resolved.results]  # pyright: ignore[reportArgumentType]
    for target, t in zip(targets, resolved.results, strict=True):
        device.fill(target, 0, target.nbytes, t.dtype)()
    scratch = device.alloc(workspace)
    addresses = [0 if a is None else a.ctypes.data for a in sources]
    addresses += [m.address for m in targets]
    device.capture(device.bind(launches, addresses, scratch.address))()
    return [device.view(m, 0, t) for m, t in zip(targets, resolved.results, strict=True)]
