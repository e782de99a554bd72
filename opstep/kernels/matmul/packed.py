"""Words of 32 bits that hold neighbours along a sum, as tiles multiply them (`device.cpu.packed`):
four bytes, or two as 16 bits, by the processor.

Where they hold four, tiles take i8 on one side and u8 on the other: bytes of the other type are
moved by 128, and their zero points with them. 16 bits hold either type as it is.
"""

from __future__ import annotations

from opstep.runtime.device.builtin import offset, pack_rows
from opstep.runtime.device.cpu import processor
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import TensorType, i8, i32

FLIP = 0x80  # bits that make an i8 of a u8, 128 less, and back
_WHOLE = 16  # words that fill vectors
_GRAIN = 65536  # elements under which another lane is not woken


def per_word() -> int:
    """Bytes that a word holds."""
    return 4 if processor.this().multiplies_bytes else 2


def flip_of(a: Arg, signed: bool) -> int:
    """The bits that make i8 of its bytes where words of four need them `signed`, else u8."""
    return 0 if (a.dtype is i8) == signed or per_word() == 2 else FLIP


def each_of(a: Arg | None) -> tuple[bool, bool]:
    """Whether an operand is there, and has an element for each filter or column."""
    return a is not None, a is not None and a.rank > 0


def packed_lines(
    a: Arg, lines: int, channels: int, taps: int, flip: int
) -> tuple[Arg | Scratch, list[Launch]]:
    """[lines, words, taps] from [lines, channels, taps]: the same memory if it can be."""
    each, words = per_word(), -(-channels // per_word())
    if each == 4 and taps == 1 and channels % 4 == 0 and not flip:
        return Arg(TensorType(i32, (a.size // 4,)), a.slot), []
    packed = Scratch(i32, lines * words * taps)
    grain = max(1, _GRAIN // max(1, words * taps))
    sizes = (each, channels, words, taps, flip)
    return packed, [Launch(pack_lines, a, packed, *sizes, units=lines, grain=grain)]


def word(a, b, c, d, each):
    """A word of the first `each` of these, the first the lowest."""
    if each == 2:
        return (a & 0xFFFF) | (b & 0xFFFF) << 16
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24


def pack_planes(
    x, zero, to, shifted, flip, each, channels, words, planes, rows, columns, lo, hi
):  # fmt: skip
    """Words of `each` channels, a unit; of each axis, its size, that with padding, and how many
    elements of padding stand before.
    """
    flips = word(flip, flip, flip, flip, each)
    fill = flips
    if shifted:
        fill ^= word(zero[0], zero[0], zero[0], zero[0], each)
    volume = planes[0] * rows[0] * columns[0]
    before = columns[2]
    count = columns[1]
    end = before + columns[0]
    for unit in range(lo, hi):
        first = unit // words * channels + unit % words * each
        live = channels - unit % words * each
        a = offset(x, first * volume)
        b = offset(x, (first + min(1, live - 1)) * volume)
        c = offset(x, (first + min(2, live - 1)) * volume)
        d = offset(x, (first + min(3, live - 1)) * volume)
        for line in range(planes[1] * rows[1]):
            out = offset(to, (unit * planes[1] * rows[1] + line) * count)
            z = line // rows[1] - planes[2]
            i = line % rows[1] - rows[2]
            if z < 0 or z >= planes[0] or i < 0 or i >= rows[0]:
                for j in range(count):
                    out[j] = fill
                continue
            for j in range(before):
                out[j] = fill
            for j in range(end, count):
                out[j] = fill
            at = (z * rows[0] + i) * columns[0]
            pack_rows(
                offset(a, at), offset(b, at), offset(c, at), offset(d, at), offset(out, before),
                columns[0], flips,
            )  # fmt: skip
        if live < each:  # what stands for channels that are not there
            bits = 0xFFFFFFFF >> (32 // each * (each - live))
            own = offset(to, unit * planes[1] * rows[1] * count)
            for j in range(planes[1] * rows[1] * count):
                own[j] &= bits


def pack_lines(w, to, each, channels, words, taps, flip, lo, hi):
    """Words of `each` channels at each of the places, `taps`, of a line; a unit is a line."""
    flips = word(flip, flip, flip, flip, each)
    for unit in range(lo, hi):
        source = offset(w, unit * channels * taps)
        out = offset(to, unit * words * taps)
        whole = channels // each
        if taps > 1:
            # whole vectors: what lies after a word's places is overwritten by the next one
            sure = whole - (_WHOLE + taps - 1) // taps
            for q in range(whole):
                a = offset(source, each * q * taps)
                count = (taps + _WHOLE - 1) // _WHOLE * _WHOLE if q < sure else taps
                pack_rows(
                    a, offset(a, taps), offset(a, 2 * taps), offset(a, 3 * taps),
                    offset(out, q * taps), count, flips,
                )  # fmt: skip
        else:
            for q in range(whole):
                a = offset(source, each * q)
                out[q] = word(a[0], a[1], a[each - 2], a[each - 1], each) ^ flips
        for t in range(taps if whole < words else 0):
            total = 0
            for k in range(channels - each * whole):
                byte = source[(each * whole + k) * taps + t] ^ flip
                total |= word(byte, 0, 0, 0, each) << (32 // each * k)
            out[whole * taps + t] = total
