"""From an op's launches to argument words: what is left to fill in are addresses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from opstep.runtime.device import foreign, ranks
from opstep.runtime.device.convert import conversion
from opstep.runtime.device.cpu import internal, jit, native
from opstep.runtime.device.cpu.following import Span
from opstep.runtime.device.launch import Arg, Clamp, Launch, Scratch, Tiles, shared_by
from opstep.runtime.device.routine import PreparedCall
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import DType, TensorType, f32, i64
from opstep.runtime.plan.plan import Step

ALIGNMENT = 64  # bytes, of every buffer and every scratch


class Prepared:
    """A launch without addresses: its argument words, and which of them are which operand's
    pointer. It is compiled when `entry` is asked for.
    """

    __slots__ = (
        *("_arrays", "_entry", "clamp", "each", "extents", "grain", "kernel", "limits", "slots"),
        *("tiles", "units", "words", "workspace", "written"),
    )

    def __init__(self, kernel: jit.Kernel, words, slots, workspace, arrays, units, grain):
        self.kernel = kernel
        self._entry = 0
        self.words = words
        self.slots = slots  # [(word, operand or result)]
        self.workspace = workspace  # [(word, offset)]
        self._arrays = arrays  # those whose addresses stand in the words
        self.units = units
        self.grain = grain
        self.tiles: Tiles | None = None  # as in `Launch`; with `each`, and what says if that holds:
        self.each = False
        self.clamp: Clamp | None = None
        self.limits = -1  # the word that says how results are clamped, if the kernel can do it
        self.extents: list[tuple[int, int, int]] = []  # [(word, bytes there, of an element)]
        self.written: list[int] = []  # words of results

    @property
    def entry(self) -> int:
        self._entry = self._entry or self.kernel.address()
        return self._entry

    def bound(self, addresses: list[int], workspace: int) -> Bound:
        return Bound(self, addresses, workspace)


class Bound:
    """A launch with addresses: a row of a table."""

    __slots__ = ("_limits", "_words", "prepared", "row")

    def __init__(self, prepared: Prepared, addresses: list[int], workspace: int):
        words = prepared.words.copy()
        for word, slot in prepared.slots:
            words[word] = addresses[slot]
        for word, offset in prepared.workspace:
            words[word] = workspace + offset
        self._words = words
        self.prepared = prepared
        self.row = (prepared.entry, words.ctypes.data, prepared.units, prepared.grain)

    def limit(self, clamp: Clamp) -> None:
        """Has the kernel clamp what it writes, from now on."""
        self._limits = np.array([1, *np.array(clamp, np.float64).view(np.int64)])
        self._words[self.prepared.limits] = self._limits.ctypes.data

    def spans(self) -> Iterator[tuple[int, Span]]:
        """The memory of each operand, result and scratch, with its word."""
        for word, nbytes, size in self.prepared.extents:
            first = int(self._words[word])
            yield word, Span(first, first + nbytes, size)

    def pointers(self, slot: int) -> list[Callable[[int], None]]:
        return setters(self._words, self.prepared.slots, slot)


def setters(
    words: np.ndarray, slots: Sequence[tuple[int, int]], slot: int
) -> list[Callable[[int], None]]:
    """Functions that set the words with the address of an operand or result."""
    view: Any = words.data  # quicker to set than an array
    return [partial(view.__setitem__, word) for word, s in slots if s == slot]


class Lowering:
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
        self.used: dict[int, int] = {}  # id of a Scratch -> lanes that may use it

    def prepared(self) -> tuple[list[Prepared | PreparedCall], int]:
        op, count = self.step.op, len(self.step.operand_types)
        if op.traits.foreign:
            return [foreign.prepared(self.step, self.types, on_gpu=False)], 0
        if self.step.is_joined:
            return [ranks.prepared(self.step, self.types)], 0
        before: list[Launch] = []
        after: list[Launch] = []
        operands = [
            self._operand(k, stored, seen, before)
            for k, (stored, seen) in enumerate(
                zip(self.types[:count], self.step.operand_types, strict=True)
            )
        ]
        types = [t for t in self.types[count:] if t is not None]  # results are never absent
        results = [self._result(count + k, t, after) for k, t in enumerate(types)]
        cpu = internal.CPU.get(op.name) or op.cpu
        with shared_by(self.lanes):
            requested = cpu(*operands, *results, **self.step.attrs)
            requested = [requested] if isinstance(requested, Launch) else list(requested)
        launches = before + requested + after
        for launch in launches:
            for a in (a for a in launch.args if isinstance(a, Scratch) and a.per_lane):
                lanes = native.lanes_of(launch.units, launch.grain, self.lanes)
                self.used[id(a)] = max(lanes, self.used.get(id(a), 1))
        made: list[Prepared | PreparedCall] = [self._lower(n) for n in launches if n.units > 0]
        return made, self.size

    def _computed_type(self, t: TensorType) -> TensorType:
        op = self.step.op
        return t if op.traits.as_stored else t.with_dtype(op.computed(t.dtype))

    def _temporary(self, size: int) -> Arg:
        scratch = Scratch(f32, size)
        self._offset_of(scratch)
        return Staged(TensorType(f32, (size,)), scratch)

    def _operand(self, k: int, stored: TensorType | None, computed: TensorType | None, before):
        if stored is None or computed is None:
            return None
        computed = self._computed_type(computed)
        arg = Arg(stored, k)
        if computed.dtype is stored.dtype:
            return arg
        staged = Staged(computed, Scratch(computed.dtype, arg.size))
        before += conversion(arg, staged, self._temporary)
        return staged

    def _result(self, slot: int, t: TensorType, after) -> Arg:
        computed = self._computed_type(t)
        if computed.dtype is t.dtype:
            return Arg(t, slot)
        arg = Arg(t, slot)
        staged = Staged(computed, Scratch(computed.dtype, arg.size))
        after += conversion(staged, arg, self._temporary)
        return staged

    def _offset_of(self, scratch: Scratch) -> int:
        """The scratch's offset in the workspace."""
        if id(scratch) not in self.places:
            self.places[id(scratch)] = self.size
            self.keep.append(scratch)
            nbytes = self._nbytes(scratch)
            self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self.places[id(scratch)]

    def _nbytes(self, scratch: Scratch) -> int:
        return scratch.size * scratch.dtype.itemsize * self.used.get(id(scratch), 1)

    def _lower(self, launch: Launch) -> Prepared:
        signature: list[str] = []
        words: list[int] = []
        slots: list[tuple[int, int]] = []
        workspace: list[tuple[int, int]] = []
        arrays: list[np.ndarray] = []
        extents: list[tuple[int, int, int]] = []
        for k, a in enumerate(launch.args):
            value = 0
            if isinstance(a, Staged):
                a = a.scratch
            if isinstance(a, Arg):
                slots.append((k, a.slot))
                extents.append((k, a.size * a.dtype.itemsize, a.dtype.itemsize))
                signature.append(f"*{a.dtype.name}")
            elif isinstance(a, Scratch):
                workspace.append((k, self._offset_of(a)))
                extents.append((k, self._nbytes(a), a.dtype.itemsize))
                signature.append(f"*{a.dtype.name}")
            elif isinstance(a, tuple):
                arrays.append(_words(a))
                value = arrays[-1].ctypes.data
                signature.append("*i64")
            elif isinstance(a, float):
                value = struct.unpack("<q", struct.pack("<d", a))[0]
                signature.append("f")
            else:
                value = int(a)
                signature.append("i")
            words.append(value)
        dtype = _kernel_dtype(launch)
        kernel = jit.Kernel(launch.kernel, tuple(signature), dtype, distinct=True)
        made = Prepared(kernel, _words(words), slots, workspace, arrays, launch.units, launch.grain)
        made.tiles, made.each, made.extents = launch.tiles, launch.each, extents
        made.clamp = launch.clamp
        if launch.clamps:
            made.limits = len(launch.args) - 1
        made.written = [word for word, slot in slots if slot >= len(self.step.operand_types)]
        return made


class Staged(Arg):
    """An operand or result that stands in the workspace in the type that the kernel sees."""

    __slots__ = ("scratch",)

    def __init__(self, t: TensorType, scratch: Scratch):
        super().__init__(t, -1)
        self.scratch = scratch


def _words(values: Sequence[int]) -> np.ndarray:
    """As 64-bit words, one at least; raises Mismatch where one does not fit."""
    try:
        return np.array(values or (0,), np.int64)
    except OverflowError:
        raise Mismatch("a size or an attribute does not fit 64 bits") from None


def _kernel_dtype(launch: Launch) -> DType:
    pointers = [a.dtype for a in launch.args if isinstance(a, (Arg, Scratch))]
    floating = [t for t in pointers if t.is_float]
    return (floating or pointers or [i64])[0]
