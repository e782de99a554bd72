"""Statistics of small tensors that share memory of their own, by one launch for all of a type.

A tensor that a group of ops computes may have no memory, and its statistics within the group's
kernel would take longer than a small group. So the kernel writes it here as well. How a tensor is
cut into blocks depends on its size alone, and so do the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.cuda.recording.merging import ROWS, THREADS
from opstep.runtime.device.cuda.recording.statistics import (
    as_numbers,
    blocks_for,
    span_for,
    stretch_accumulator,
)
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.op import AttrSpec, OperandSpec, Traits
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.internal import PlanOp

ROOM = 32 << 20  # bytes: what was written is read again while a cache holds it
_ALIGNMENT = 256  # bytes, of each tensor
_ENTRY = 6  # numbers of a tensor: see `table_of`


class Packed(NamedTuple):
    """A tensor: where it is in the memory that they share, in bytes; `first`: where what its blocks
    leave begins, in blocks.
    """

    dtype: DType
    size: int
    at: int
    first: int


class Packing:
    """Which tensors are there. `room`: bytes."""

    def __init__(self, room: int):
        self.room = room
        self.waiting: list[Packed] = []
        self._used = 0

    def fits(self, types: Sequence[TensorType]) -> bool:
        return self._used + sum(map(padded, types)) <= self.room

    def place(self, t: TensorType, first: int) -> int:
        """Where a tensor goes; `first` as in `Packed`."""
        at = self._used
        self._used += padded(t)
        self.waiting.append(Packed(t.dtype, _size(t), at, first))
        return at

    def taken(self) -> dict[DType, list[Packed]]:
        """All that is there, by type; then nothing is."""
        found: dict[DType, list[Packed]] = {}
        for tensor in self.waiting:
            found.setdefault(tensor.dtype, []).append(tensor)
        self.waiting, self._used = [], 0
        return found


def padded(t: TensorType) -> int:
    """The bytes that it takes here."""
    nbytes = _size(t) * t.dtype.itemsize
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _size(t: TensorType) -> int:
    return t.size  # pyright: ignore[reportReturnType] - concrete


def table_of(tensors: Sequence[Packed]) -> tuple[int, ...]:
    """What `accumulate_packed` is told of each: the first block of the launch that takes it, how
    many do, its elements, those of a block, the first element, where what the blocks leave begins.
    """
    table: list[int] = []
    blocks = 0
    for p in tensors:
        own = blocks_for(p.size)
        table += [blocks, own, p.size, span_for(p.size), p.at // p.dtype.itemsize, p.first]
        blocks += own
    return tuple(table)


class accumulate_packed(PlanOp):
    """Counts and moments of tensors that lie in `x`, block by block."""

    name = "accumulate_packed"
    operands = (OperandSpec("x", "T", "T", False, False),)
    attrs = (AttrSpec("table", "ints", True, None),)
    results = ("counts", "moments", "limits")
    traits = Traits(moves=True)

    def cuda(x: Arg, *left: Arg, table: tuple[int, ...]) -> Grid:  # pyright: ignore
        count = len(table) // _ENTRY
        grid = table[-_ENTRY] + table[1 - _ENTRY]
        return Grid(
            packed_kernel(x.dtype), as_numbers(x), x, *left, table, count,
            grid=grid, block=THREADS, blocks=3,
        )  # fmt: skip


@cache
def packed_kernel(dtype: DType):
    add_stretch = stretch_accumulator(dtype)

    def accumulate(x, raw, counts, moments, limits, table, count):
        block = np.int64(cuda.blockIdx.x)
        low, high = 0, count  # the block's tensor is the last that begins at or before it
        while high - low > 1:
            middle = (low + high) // 2
            if table[middle * _ENTRY] <= block:
                low = middle
            else:
                high = middle
        at = low * _ENTRY
        blocks, size, span = table[at + 1], table[at + 2], table[at + 3]
        place, first = table[at + 4], table[at + 5]
        add_stretch(
            offset(x, place), offset(raw, place), 1, offset(counts, ROWS * first),
            offset(moments, 2 * first), offset(limits, 3 * first), size, span, 0,
            block - table[at], blocks,
        )  # fmt: skip

    kernel = pinned("f64")(accumulate)
    kernel.__name__ = f"statistics of packed {dtype.name} tensors"
    return kernel
