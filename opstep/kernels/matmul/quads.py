"""Words of four bytes, which tiles multiply as bytes (`device.cpu.quads`)."""

from __future__ import annotations

from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.types import TensorType, i8, i32

FLIP = 0x80  # bits that make an i8 of a u8, 128 less, and back


def flip_of(a: Arg, signed: bool) -> int:
    """The bits that make its bytes i8 where they shall be signed, else u8."""
    return 0 if (a.dtype is i8) == signed else FLIP


def each_of(a: Arg | None) -> tuple[bool, bool]:
    """Whether an operand is there, and has an element for each filter or column."""
    return a is not None, a is not None and a.rank > 0


def words_of(a: Arg) -> Arg:
    """The same memory as words."""
    return Arg(TensorType(i32, (a.size // 4,)), a.slot)


def quad(a, b, c, d):
    """A word of four bytes, the first the lowest."""
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24
