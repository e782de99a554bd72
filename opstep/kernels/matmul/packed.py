"""Words of 32 bits that hold neighbours along a sum, as tiles multiply them (`device.cpu.packed`):
four bytes, or two as 16 bits, by the processor.

Where they hold four, tiles take i8 on one side and u8 on the other: bytes of the other type are
moved by 128, and their zero points with them. 16 bits hold either type as it is.
"""

from __future__ import annotations

from opstep.runtime.device.cpu import processor
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.types import TensorType, i8, i32

FLIP = 0x80  # bits that make an i8 of a u8, 128 less, and back


def per_word() -> int:
    """Bytes that a word holds."""
    return 4 if processor.this().multiplies_bytes else 2


def flip_of(a: Arg, signed: bool) -> int:
    """The bits that make i8 of its bytes where words of four need them `signed`, else u8."""
    return 0 if (a.dtype is i8) == signed or per_word() == 2 else FLIP


def each_of(a: Arg | None) -> tuple[bool, bool]:
    """Whether an operand is there, and has an element for each filter or column."""
    return a is not None, a is not None and a.rank > 0


def words_of(a: Arg) -> Arg:
    """The same memory as words of four bytes."""
    return Arg(TensorType(i32, (a.size // 4,)), a.slot)


def word(a, b, c, d, each):
    """A word of the first `each` of these, the first the lowest."""
    if each == 2:
        return (a & 0xFFFF) | (b & 0xFFFF) << 16
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24
