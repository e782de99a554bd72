"""Launches, by which an op runs on a device: kernels are plain Python functions over raw pointers.

`Launch` is one for the CPU, which other devices can run too, a unit a thread; `Grid` is one for
CUDA, described at the end, and `Call` a routine of a library there.

A kernel is a module-level function that numba compiles, once for each combination of element types:

    def scale(x, y, factor, lo, hi):
        for i in range(lo, hi):
            y[i] = x[i] * factor

and a launch binds it to operands:

    Launch(scale, x, y, 0.5, units=y.size)

- Tensors (`Arg`) arrive as pointers to their first element; all are contiguous, row-major.
- ints arrive as int64, floats in the kernel's dtype, tuples of ints as a pointer to int64.
- ``Scratch(dtype, size)`` arrives as a pointer to memory that lives for the op; one Scratch object
  used in several launches of an op is the same memory. With ``per_lane`` each lane has its own.
- A kernel works on the units ``lo <= i < hi`` of 0..units, and must give each unit the same bits
  however the range is cut: ranges run in parallel. One whose parameters end in ``lo, hi, lane``
  also gets the index of the lane (thread) that runs it.
- Float literals in a kernel take the kernel's dtype (of its first floating pointer, else the first
  pointer), so write ``0.0`` for the zero of the data and ``0`` for indices. bool is seen as u8.
- f16 and bf16 operands are seen as f32 (the device converts around the op), or bit for bit as u16
  where the op `moves` or looks at `bits`.
- Functions that a kernel calls are plain functions too; the device compiles them along.
- What a kernel writes does not overlap what it reads, except that a result may be the buffer of an
  operand named in the op's `inplace`: such a kernel reads element i before it writes element i, and
  never after. Do not pass one buffer that is written twice in a launch's arguments.
  A kernel whose results do not each depend on the operand in whose place they are is marked with
  `source.swaps`.
- A kernel must not allocate, raise or keep state.
- It computes on nothing that was not written, not even where it drops what comes of it: working
  memory holds what was there before, and with subnormals any operation takes far longer.

A CUDA kernel is a function over pointers as well, for one thread of a grid of blocks:

    from opstep.runtime.device.cuda.compiling.names import cuda

    def scale(x, y, factor, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = x[i] * factor

    Grid(scale, x, y, 0.5, y.size, grid=ceil(y.size / 256), block=256)

It takes the same arguments, but no range, and follows the same rules with these differences:

- f16 and bf16 operands are read and written as they are stored, and computed with as f32; so are
  operands whose type was promoted. ``Arg.stored`` is the dtype in memory, ``Arg.dtype`` the one
  computed with. Nothing is staged.
- A last parameter `rest` takes all arguments that are left, as a tuple.
- `cuda` is numba.cuda: its threads, shared memory, barriers. `device.cuda.compiling.names` has what
  kernels need beyond it: vector loads, shuffles, tensor cores.
- Sizes that decide how code is laid out (tiles, threads of a block where shared memory depends on
  them) are closure cells or globals, so they are constants to the compiler.
- The bits of a result depend on operands and attributes alone: no sum by float atomics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, NamedTuple

from opstep.runtime.ir.types import DType, TensorType, i8, i16, i32, i64

CARRIERS = {1: i8, 2: i16, 4: i32, 8: i64}
"""Integers that carry elements of so many bytes, for kernels that look at bits alone."""

_lanes: ContextVar[int] = ContextVar("lanes", default=0)


def lanes() -> int:
    """Threads that are to share the launches that an op is asked for. It may cut its work by that,
    as no bit depends on a cut.
    """
    return _lanes.get() or os.cpu_count() or 1


@contextmanager
def shared_by(count: int) -> Iterator[None]:
    """Within, `lanes` is `count`."""
    token = _lanes.set(count)
    try:
        yield
    finally:
        _lanes.reset(token)


class Arg:
    """An operand or result as a kernel sees it: dtype, concrete shape, and which it is (`slot`).

    `stored` is the dtype that it has in memory, where a device converts as it reads and writes.
    """

    __slots__ = ("dtype", "shape", "size", "slot", "stored")

    def __init__(self, t: TensorType, slot: int, stored: DType | None = None):
        self.dtype = t.dtype
        self.stored = stored or t.dtype
        self.shape: tuple[int, ...] = t.shape  # pyright: ignore[reportAttributeAccessIssue] - concrete
        self.size = prod(self.shape)
        self.slot = slot

    @property
    def rank(self) -> int:
        return len(self.shape)


class Seen(Arg):
    """An operand or result of which a kernel sees a view: element i is the one at ``start + sum(i *
    strides)`` of its memory.
    """

    __slots__ = ("start", "strides")

    def __init__(self, arg: Arg, shape: Sequence[int], start: int, strides: Sequence[int]):
        super().__init__(TensorType(arg.dtype, tuple(shape)), arg.slot, arg.stored)
        self.start = start
        self.strides = tuple(strides)


LINES = 128  # bytes: two lines of a cache, which processors fetch together


class Scratch:
    """Working memory of one op: `size` elements. `stored`: the dtype that it has in memory, on a
    device that converts as it reads and writes.

    Where it is `per_lane`, each lane has as many, or a few more: `size` is then how far apart they
    begin, each in cache lines of its own. What two lanes write in one line takes far longer.
    """

    __slots__ = ("dtype", "per_lane", "size", "stored")

    def __init__(
        self, dtype: DType, size: int, per_lane: bool = False, stored: DType | None = None
    ):
        self.dtype = dtype
        line = LINES // dtype.itemsize
        self.size = -(-size // line) * line if per_lane else size
        self.per_lane = per_lane
        self.stored = stored or dtype


class Held(Scratch):
    """Working memory that has a shape, as operands do."""

    __slots__ = ("shape",)

    def __init__(self, dtype: DType, shape: tuple[int, ...], stored: DType | None = None):
        super().__init__(dtype, prod(shape), stored=stored)
        self.shape = shape

    @property
    def rank(self) -> int:
        return len(self.shape)


class Tiles(NamedTuple):
    """The elements of the result `of` that each unit of a launch writes.

    The result is matrices of so many rows and columns, cut into blocks: a unit is one. Blocks
    `along` a row follow each other, or those along a column do.
    """

    of: Arg | Held
    rows: int
    columns: int
    row_block: int
    column_block: int
    along: bool = False


class Clamp(NamedTuple):
    """A limit on each element x: `low` where x <= `floor`, `high` where x > `high`. NaN stays."""

    floor: float
    low: float
    high: float


NO_LIMITS = (0, 0, 0, 0)
"""The last argument of a kernel that can clamp what it writes: 1 and the bits of a `Clamp`'s
numbers, as f64, where it shall. One that adds up in several passes does it in the last.
"""


class Launch:
    """One kernel over one range. `grain`: units under which it is not worth waking another lane.

    `tiles`, if given, say what each unit writes. `each`: unit i writes element i of the results,
    and reads that of operands which have as many elements. So a device may run the second on what a
    unit of the first wrote while that is in a cache. `clamp`: all that it does to each element. A
    device may have it done by the launch before, if that `clamps`: its last argument is `NO_LIMITS`
    then, and it writes every element of its one result. `cuda`, where it is given, makes the `Grid`
    that does the same on CUDA, or None; see also `thread_a_unit`.
    """

    __slots__ = ("args", "clamp", "clamps", "cuda", "each", "grain", "kernel", "tiles", "units")

    def __init__(
        self,
        kernel: Callable,
        *args,
        units: int,
        grain: int = 32768,
        tiles: Tiles | None = None,
        each: bool = False,
        clamp: Clamp | None = None,
        clamps: bool = False,
        cuda: Callable[[], Grid | None] | None = None,
    ):
        self.kernel = kernel
        self.args = args
        self.units = units
        self.grain = grain
        self.tiles = tiles
        self.each = each
        self.clamp = clamp
        self.clamps = clamps
        self.cuda = cuda


def thread_a_unit() -> None:
    """`Launch.cuda` of a kernel that suits a GPU as it stands, a thread a unit: units are elements
    of the result, what neighbours read and write are neighbours in memory, and none has working
    memory of its own.
    """


class Grid:
    """One CUDA kernel over a grid of blocks of threads, each 1 to 3 sizes, x first.

    `shared`: bytes of dynamic shared memory. `blocks`: how many blocks a multiprocessor should
    hold at least, which bounds the registers of a thread; 0 leaves them to the compiler.
    """

    __slots__ = ("args", "block", "blocks", "grid", "kernel", "shared")

    def __init__(
        self,
        kernel: Callable,
        *args,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...] = 256,
        shared: int = 0,
        blocks: int = 0,
    ):
        self.kernel = kernel
        self.args = args
        self.grid = _three(grid)
        self.block = _three(block)
        self.shared = shared
        self.blocks = blocks


class Call:
    """A routine of a library, on CUDA: everything about it is chosen but the addresses of `args`,
    some of which may be working memory that it shares with other launches.

    `routine` has `workspace`, in bytes, and `bind`: see `device.routine`.
    """

    __slots__ = ("args", "routine")

    def __init__(self, routine: Any, *args: Arg | Scratch):
        self.routine = routine
        self.args = args


class Variants:
    """Several ways to the same results, by name: each is what an op's `cuda` may give. The first is
    taken where nothing is known of their times; `--autotune` finds the fastest.
    """

    __slots__ = ("launches",)

    def __init__(self, launches: dict[str, Any]):
        self.launches = launches


def with_rest(function: Callable, args: tuple) -> tuple:
    """A kernel's arguments, or what stands for them, as it takes them: see `rest`, above."""
    code = function.__code__
    own = code.co_argcount - 1
    return (*args[:own], args[own:]) if code.co_varnames[own] == "rest" else args


def _three(sizes: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
