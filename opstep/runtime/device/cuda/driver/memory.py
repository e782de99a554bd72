"""Memory of a GPU: taken from the driver's pool in the order of a stream, filled from the host
through pinned buffers.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from opstep.runtime.device.cuda.driver.driver import Driver, Gpu, OutOfMemory
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.wording import Argument, Wording

STAGE = (
    4 << 20
)  # bytes of a pinned buffer; there are two, so that one is copied while one is filled
SLAB = 1 << 16  # bytes of constants that are taken at once
LENT = 512  # pinned words that are taken at once


class CudaMemory:
    """Bytes on a GPU. `what` says whose they are, for who looks for what fills the GPU."""

    __slots__ = ("__weakref__", "address", "nbytes", "what")

    def __init__(self, address: int, nbytes: int, what: str):
        self.address = address
        self.nbytes = nbytes
        self.what = what


class Pool:
    """Allocations of one GPU. What is given back is kept by the driver's pool for the next."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        driver = gpu.enter()
        self._stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._live: weakref.WeakSet[CudaMemory] = weakref.WeakSet()
        self._pool = driver.cuDeviceGetDefaultMemPool(gpu.handle)
        attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        keep = driver.cuuint64_t((1 << 64) - 1)
        driver.cuMemPoolSetAttribute(self._pool, attribute, keep)

    def alloc(self, nbytes: int, what: str = "") -> CudaMemory:
        """`nbytes` bytes, at a multiple of 256. Raises `OutOfMemory`."""
        driver = self.gpu.enter()
        try:
            address = self._allocate(max(nbytes, 1))
        except OutOfMemory:
            driver.cuMemPoolTrimTo(self._pool, 0)  # what is kept in pieces may do in one
            try:
                address = self._allocate(max(nbytes, 1))
            except OutOfMemory:
                driver.cuMemPoolTrimTo(self._pool, 0)
                raise self._full(nbytes, what) from None
        memory = CudaMemory(address, nbytes, what)
        self._live.add(memory)
        weakref.finalize(memory, _give_back, self.gpu, address, self._stream)
        return memory

    def _allocate(self, nbytes: int) -> int:
        driver = self.gpu.driver
        address = int(driver.cuMemAllocAsync(nbytes, self._stream))
        driver.cuStreamSynchronize(self._stream)  # other streams may use it from here on
        return address

    def held(self) -> dict[str, int]:
        """Bytes in use, by what they are for."""
        found: dict[str, int] = {}
        for memory in list(self._live):
            kind = memory.what or "other"
            found[kind] = found.get(kind, 0) + memory.nbytes
        return found

    def _full(self, nbytes: int, what: str) -> OutOfMemory:
        free, total = self.gpu.memory()
        held = sorted(self.held().items(), key=lambda item: -item[1])
        told = ", ".join(f"{kind} {_size(n)}" for kind, n in held[:4]) or "nothing"
        others = total - free - sum(n for _, n in held)
        if others > total // 50:
            told += f"; {_size(others)} are held by others"
        return OutOfMemory(
            f"cuda:{self.gpu.ordinal} is out of memory: {_size(nbytes)} are wanted"
            f"{f' for {what}' if what else ''}, {_size(free)} of {_size(total)} are free; "
            f"this program holds: {told}",
            hint=Wording.any_of(
                ("use a smaller batch",),
                (Argument("alloc", "reuse"),),
                (Argument("fallback", "cpu"), " to go on without the GPU"),
            ),
        )


def _size(nbytes: int) -> str:
    if nbytes < 1 << 20:
        return f"{nbytes / 2**10:.3g} KiB"
    return f"{nbytes / 2**30:.3g} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.3g} MiB"


def _give_back(gpu: Gpu, address: int, stream: Any) -> None:
    """All work that used it is done: a run ends with all its streams idle."""
    with suppress(DeviceError):
        gpu.enter().cuMemFreeAsync(address, stream)


class _Lane:
    """Two pinned buffers for copies in one direction, in turn."""

    def __init__(self, gpu: Gpu):
        self.lock = threading.Lock()
        driver = gpu.enter()
        self.stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.address = int(driver.cuMemHostAlloc(2 * STAGE, 0))
        buffer = (ctypes.c_uint8 * (2 * STAGE)).from_address(self.address)
        self.bytes = np.frombuffer(buffer, np.uint8)  # pyright: ignore
        flag = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.events = [driver.cuEventCreate(flag) for _ in range(2)]


