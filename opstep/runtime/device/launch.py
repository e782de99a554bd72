"""What an op asks of the CPU: launches of kernels written as plain Python functions over raw
pointers.

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
  where the op `moves`.
- Functions that a kernel calls are plain functions too; the device compiles them along.
- What a kernel writes does not overlap what it reads, except that a result may be the buffer of an
  operand named in the op's `inplace`: such a kernel reads element i before it writes element i, and
  never after. Do not pass one buffer that is written twice in a launch's arguments.
- A kernel must not allocate, raise or keep state.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from opstep.runtime.ir.types import DType, TensorType


class Arg:
    """An operand or result as a kernel sees it: dtype, concrete shape, and which it is (`slot`)."""

    __slots__ = ("dtype", "shape", "size", "slot")

    def __init__(self, t: TensorType, slot: int):
        self.dtype = t.dtype
        self.shape: tuple[int, ...] = t.shape  # pyright: ignore[reportAttributeAccessIssue] - concrete
        self.size = prod(self.shape)
        self.slot = slot

    @property
    def rank(self) -> int:
        return len(self.shape)


class Scratch:
    """Working memory of one op: `size` elements, `per_lane` for each lane."""

    __slots__ = ("dtype", "per_lane", "size")

    def __init__(self, dtype: DType, size: int, per_lane: bool = False):
        self.dtype = dtype
        self.size = size
        self.per_lane = per_lane


class Launch:
    """One kernel over one range. `grain`: units under which it is not worth waking another lane."""

    __slots__ = ("args", "grain", "kernel", "units")

    def __init__(self, kernel: Callable, *args, units: int, grain: int = 32768):
        self.kernel = kernel
        self.args = args
        self.units = units
        self.grain = grain
