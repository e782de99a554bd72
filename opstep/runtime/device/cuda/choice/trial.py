"""Tries the ways to run an op, and times them: all with `--autotune`, else those that are likely.

Each runs on made-up operands and into results of its own, so nothing of a program is touched. It is
timed as it will run, from a captured graph, by the GPU's own clock. Whatever cannot be captured, or
whose results are not those of our first kernel, is out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cuda.choice.choice import LAST, Candidate, Types, as_judged
from opstep.runtime.device.cuda.choice.tuning import Times
from opstep.runtime.device.cuda.driver.driver import LostDevice, OutOfMemory
from opstep.runtime.device.cuda.driver.graphs import captured
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
BLOCK = 1 << 20  # made-up numbers
PATIENCE_S = 1.0  # for ops that are timed at first sight, one after the other
RENEWED = 0.05  # of the time that passes: the next program of a process is tried, too
OP_S = 0.1  # for one of them
NEARLY = 1.03  # times the fastest: ours is as fast
QUICK_US = 200.0  # how long a sample is to take at first sight
QUICK_SAMPLES = 3
HOPELESS = 3.0  # times the fastest so far: not timed any closer
LEAST_US = 0.1  # of any way
SLACK_US = 50.0  # of one run from the host, which are not the kernel's
LOADING_US = 3e4  # of a first run, for a library's kernels
ENOUGH = 6  # ways that were timed at first sight, ours among them


class DeviceTrials:
    """Times candidates on a GPU; at first sight for `PATIENCE_S` at a time, and for `RENEWED` of a
    process's time.
    """

    def __init__(self, device: CudaDevice):
        self._device = device
        self._left = PATIENCE_S
        self._looked = perf_counter()

    def times(self, step: Step, types: Types, candidates: list[Candidate]) -> Times:
        """Microseconds of each candidate that works; nothing where memory is short."""
        if Compiler.on_tune:
            results = ", ".join(str(t) for t in types[len(step.operand_types) :])
            Compiler.on_tune(f"{step.op.name} {results}")
        try:
            return _Trial(self._device, step, types).times(candidates)
        except OutOfMemory:
            return {}

    def quickest(self, step: Step, types: Types, candidates: list[Candidate]) -> str | None:
        now = perf_counter()
        self._left = min(PATIENCE_S, self._left + RENEWED * (now - self._looked))
        self._looked = now
        if self._left <= 0:
            return None
        ours = candidates[0]
        if (made := ours.make()) is None:
            return None
        last = next((c.make() for c in candidates if c.name == LAST), None)
        for launches, _ in filter(None, (made, last)):
            for launch in launches:
                self._device.load(launch)  # compiled here, where that is not counted
        start = perf_counter()
        until = start + min(self._left, OP_S)
        try:
            found = _Trial(self._device, step, types).quickly(candidates, until)
        except OutOfMemory:
            return None
        finally:
            self._left -= perf_counter() - start
        found = as_judged(found)
        best = min(found, key=lambda name: found[name], default=None)
        near = best and found.get(ours.name, float("inf")) <= NEARLY * found[best]
        return ours.name if near else best


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
        """Normal floats, a million over and over; zeros for integers, which may be indices."""
        memory, nbytes = self.device.alloc(_nbytes(t), "autotune"), _nbytes(t)
        there = min(nbytes, BLOCK * t.dtype.itemsize)
        block = np.zeros(BLOCK) if not t.dtype.is_float else _normal()
        part = TensorType(t.dtype, (there // t.dtype.itemsize,))
        self.device.write(memory, 0, part, block[: part.size])
        while there < nbytes:
            more = min(there, nbytes - there)
            self.stream.submit(self.device.copy(memory.address, memory.address + there, more))
            there += more
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
                if candidate.comparable:
                    got = [self.device.read(m, 0, t) for m, t in self._outputs()]
                    if expected is None:
                        expected = got
                    elif not all(map(_alike, expected, got)):
                        continue
                best = min(as_judged(found).values(), default=float("inf"))
                if once < HOPELESS * best + SLACK_US:
                    took = self._closely(work, once, SAMPLE_US, SAMPLES)
                    found[candidate.name] = max(took - candidate.spares, LEAST_US)
            except LostDevice:
                raise
            except DeviceError:
                continue  # out of memory, or a library that does not do it after all
        return found

    def quickly(self, candidates: list[Candidate], until: float) -> Times:
        """Of as many as can be timed until then, two at least; results are not looked at."""
        found: Times = {}
        for candidate in candidates:
            try:
                if (made := candidate.make()) is None:
                    continue
                scratch = self.device.alloc(made[1], "autotune")
                work = self._work(made, scratch.address)
                best = min(as_judged(found).values(), default=float("inf"))
                once = self._timed(work)
                if once < HOPELESS * best + LOADING_US:
                    once = self._timed(work)
                if once >= QUICK_US:
                    took = min(once, self._timed(work)) if once < best else once
                elif once < HOPELESS * best + SLACK_US:
                    took = self._closely(work, once, QUICK_US, QUICK_SAMPLES)
                else:
                    continue
                found[candidate.name] = max(took - candidate.spares, LEAST_US)
            except LostDevice:
                raise
            except DeviceError:
                continue  # as above
            tried = len(as_judged(found))
            if tried == ENOUGH or (tried > 1 and perf_counter() > until):
                break
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

    def _closely(
        self, work: Callable[[int], None], once: float, sample: float, samples: int
    ) -> float:
        """The median of so many samples that take `sample` microseconds, or one run."""
        repeats = int(min(MOST_REPEATS, max(1, sample // once)))

        def repeated(stream: int) -> None:
            for _ in range(repeats):
                work(stream)

        with captured(self.device.gpu, repeated, self.stream) as replay:
            self.stream.submit(replay)
            return median(self._timed(replay) for _ in range(samples)) / repeats

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


@cache
def _normal() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(BLOCK, np.float32)


def _alike(expected: np.ndarray, got: np.ndarray) -> bool:
    """Whether they differ by rounding alone."""
    if expected.dtype.kind in "iub":
        return bool((expected == got).all())
    wide = np.float64
    scale = np.abs(expected.astype(wide)).max(initial=0.0)
    off = np.abs(expected.astype(wide) - got.astype(wide)).max(initial=0.0)
    names = {"float64": "f64", "float32": "f32", "float16": "f16"}
    return bool(off <= TOLERANCE[names.get(expected.dtype.name, "bf16")] * max(scale, 1e-30))