class Staging:
    """Copies between arrays and a GPU, by pinned buffers. One thread at a time writes, and one
    reads: who waits for a result does not wait for the next batch.
    """

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self._there, self._back = _Lane(gpu), _Lane(gpu)
        self._spare: list[np.ndarray] = []  # pinned words that nobody has

    def pinned(self, words: int) -> np.ndarray:
        """i64 words of the host that the GPU reads and writes in place; they live as long as the
        process.
        """
        address = int(self.gpu.enter().cuMemHostAlloc(8 * words, 0))
        return np.frombuffer((ctypes.c_int64 * words).from_address(address), np.int64)  # pyright: ignore

    def lent(self, words: int) -> np.ndarray:
        """`pinned` zeros that others get when nobody has them any more."""
        fits = next((k for k, array in enumerate(self._spare) if array.size >= words), None)
        whole = self.pinned(max(words, LENT)) if fits is None else self._spare.pop(fits)
        whole[...] = 0
        part = (ctypes.c_int64 * words).from_address(whole.ctypes.data)
        weakref.finalize(part, self._spare.append, whole).atexit = False
        return np.frombuffer(part, np.int64)  # pyright: ignore

    def write(self, array: np.ndarray, target: int) -> None:
        """The array's bytes to the GPU; returns when they are there."""
        flat, lane = np.ascontiguousarray(array).reshape(-1).view(np.uint8), self._there
        with lane.lock:
            driver = self.gpu.enter()
            for turn, start, count in _chunks(flat.nbytes):
                place = turn % 2 * STAGE
                if turn >= 2:
                    driver.cuEventSynchronize(lane.events[turn % 2])
                lane.bytes[place : place + count] = flat[start : start + count]
                driver.cuMemcpyHtoDAsync(target + start, lane.address + place, count, lane.stream)
                driver.cuEventRecord(lane.events[turn % 2], lane.stream)
            driver.cuStreamSynchronize(lane.stream)

    def read(self, source: int, flat: np.ndarray) -> None:
        """Bytes of the GPU into `flat`, a row of bytes."""
        lane = self._back
        with lane.lock:
            driver = self.gpu.enter()
            chunks = list(_chunks(flat.nbytes))
            for turn, start, count in chunks[:1]:
                _fetch(driver, lane, turn, source + start, count)
            for turn, start, count in chunks:
                if turn + 1 < len(chunks):
                    _, next_start, next_count = chunks[turn + 1]
                    _fetch(driver, lane, turn + 1, source + next_start, next_count)
                driver.cuEventSynchronize(lane.events[turn % 2])
                place = turn % 2 * STAGE
                flat[start : start + count] = lane.bytes[place : place + count]


def _fetch(driver: Driver, lane: _Lane, turn: int, source: int, count: int) -> None:
    place = lane.address + turn % 2 * STAGE
    driver.cuMemcpyDtoHAsync(place, source, count, lane.stream)
    driver.cuEventRecord(lane.events[turn % 2], lane.stream)


def _chunks(nbytes: int) -> Iterator[tuple[int, int, int]]:
    for turn, start in enumerate(range(0, nbytes, STAGE)):
        yield turn, start, min(STAGE, nbytes - start)


class Constants:
    """Tuples of integers on the GPU, each once: shapes and strides that kernels look up."""

    def __init__(self, pool: Pool, staging: Staging):
        self._pool = pool
        self._staging = staging
        self._slabs: list[CudaMemory] = []
        self._used = SLAB
        self._places: dict[tuple[int, ...], int] = {}

    def place(self, numbers: tuple[int, ...]) -> int:
        """The address of the numbers, each an i64."""
        if numbers not in self._places:
            words = np.array(numbers, np.int64)
            if self._used + words.nbytes > SLAB:
                self._slabs.append(self._pool.alloc(max(SLAB, words.nbytes), "constants"))
                self._used = 0
            address = self._slabs[-1].address + self._used
            self._used += -(-words.nbytes // 16) * 16
            self._staging.write(words, address)
            self._places[numbers] = address
        return self._places[numbers]
