"""A GPU as a device: kernels are loaded once and launched by native code, streams are the driver's.

One context is used by one thread at a time; any number of contexts, each with its own streams,
share the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.cuda.choice.choice import Chooser, Kernels
from opstep.runtime.device.cuda.choice.tuning import TuningTable, table
from opstep.runtime.device.cuda.compiling.compiler import Kernel, code_for
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.driver.driver import Gpu, gpu
from opstep.runtime.device.cuda.driver.graphs import Replay
from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.driver.memory import Constants, CudaMemory, Pool, Staging
from opstep.runtime.device.cuda.driver.streams import CudaEvent, CudaStream, ForeignStream
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.unwritten import search_for
from opstep.runtime.device.cuda.vendor.libraries import versions
from opstep.runtime.device.payload import payload
from opstep.runtime.device.protocols import Bytes, Device, Recorder, Types
from opstep.runtime.device.routine import PreparedCall
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cuda.recording.pending import PendingRecords
    from opstep.runtime.device.cuda.recording.tape import CudaTape

WORTH_CAPTURING = 3  # pieces of work; fewer are issued as fast as a graph is launched
STATIC_SHARED = 48 << 10  # bytes of shared memory that a block has without asking


class LoadedGrid:
    """A launch whose kernel is on the GPU."""

    __slots__ = ("constants", "function", "prepared")

    def __init__(self, prepared: Prepared, function: int, constants: dict[int, int]):
        self.prepared = prepared
        self.function = function
        self.constants = constants  # word -> address

    def bound(self, addresses: Sequence[int], workspace: int) -> BoundGrid:
        return BoundGrid(self.prepared, self.function, self.constants, addresses, workspace)


class CudaDevice(Device):
    """GPU `ordinal` of those that the process may see. Raises `DeviceError` where there is none.

    `replays`: stretches that nothing interrupts are captured into CUDA graphs.
    """

    kernels = "cuda"
    stretches = True
    gathers = True
    patience: float | None = 60.0  # seconds
    replays = True

    def __init__(self, ordinal: int = 0):
        self.gpu: Gpu = gpu(ordinal)
        self.name = "cuda" if ordinal == 0 else f"cuda:{ordinal}"
        self.title = f"GPU {ordinal} ({self.gpu.name})"
        self.arch = self.gpu.arch
        self.pool = Pool(self.gpu)
        self.staging = Staging(self.gpu)
        self.constants = Constants(self.pool, self.staging)
        self._prepared: dict[tuple, tuple[list[Any], int]] = {}
        self._taken: dict[tuple, bool] = {}
        self._functions: dict[tuple[Kernel, int], int] = {}
        self._libraries: list[Any] = []
        self._own = CudaStream(self.gpu)
        self._chooser = self._choosing(Kernels("numba"))
        self._choices = {self._chooser.policy: self}

    def enter(self) -> None:
        self.gpu.enter_again()

    # --- memory ---

    def alloc(self, nbytes: Bytes, what: str = "") -> CudaMemory:
        return self.pool.alloc(nbytes, what)

    def read(self, memory: CudaMemory, offset: int, t: TensorType) -> np.ndarray:
        """A copy of the bytes at `offset`; what writes them must be done."""
        shape: Any = t.shape  # concrete here
        found = np.empty(shape, t.dtype.numpy)
        if found.nbytes:
            self.staging.read(memory.address + offset, found.reshape(-1).view(np.uint8))
        return found

    def write(self, memory: CudaMemory, offset: int, t: TensorType, array: Any) -> None:
        """Copies an array, or a number for each element, to the bytes at `offset`."""
        shape: Any = t.shape  # concrete here
        whole = np.broadcast_to(np.asarray(array, t.dtype.numpy), shape)
        if whole.nbytes:
            self.staging.write(whole, memory.address + offset)

    def fill(
        self, memory: CudaMemory, offset: int, nbytes: Bytes, dtype: DType
    ) -> Callable[[int], None]:
        """Work that writes the payload of memory never written."""
        driver, target = self.gpu.driver, memory.address + offset
        pattern = payload(dtype)
        count, word = nbytes // pattern.itemsize, int(pattern)
        if not count:
            return lambda stream: None
        if pattern.itemsize < 8:
            name = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
            fill = getattr(driver, name[pattern.itemsize])
            return lambda stream: fill(target, word, count, stream)

        def both_halves(stream: int) -> None:
            for k in range(2):
                half = word >> 32 * k & 0xFFFFFFFF
                driver.cuMemsetD2D32Async(target + 4 * k, 8, half, 1, count, stream)

        return both_halves

    def words(self, count: int) -> np.ndarray:
        """i64 zeros that kernels may write, where the host looks at them."""
        return self.staging.lent(count)

    def seek_payload(
        self, memory: CudaMemory, offset: int, t: TensorType, words: np.ndarray
    ) -> Callable[[int], None]:
        launches, _ = self.prepare(*search_for(t.dtype, t.size))
        return work_of(self.bind(launches, [memory.address + offset, words.ctypes.data], 0))

    def copy(self, source: int, target: int, nbytes: Bytes) -> Callable[[int], None]:
        if not nbytes:
            return lambda stream: None
        driver = self.gpu.driver
        return lambda stream: driver.cuMemcpyDtoDAsync(target, source, nbytes, stream)

    def copy_from(self, other: Device, source: CudaMemory, target: CudaMemory) -> bool:
        """Copies memory of another GPU here; False where `other` is none. No work may be under way
        on either.
        """
        if not isinstance(other, CudaDevice):
            return False
        driver, here, there = self.gpu.driver, self.gpu.context, other.gpu.context
        self.now(
            lambda stream: driver.cuMemcpyPeerAsync(
                target.address, here, source.address, there, source.nbytes, stream
            )
        )
        return True

    def stream(self) -> CudaStream:
        return CudaStream(self.gpu)

    def wait_for_op(self, stream: CudaStream, progress: Callable[[], int] = int) -> None:
        """A kernel that never ends is given up."""
        if self.patience is None:
            stream.synchronize()
        else:
            stream.synchronize_within(self.patience, progress)

    def foreign_stream(self, handle: int) -> ForeignStream:
        return ForeignStream(self.gpu, handle)

    def event(self) -> CudaEvent:
        return CudaEvent(self.gpu)

    # --- launches ---

    def prepare(self, step: Step, types: Types) -> tuple[list[Any], int]:
        """Launches of a step, compiled and loaded, and the bytes of memory that they share.

        `types`: the operands as they are stored, then the results.
        """
        key = _key(step, types)
        if key not in self._prepared:
            self.gpu.enter()  # libraries ask for the context
            with targeting(self.gpu.arch):
                launches, size = self._chooser.prepared(step, types)
            self._prepared[key] = [self.load(p) for p in launches], size
        return self._prepared[key]

    def takes(self, step: Step, types: Types) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        key = _key(step, types)
        if key not in self._taken:
            self.gpu.enter()  # libraries ask for the context
            with targeting(self.gpu.arch):
                self._taken[key] = self._chooser.takes(step, types)
        return self._taken[key]

    def with_kernels(self, policy: Kernels) -> CudaDevice:
        """This device where it chooses otherwise between an op's kernels. Memory and machine code
        are shared.
        """
        if policy not in self._choices:
            made = self._choices[policy] = copy(self)
            made._prepared, made._taken = {}, {}
            made._chooser = made._choosing(policy)
        return self._choices[policy]

    def _choosing(self, policy: Kernels) -> Chooser:
        from opstep.runtime.device.cuda.choice.trial import DeviceTrials

        return Chooser(policy, self._table, DeviceTrials(self))

    def _table(self) -> TuningTable:
        """Times of ops on GPUs like this one."""
        known = {"gpu": self.gpu.name, "driver": self.gpu.driver.cuDriverGetVersion()}
        about = ", ".join(f"{k} {v}" for k, v in (known | versions()).items())
        return table(self.gpu.name, about)

    def load(self, prepared: Prepared | PreparedCall) -> LoadedGrid | PreparedCall:
        """A launch, ready to be bound."""
        if isinstance(prepared, PreparedCall):
            return prepared
        constants = {word: self.constants.place(numbers) for word, numbers in prepared.tuples}
        return LoadedGrid(prepared, self._function(prepared.kernel, prepared.shared), constants)

    def _function(self, kernel: Kernel, shared: int) -> int:
        """The kernel on this GPU, compiled where it has to be."""
        key = (kernel, max(shared, STATIC_SHARED))
        if key not in self._functions:
            code = code_for(kernel, self.gpu.arch)
            driver = self.gpu.enter()
            library = driver.cuLibraryLoadData(code.cubin, [], [], 0, [], [], 0)
            self._libraries.append(library)
            made = driver.cuLibraryGetKernel(library, code.symbol.encode())
            if shared > STATIC_SHARED:
                limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.cuKernelSetAttribute(limit, shared, made, self.gpu.handle)
            # loaded now, for nothing may be loaded while a graph is captured
            self._functions[key] = int(driver.cuKernelGetFunction(made))
        return self._functions[key]

    def bind(self, launches: list[Any], addresses: list[int], workspace: int) -> list[Any]:
        """`addresses`: of operands, then results, in the order given to `prepare`."""
        self.gpu.enter()
        return [launch.bound(addresses, workspace) for launch in launches]

    def pointers(self, bound: list[Any], slot: int) -> list[Callable[[int], None]]:
        return [setter for b in bound for setter in b.pointers(slot)]

    def moved(self, code: Sequence[Callable[[], Any]], places: int) -> None:
        for piece in code:
            if isinstance(piece, Replay):
                piece.moved(places)

    def capture(self, bound: list[Any]) -> Callable[[int], None]:
        """Launches as one piece of work for a stream."""
        return work_of(bound)

    def run_now(self, bound: list[Any]) -> None:
        """Launches at once, and waits for them."""
        self.now(work_of(bound))

    def work_now(self, work: list[Callable[[int], Any]]) -> None:
        if work:
            self.now(lambda stream: [piece(stream) for piece in work])

    def now(self, work: Callable[[int], Any]) -> None:
        """Work on a stream of the device's own; returns when it is done."""
        self.gpu.enter()
        self._own.submit(work)
        self._own.synchronize()

    def stretch(
        self, code: list[Callable[[], Any]], streams: Sequence[CudaStream], alone: bool,
        tape: CudaTape | None, spread: bool,
    ) -> list[Callable[[], Any]]:  # fmt: skip
        """Code between two calls that the host runs, which nothing interrupts: replayed as one
        graph.
        """
        if not self.replays:
            return code
        if len(code) < WORTH_CAPTURING and len(streams) < 2 and not _is_long(code):
            return code
        watch = tape.stretch(code, alone) if tape else None
        return [Replay(self.gpu, code, streams, alone, watch, spread)]

    def delay(self, seconds: float) -> Callable[[int], None]:
        from opstep.runtime.device.cuda.spinning import spin

        return spin(self, seconds)

    # --- recording ---

    def stamp(self, address: int) -> list[Any]:
        """Launches that write the GPU's time (ns) to that address once earlier work has ended."""
        from opstep.runtime.device.cuda.recording.stamps import launches

        bound = self.bind(launches(self), [address], 0)
        for launch in bound:
            launch.stamp = True
        return bound

    def read_later(self, source: int, target: np.ndarray, nbytes: int, stream: int) -> None:
        """Copies to pinned memory, behind what is on the stream."""
        self.gpu.driver.cuMemcpyDtoHAsync(target.ctypes.data, source, nbytes, stream)

    def launched(self, launch: Any) -> Sequence[Any]:
        """See `recording.kernels.launched`."""
        from opstep.runtime.device.cuda.recording.kernels import launched

        return launched(self.gpu, launch)

    def tape(self, binding: Binding, recorder: Recorder) -> CudaTape:
        """Records a binding."""
        from opstep.runtime.device.cuda.recording.tape import CudaTape

        return CudaTape(self, binding, recorder, pending_records_of(self))

    def recorded_step(self, recorder: Recorder, now: bool = False) -> None:
        """A step of a recorded run has ended, and its streams are idle. `now`: its records are
        handed over at once.
        """
        pending_records_of(self).step_done(recorder, now)

    def meanwhile(self, recorder: Recorder) -> None:
        """A recorded run is under way on the GPU: time to look at what came before."""
        pending_records_of(self).meanwhile(recorder)

    def unrecord(self, recorder: Recorder) -> None:
        """The recorder's run is over, or lies idle."""
        pending_records_of(self).end(recorder)


