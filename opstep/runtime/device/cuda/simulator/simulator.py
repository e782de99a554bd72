"""Runs CUDA kernels without a GPU, thread by thread, with the parts of numba's simulator.

A kernel sees pointers that know how much memory they point to, so what reads or writes beyond it
raises `IndexError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from random import Random
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from opstep.runtime.device import source
from opstep.runtime.device.cuda.compiling import names
from opstep.runtime.device.cuda.compiling.compiler import CUDA, entry
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator.simulated_thread import Three, places
from opstep.runtime.device.launch import with_rest
from opstep.runtime.device.payload import payload
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import text_of
from opstep.runtime.ir.types import DTYPES, DType


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

    def _index(self, index: int, count: int = 1) -> int:
        place = self.start + int(index)
        if not 0 <= place <= len(self.array) - count:
            at = f"{place} to {place + count - 1}" if count > 1 else f"{place}"
            raise IndexError(f"element {at} of memory of {len(self.array)} elements")
        return place

    def __getitem__(self, index: int) -> Any:
        return self._read(self.array[self._index(index)])

    def _read(self, stored: Any) -> Any:
        """As numba has it: arithmetic of integers is that of 64 bits."""
        found = self.seen.type(stored)
        return np.int64(found) if self.seen.kind == "i" else found

    def __setitem__(self, index: int, value: Any) -> None:
        self._write(self._index(index), value)

    def _write(self, place: int, value: Any) -> None:
        seen, stored = self.seen, self.array.dtype
        if seen.kind == "i":
            value = np.int64(value)
        elif seen.kind == "u":
            value = int(value) & _mask(seen)
        made = seen.type(value)
        self.array[place] = made.astype(stored) if stored.kind in "iu" and stored != seen else made

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
        return self._index(index, count)

    def load(self, index: int, count: int) -> tuple:
        place = self.vector_place(index, count)
        found = self.array[place : place + count].astype(self.seen)
        return tuple(found.astype(np.int64) if self.seen.kind == "i" else found)

    def store(self, index: int, values: tuple, count: int) -> None:
        place = self.vector_place(index, count)
        if self.seen.kind == "f" and self.array.dtype.kind not in "iu":
            self.array[place : place + len(values)] = np.array(values, self.seen)
            return
        for k, value in enumerate(values):
            self._write(place + k, value)


def _mask(dtype: np.dtype) -> int:
    return (1 << 8 * dtype.itemsize) - 1


class Simulated:
    """A target: plain functions, in which `cuda` is what is given here. Texts of kernels that were
    written by code are put into `folder`, where debuggers find them.
    """

    body = CUDA.body

    def __init__(self, cuda: Any, folder: Path | None = None):
        self.cuda = cuda
        self.folder = folder
        self._callees: dict[tuple[FunctionType, str], FunctionType] = {}

    def callee(self, function: FunctionType, dtype: DType) -> FunctionType:
        dtype = source.dtype_within(function, dtype)
        key = (function, dtype.name)
        if key not in self._callees:
            made = source.specialise(function, dtype, self)
            text = text_of(function.__code__)
            if text is not None and self.folder is not None:
                path = self.folder / f"{function.__name__}.py"
                path.write_text(text, encoding="utf-8")
                made.__code__ = made.__code__.replace(co_filename=str(path))
            self._callees[key] = made
        return self._callees[key]

    def value(self, value: Any, dtype: DType) -> Any:
        if value is names.cuda:
            return self.cuda
        return value_of(value, dtype)


def value_of(value: Any, dtype: DType) -> Any:
    """What stands in plain Python for what a kernel names. Raises `AttributeError` or
    `NotImplementedError` where nothing does.
    """
    if isinstance(value, Intrinsic):
        from opstep.runtime.device.cuda.simulator import (
            simulated,
            simulated_scores,
            simulated_tiles,
        )

        for module in (simulated, simulated_tiles):
            if value.name in vars(module):
                return vars(module)[value.name](*value.shape)
        return getattr(simulated_scores, value.name)(*value.shape)
    if isinstance(value, names.Real):
        return np.float64 if dtype.name == "f64" else np.float32
    if value is math or (isinstance(value, BuiltinFunctionType) and value.__module__ == "math"):
        from opstep.runtime.device.cuda.simulator import simulated_math

        return simulated_math if value is math else getattr(simulated_math, value.__name__)
    return value


Adapt = Callable[[tuple], tuple]  # from a kernel's arguments to what it gets


def run(
    prepared: Prepared, memory: Sequence[np.ndarray | None], workspace: np.ndarray,
    blocks: Iterable[Three] | None = None, seen: Adapt = tuple,
) -> None:  # fmt: skip
    """One launch over operands and results given as flat arrays, block by block; with `blocks` only
    these.
    """
    from opstep.runtime.device.cuda.simulator.simulated_block import Cuda, take_turns

    kernel, cuda = prepared.kernel, Cuda(prepared)
    args = seen(arguments(prepared, memory, workspace))
    if kernel.per_unit:
        args = (*args, prepared.words[-1])
    made, order = entry(kernel, Simulated(cuda)), Random(0)
    for block in places(prepared.grid) if blocks is None else blocks:
        cuda.begin_block()
        take_turns(prepared, made, args, block, order)


def arguments(prepared: Prepared, memory: Sequence, workspace: np.ndarray) -> tuple:
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
    return with_rest(prepared.kernel.function, tuple(args))


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
