"""Statistics of several tensors by one launch: on a GPU a launch costs more than a small tensor.

A tensor waits until others are there, until something is about to be written over it, or until a
launch of its stream ends. What the blocks of all those tensors leave is put together by one launch
at the end, with that of tensors whose statistics a group of ops takes, or which it writes to memory
that they share (`packing`). How a tensor is cut into blocks depends on its size alone, and so do
the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.cuda.recording.merging import ROWS, THREADS, WARPS, merge
from opstep.runtime.device.cuda.recording.packing import Packing, accumulate_packed, table_of
from opstep.runtime.device.cuda.recording.statistics import (
    MOST,
    as_numbers,
    blocks_for,
    pattern_of,
    span_for,
    stretch_accumulator,
)
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.protocols import Device
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.op import AttrSpec, Op, OperandSpec, Traits
from opstep.runtime.ir.types import DType, TensorType, f64, i32, i64
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.plan.plan import Step
from opstep.runtime.statistics import ENABLED, WORDS

TOGETHER = 4  # tensors of one launch
HELD = 64 * MOST  # blocks whose counts are held until they are put together
_ENTRY = 5  # numbers of a tensor: first block, blocks, elements, filled + 2 * floating, record


def gathers(t: TensorType) -> bool:
    """Whether the statistics of such a tensor are taken with others'; f64 is looked at twice."""
    return t.dtype is not f64


