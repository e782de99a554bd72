"""Runs CUDA kernels without a GPU, thread by thread, in numba's simulator.

It is there if `NUMBA_ENABLE_CUDASIM=1` was set before numba was imported. A kernel sees pointers
that know how much memory they point to, so what reads or writes beyond it raises `IndexError`.
"""

from __future__ import annotations

import math
import struct
import warnings
from functools import cache
from math import prod
from types import FunctionType
from typing import Any

import numpy as np

from opstep.runtime.device import source
from opstep.runtime.device.cuda.compiler import CUDA, entry
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.names import Deferred, Real
from opstep.runtime.device.payload import payload
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DTYPES, DType


def available() -> bool:
    """Whether this process runs CUDA kernels in the simulator."""
    from numba.core import config

    return bool(getattr(config, "ENABLE_CUDASIM", False))


class Pointer:
    """Elements of `array` (one axis, as stored), seen as another dtype, from `start` on."""

    __slots__ = ("array", "seen", "start")

    def __init__(self, array: np.ndarray, seen: np.dtype, start: int = 0):
        self.array = array
        self.seen = seen
        self.start = start

    def __repr__(self) -> str:
        """What a debugger shows of a kernel's argument."""
        first = ", ".join(str(x) for x in self.array[self.start : self.start + 4])
        left = max(len(self.array) - self.start, 0)
        seen = next((t.name for t in DTYPES.values() if t.numpy == self.seen), self.seen.name)
        return f"{seen}[{left}]: {first}{', …' if left > 4 else ''}"

    def _place(self, index: int, count: int = 1) -> int:
        place = self.start + int(index)
        if not 0 <= place <= len(self.array) - count:
            at = f"{place} to {place + count - 1}" if count > 1 else f"{place}"
            raise IndexError(f"element {at} of memory of {len(self.array)} elements")
        return place

    def __getitem__(self, index: int) -> Any:
        return self._read(self.array[self._place(index)])

    def _read(self, stored: Any) -> Any:
        """As numba has it: arithmetic of integers is that of 64 bits."""
        found = self.seen.type(stored)
        return np.int64(found) if self.seen.kind == "i" else found

    def __setitem__(self, index: int, value: Any) -> None:
        place = self._place(index)
        if self.seen.kind in "iu":
            value = np.int64(value) if self.seen.kind == "i" else int(value) & _mask(self.seen)
        self.array[place] = np.asarray(value).astype(self.seen).astype(self.array.dtype)

    def moved(self, count: int) -> Pointer:
        return Pointer(self.array, self.seen, self.start + int(count))

    def as_stored(self) -> Pointer:
        """To the same elements, seen as they are stored; those of two bytes as their bits."""
        array = self.array.view(np.uint16) if self.array.itemsize == 2 else self.array
        return Pointer(array, array.dtype, self.start)

    def vector_place(self, index: int, count: int) -> int:
        """Where in the array a vector begins."""
        if (self.start + int(index)) % count:
            raise IndexError(f"a vector of {count} at element {self.start + int(index)}")
        return self._place(index, count)

    def load(self, index: int, count: int) -> tuple:
        place = self.vector_place(index, count)
        return tuple(map(self._read, self.array[place : place + count]))

    def store(self, index: int, values: tuple, count: int) -> None:
        self.vector_place(index, count)
        for k, value in enumerate(values):
            self[int(index) + k] = value


def _mask(dtype: np.dtype) -> int:
    return (1 << 8 * dtype.itemsize) - 1


class _Simulator:
    """The target: plain Python, with numba.cuda's simulated threads."""

    body = CUDA.body

    def callee(self, function: FunctionType, dtype: DType) -> Any:
        return _callee(function, source.dtype_within(function, dtype))

    def value(self, value: Any, dtype: DType) -> Any:
        if isinstance(value, Intrinsic):
            from opstep.runtime.device.cuda import simulated, simulated_tiles

            made = getattr(simulated, value.name, None) or getattr(simulated_tiles, value.name)
            return made(*value.shape)
        if isinstance(value, Deferred):
            return value.load()
        if isinstance(value, Real):
            return np.float64 if dtype.name == "f64" else np.float32
        if value is math:
            from opstep.runtime.device.cuda import simulated_math

            return simulated_math
        return value


SIMULATOR = _Simulator()


@cache
def _callee(function: FunctionType, dtype: DType) -> Any:
    from numba import cuda

    return cuda.jit(device=True)(source.specialise(function, dtype, SIMULATOR))


def run(prepared: Prepared, memory: list[np.ndarray | None], workspace: np.ndarray) -> None:
    """One launch over operands and results given as flat arrays."""
    from numba import cuda

    kernel = prepared.kernel
    args = arguments(prepared, memory, workspace)
    if kernel.per_unit:
        args = (*args, prepared.words[-1])
    made: Any = cuda.jit(entry(kernel, SIMULATOR))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what floats do, they do on a GPU silently
        made[prepared.grid, prepared.block, 0, prepared.shared](*args)


def arguments(prepared: Prepared, memory: list, workspace: np.ndarray) -> tuple:
    """What a kernel is called with, for operands and results given as flat arrays of bytes."""
    slots, tuples = dict(prepared.slots), dict(prepared.tuples)
    places = dict(prepared.workspace)
    args: list[Any] = []
    for k, kind in enumerate(prepared.kernel.signature):
        word = prepared.words[k]
        if kind == "i":
            args.append(word)
        elif kind == "f":
            args.append(_real(word, prepared.kernel.dtype))
        elif k in tuples:
            args.append(Pointer(np.array(tuples[k], np.int64), np.dtype(np.int64)))
        else:
            stored, _, seen = kind[1:].partition(":")
            seen_as = np.dtype(_NUMPY.get(seen or stored) or DTYPES[seen or stored].numpy)
            stored_as = np.dtype(DTYPES[stored].numpy) if seen else seen_as
            if k in slots:
                array = memory[slots[k]]
                args.append(None if array is None else Pointer(array.view(stored_as), seen_as))
            else:
                start = places[k]
                flat = workspace[start : len(workspace) // 8 * 8]
                args.append(Pointer(flat.view(stored_as), seen_as))
    return tuple(args)


_NUMPY = {"f16": np.uint16, "bf16": np.uint16, "bool": np.uint8}  # halves that are only moved


def _real(word: int, dtype: DType):
    if dtype.name == "f64":
        return struct.unpack("<d", struct.pack("<q", word))[0]
    return np.float32(struct.unpack("<f", struct.pack("<q", word)[:4])[0])


def execute(op, arrays: list, attrs: dict) -> list[np.ndarray]:
    """Runs one op on NumPy arrays (None for an absent operand) in the simulator; attributes
    complete. Like `cpu.execute`, for tests.
    """
    from opstep.runtime.device.single import one_step

    step, stored, types = one_step(op, arrays, attrs)
    launches, size = Lowering(step, (*stored, *types)).prepared()
    memory: list[np.ndarray | None] = [
        None if a is None else np.ascontiguousarray(a).reshape(-1).copy() for a in arrays
    ]
    memory += [None] * (len(stored) - len(memory))
    results = []
    for t in types:
        shape: Any = t.shape
        filled = np.full(prod(shape), payload(t.dtype)).view(t.dtype.numpy)
        results.append(filled.reshape(shape))
        memory.append(filled)
    flat = [None if a is None else a.view(np.uint8) for a in memory]
    workspace = np.full(size + 8, 0xFF, np.uint8)
    for launch in launches:
        assert isinstance(launch, Prepared), "libraries have no simulator"
        run(launch, flat, workspace)
    return results