def _key(step: Step, types: Types) -> tuple:
    """The key that decides how an op is launched."""
    attrs = repr(list(step.attrs.values())) if step.attrs else ""
    return step.op, types, step.operand_types, attrs


def _is_long(code: Sequence[Any]) -> bool:
    """Whether the pieces launch several kernels each."""
    return any(getattr(piece, "args", None) and _launches(piece.args[0]) > 1 for piece in code)


def _launches(work: Any) -> int:
    return len(getattr(work, "bound", ()))


_pending: dict[int, PendingRecords] = {}
_pending_lock = threading.Lock()


def pending_records_of(on: CudaDevice) -> PendingRecords:
    """The records of a GPU that are not handed over yet, whichever kernels are chosen."""
    from opstep.runtime.device.cuda.recording.pending import PendingRecords, Slots
    from opstep.runtime.device.cuda.recording.stamps import Clock

    with _pending_lock:
        if on.gpu.ordinal not in _pending:
            _pending[on.gpu.ordinal] = PendingRecords(Clock(on), Slots(on.staging.pinned))
        return _pending[on.gpu.ordinal]


@cache
def device(ordinal: int) -> CudaDevice:
    """The process's device for a GPU, which runs our own kernels: see `with_kernels`."""
    return CudaDevice(ordinal)


def execute(op, arrays: list, attrs: dict, ordinal: int = 0) -> list[np.ndarray]:
    """Runs one op on NumPy arrays (None for an absent operand), outside of any graph; attributes
    complete. Like `cpu.execute`.
    """
    from opstep.runtime.device.single import one_step

    on = device(ordinal)
    step, stored, results = one_step(op, arrays, attrs)
    launches, size = on.prepare(step, (*stored, *results))
    operands = [None if a is None else on.alloc(a.nbytes) for a in arrays]
    for memory, array, t in zip(operands, arrays, stored, strict=False):
        if memory is not None and t is not None:
            on.write(memory, 0, t, array)
    operands += [None] * (len(stored) - len(operands))
    targets = [on.alloc(t.nbytes) for t in results]  # pyright: ignore[reportArgumentType]
    for target, t in zip(targets, results, strict=True):
        on.now(on.fill(target, 0, target.nbytes, t.dtype))
    scratch = on.alloc(size)
    addresses = [0 if m is None else m.address for m in operands] + [m.address for m in targets]
    on.run_now(on.bind(launches, addresses, scratch.address))
    return [on.read(m, 0, t) for m, t in zip(targets, results, strict=True)]