class Gathering:
    """The statistics of a stream: tensors of these types, in any order. `out`: the address of their
    records; `room`: bytes of the memory that small tensors share.
    """

    def __init__(
        self, device: Device, types: Sequence[TensorType], enabled: int, out: int, filled: bool,
        room: int = 0,
    ):  # fmt: skip
        self._device = device
        self._enabled, self._out = enabled, out
        self._filled = filled
        self._waiting: list[tuple[int, TensorType, int]] = []  # address, type, place of its record
        self._table: list[int] = []
        self._used = 0  # blocks
        self._held = min(HELD, sum(blocks_for(_size(t)) for t in types if gathers(t)))
        self._types = left_by(self._held)
        self._records = TensorType(i64, (len(types) * WORDS,))
        self._memory = [device.alloc(t.nbytes, "statistics") for t in self._types if self._held]
        self._packing = Packing(room)
        self._packed = device.alloc(room, "statistics") if room else None

    def add(self, address: int, t: TensorType, index: int) -> list[Any]:
        """Launches that have to come behind what gives the tensor, but not at once."""
        made = self._room([t])
        self._waiting.append((address, t, index))
        same = [w for w in self._waiting if w[1].dtype is t.dtype]
        return made + (self._launches_of(same) if len(same) == TOGETHER else [])

    def of_group(
        self, within: Sequence[tuple[TensorType, int]], packed: Sequence[tuple[TensorType, int]]
    ) -> tuple[list[Any], list[tuple[TensorType, int]], list[int]]:
        """Of tensors, with the places of their records, whose statistics a group's kernel takes,
        and of those that it writes to memory that they share: launches that have to come before it;
        what the kernel leaves, type and address; where it writes the others.
        """
        types = [t for t, _ in (*within, *packed)]
        if not types:
            return [], [], []
        made = self._room(types)
        if not self._packing.fits([t for t, _ in packed]):
            made += self._launches_of_packed()
        left = list(zip(self._types, self._left(self._used), strict=True))
        for t, index in within:
            self._enter(t, index, filled=False)
        places = []
        for t, index in packed:
            assert self._packed is not None  # there is room for those of one group at least
            places.append(self._packed.address + self._packing.place(t, self._used))
            self._enter(t, index, filled=False)
        return made, left, places

    def before(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """What has to come before something is written to these addresses."""
        ends = [(a, a + _size(t) * t.dtype.itemsize) for a, t, _ in self._waiting]
        if any(a < end and start < b for a, b in ends for start, end in ranges):
            return self.flush()
        return []

    def flush(self, packed: bool = True) -> list[Any]:
        """All that waits. `packed`: what no one else writes over, too."""
        made = self._launches_of_packed() if packed else []
        while self._waiting:
            dtype = self._waiting[0][1].dtype
            made += self._launches_of([w for w in self._waiting if w[1].dtype is dtype])
        return made

    def merge(self) -> list[Any]:
        """Puts together what was taken; what is taken then begins anew."""
        if not self._table:
            return []
        table, self._table, self._used = tuple(self._table), [], 0
        step, types = step_of(merge_several, [ENABLED, *self._types], [self._records], table=table)
        return self._bound(step, types, [self._enabled, *self._left(0), self._out])

    def _room(self, types: Sequence[TensorType]) -> list[Any]:
        """What has to be launched so that there is room for what these leave."""
        waiting = (t for _, t, _ in self._waiting)
        if self._used + sum(blocks_for(_size(t)) for t in (*waiting, *types)) > self._held:
            made = [*self.flush(), *self.merge()]
            assert sum(blocks_for(_size(t)) for t in types) <= self._held  # at most 792 of each
            return made
        return []

    def _enter(self, t: TensorType, index: int, filled: bool) -> None:
        """From now on the next blocks are those of this tensor."""
        blocks, kind = blocks_for(_size(t)), filled + 2 * t.dtype.is_float
        self._table += [self._used, blocks, _size(t), kind, index]
        self._used += blocks

    def _left(self, first: int) -> list[int]:
        """The addresses of what the blocks leave, from that one on."""
        return [
            memory.address + n * first * t.dtype.itemsize
            for memory, t, n in zip(self._memory, self._types, (ROWS, 2, 3), strict=True)
        ]

    def _launches_of_packed(self) -> list[Any]:
        made = []
        for dtype, tensors in self._packing.taken().items():
            whole = TensorType(dtype, (self._packing.room // dtype.itemsize,))
            step, types = step_of(accumulate_packed, [whole], self._types, table=table_of(tensors))
            assert self._packed is not None
            made += self._bound(step, types, [self._packed.address, *self._left(0)])
        return made

    def _launches_of(self, tensors: Sequence[tuple[int, TensorType, int]]) -> list[Any]:
        """Of one dtype, and not more than `TOGETHER`."""
        self._waiting = [w for w in self._waiting if w not in tensors]
        first, dtype = self._used, tensors[0][1].dtype
        filled = self._filled and dtype.is_float
        for _, t, index in tensors:
            self._enter(t, index, filled)
        padded = [*tensors, *[tensors[0]] * (TOGETHER - len(tensors))]
        step, types = step_of(
            accumulate_several, [*(t for _, t, _ in padded), ENABLED], self._types,
            count=len(tensors), filled=filled,
        )  # fmt: skip
        return self._bound(
            step, types, [*(a for a, _, _ in padded), self._enabled, *self._left(first)]
        )

    def _bound(self, step: Step, types: Any, addresses: list[int]) -> list[Any]:
        launches, _ = self._device.prepare(step, types)
        return self._device.bind(launches, addresses, 0)


def _size(t: TensorType) -> int:
    return t.size  # pyright: ignore[reportReturnType] - concrete


def left_by(blocks: int) -> list[TensorType]:
    """What so many blocks leave: counts, moments, and what is whole."""
    return [TensorType(t, (n * blocks,)) for t, n in ((i32, ROWS), (f64, 2), (i64, 3))]


def step_of(op: type[Op], operands: list, results: list, **attrs: Any) -> tuple[Step, tuple]:
    """A step, of no plan, and the types that a device needs to prepare it."""
    statement = Apply((), Name(op.name, NOWHERE), ())
    return Step(op, (), (), tuple(operands), attrs, 0, statement), (*operands, *results)


# --- kernels --------------------------------------------------------------------------------------


class accumulate_several(PlanOp):
    """Counts and moments of `count` of the tensors, block by block."""

    name = "accumulate_several"
    operands = (
        *(OperandSpec(f"x{k}", "T", "T", False, False) for k in range(TOGETHER)),
        OperandSpec("enabled", "I", "I", False, False),
    )
    attrs = (AttrSpec("count", "int", True, None), AttrSpec("filled", "bool", True, None))
    results = ("counts", "moments", "limits")
    traits = Traits(moves=True)

    def cuda(*args: Arg, count: int, filled: bool) -> Grid:  # pyright: ignore
        xs, rest = args[:TOGETHER], args[TOGETHER:]
        sizes = [x.size for x in xs]
        blocks = [blocks_for(size) for size in sizes]
        starts = [sum(blocks[: min(k, count)]) for k in range(1, TOGETHER)]
        dtype = xs[0].dtype
        return Grid(
            tensors_kernel(dtype), *map(as_numbers, xs), *xs, *rest, *starts, *sizes,
            *map(span_for, sizes), *blocks, pattern_of(dtype, filled),
            grid=sum(blocks[:count]), block=THREADS, blocks=3,
        )  # fmt: skip


@cache
def tensors_kernel(dtype: DType):
    """The kernel whose blocks belong to one tensor after the other: those of the second begin at
    block `start1`.
    """
    add_stretch = stretch_accumulator(dtype)

    def accumulate(
        x0, x1, x2, x3, raw0, raw1, raw2, raw3, enabled, counts, moments, limits, start1, start2,
        start3, size0, size1, size2, size3, span0, span1, span2, span3, blocks0, blocks1, blocks2,
        blocks3, unwritten,
    ):  # fmt: skip
        block, start = cuda.blockIdx.x, 0
        x, raw, size, span, blocks = x0, raw0, size0, span0, blocks0
        if block >= start1:
            x, raw, size, span, blocks, start = x1, raw1, size1, span1, blocks1, start1
        if block >= start2:
            x, raw, size, span, blocks, start = x2, raw2, size2, span2, blocks2, start2
        if block >= start3:
            x, raw, size, span, blocks, start = x3, raw3, size3, span3, blocks3, start3
        counts, moments = offset(counts, ROWS * start), offset(moments, 2 * start)
        limits, on = offset(limits, 3 * start), enabled[0]
        block -= start
        add_stretch(x, raw, on, counts, moments, limits, size, span, unwritten, block, blocks)

    kernel = pinned("f64")(accumulate)
    kernel.__name__ = f"statistics of {dtype.name} tensors"
    return kernel


class merge_several(PlanOp):
    """Records from what `accumulate_several` left. `table`: see `_ENTRY`."""

    name = "merge_several"
    operands = tuple(
        OperandSpec(name, "T", "T", False, False)
        for name in ("enabled", "counts", "moments", "limits")
    )
    attrs = (AttrSpec("table", "ints", True, None),)
    results = ("records",)
    traits = Traits(moves=True)

    def cuda(*args: Arg, table: tuple[int, ...]) -> Grid:  # pyright: ignore
        grid = (-(-ROWS // WARPS) + 1, len(table) // _ENTRY)
        return Grid(merge_tensors, *args, table, grid=grid, block=THREADS)


@pinned("f64")
def merge_tensors(enabled, counts, moments, limits, out, table):
    at = cuda.blockIdx.y * _ENTRY
    start, kind = table[at], table[at + 3]
    merge(
        enabled, offset(counts, ROWS * start), offset(moments, 2 * start),
        offset(limits, 3 * start), offset(out, WORDS * table[at + 4]),
        table[at + 1], table[at + 2], kind & 1, kind >> 1,
    )  # fmt: skip
