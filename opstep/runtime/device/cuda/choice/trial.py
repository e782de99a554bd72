"""Tries every way to run an op, and times it: `--autotune`.

Each runs on made-up operands and into results of its own, so nothing of a program is touched. It is
timed as it will run, from a captured graph, by the GPU's own clock. Whatever cannot be captured, or
whose results are not those of our first kernel, is out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cuda.choice.choice import Candidate, Types
from opstep.runtime.device.cuda.choice.tuning import Times
from opstep.runtime.device.cuda.driver.driver import LostDevice, OutOfMemory
from opstep.runtime.device.cuda.driver.streams import CudaStream
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    from opstep.runtime.device.cuda.device import CudaDevice

TOLERANCE = {"f64": 1e-11, "f32": 2e-5, "f16": 4e-3, "bf16": 2e-2}  # of the largest element
SAMPLE_US = 1000.0  # how long a sample is to take
MOST_REPEATS = 50
SAMPLES = 7
HOPELESS = 3.0  # times the fastest so far: not timed any closer
SLACK_US = 50.0  # of one run from the host, which are not the kernel's


def times_of(device: CudaDevice, step: Step, types: Types, candidates: list[Candidate]) -> Times:
    """Microseconds of each candidate that works; nothing where memory is short."""
    if Compiler.on_tune:
        results = ", ".join(str(t) for t in types[len(step.operand_types) :])
        Compiler.on_tune(f"{step.op.name} {results}")
    try:
        return _Trial(device, step, types).times(candidates)
    except OutOfMemory:
        return {}


class _Trial:
    """Operands and results for one op, in memory of their own."""

    def __init__(self, device: CudaDevice, step: Step, types: Types):
        self.device = device
        self.stream = CudaStream(device.gpu)
        count = len(step.operand_types)
        self.results = [t for t in types[count:] if t is not None]
        self.operands = [None if t is None else self._operand(t) for t in types[:count]]
        self.targets = [device.alloc(_nbytes(t), "autotune") for t in self.results]

    def _operand(self, t: TensorType) -> Any:
        memory = self.device.alloc(_nbytes(t), "autotune")
        self.device.write(memory, 0, t, _sample_input(t))
        return memory

    def times(self, candidates: list[Candidate]) -> Times:
        found: Times = {}
        expected: list[np.ndarray] | None = None
        for candidate in candidates:
            made = candidate.make()
            if made is None:
                continue
            try:
                scratch = self.device.alloc(made[1], "autotune")
                work = self._work(made, scratch.address)
                once = self._once(work)
                got = [self.device.read(m, 0, t) for m, t in self._outputs()]
                if expected is None:
                    expected = got
                elif not all(map(_alike, expected, got)):
                    continue
                best = min(found.values(), default=float("inf"))
                if once < HOPELESS * best + SLACK_US:
                    found[candidate.name] = self._closely(work, once)
            except LostDevice:
                raise
            except DeviceError:
                continue  # out of memory, or a library that does not do it after all
        return found

    def _outputs(self) -> Iterator[tuple[Any, TensorType]]:
        return zip(self.targets, self.results, strict=True)

    def _work(self, made: Any, scratch: int) -> Callable[[int], None]:
        addresses = [0 if m is None else m.address for m in self.operands]
        addresses += [m.address for m in self.targets]
        loaded = [self.device.load(launch) for launch in made[0]]
        return self.device.capture(self.device.bind(loaded, addresses, scratch))

    def _once(self, work: Callable[[int], None]) -> float:
        """Microseconds of the second run, into results that were filled with what is no number."""
        for memory, t in self._outputs():
            self.stream.submit(self.device.fill(memory, 0, memory.nbytes, t.dtype))
        self.stream.submit(work)
        return self._timed(work)

    def _closely(self, work: Callable[[int], None], once: float) -> float:
        repeats = int(min(MOST_REPEATS, max(1, SAMPLE_US // once)))
        with self._captured(work, repeats) as replay:
            self.stream.submit(replay)
            return median(self._timed(replay) for _ in range(SAMPLES)) / repeats

    @contextmanager
    def _captured(
        self, work: Callable[[int], None], repeats: int
    ) -> Iterator[Callable[[int], None]]:
        """Work that runs `work` so many times, as a graph."""
        driver, handle = self.device.gpu.enter(), self.stream.handle
        mode = driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.cuStreamBeginCapture(handle, mode)
        try:
            for _ in range(repeats):
                work(handle)
        except BaseException:
            driver.module.cuStreamEndCapture(handle)  # whatever it says
            raise
        graph = driver.cuStreamEndCapture(handle)
        made = driver.cuGraphInstantiate(graph, 0)
        driver.cuGraphDestroy(graph)
        try:
            yield lambda stream: driver.cuGraphLaunch(made, stream)
        finally:
            self.stream.synchronize()
            driver.cuGraphExecDestroy(made)

    def _timed(self, work: Callable[[int], None]) -> float:
        """Microseconds of a run, by events of the stream."""
        driver, handle = self.device.gpu.enter(), self.stream.handle
        begin, end = (driver.cuEventCreate(0) for _ in range(2))
        try:
            driver.cuEventRecord(begin, handle)
            work(handle)
            driver.cuEventRecord(end, handle)
            driver.cuEventSynchronize(end)
            return max(driver.cuEventElapsedTime(begin, end) * 1e3, 1e-3)
        finally:
            driver.cuEventDestroy(begin)
            driver.cuEventDestroy(end)


def _nbytes(t: TensorType) -> int:
    nbytes: Any = t.nbytes  # of a concrete type
    return nbytes


def _sample_input(t: TensorType) -> np.ndarray:
    """Normal floats, in turns of a million; zeros for integers, which may be indices."""
    shape: Any = t.shape  # concrete here
    if not t.dtype.is_float:
        return np.zeros(shape, t.dtype.numpy)
    block = np.random.default_rng(0).standard_normal(1 << 20, np.float32).astype(t.dtype.numpy)
    return np.resize(block, shape)


def _alike(expected: np.ndarray, got: np.ndarray) -> bool:
    """Whether they differ by rounding alone."""
    if expected.dtype.kind in "iub":
        return bool((expected == got).all())
    wide = np.float64
    scale = np.abs(expected.astype(wide)).max(initial=0.0)
    off = np.abs(expected.astype(wide) - got.astype(wide)).max(initial=0.0)
    names = {"float64": "f64", "float32": "f32", "float16": "f16"}
    return bool(off <= TOLERANCE[names.get(expected.dtype.name, "bf16")] * max(scale, 1e-30))
