"""Convolutions of bytes on the CPU: words of neighbouring channels under words of their weights, in
the kernels of other convolutions, with tiles that multiply such words (`matmul.packed`).

Images are laid out in words, with their padding; bytes of filters that are not contiguous along
channels, too. Of words of four, images are the unsigned side, filters the signed one. What zero
points take off is the same for all pixels of a filter, but where the filter has one: then a filter
of ones tells the sum of what each pixel sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from opstep.kernels.conv.correlation import correlate, geometry_of
from opstep.kernels.conv.depthwise import slide_alone
from opstep.kernels.conv.windows import Window, flat, windows
from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.packed import each_of, flip_of, per_word, word, words_of
from opstep.kernels.matmul.products import Side
from opstep.runtime.device.builtin import SIGNED_LEFT, SIGNED_RIGHT, offset, pack_rows
from opstep.runtime.device.launch import Arg, Held, Launch, Scratch
from opstep.runtime.ir.types import i32

_GRAIN = 65536  # elements under which another lane is not woken
_WHOLE = 16  # words that fill vectors


def correlate_bytes(
    x: Arg, w: Arg, b: Arg | None, x_zero: Arg | None, w_zero: Arg | None, y: Arg, *, stride,
    padding, dilation, groups: int,
) -> list[Launch]:  # fmt: skip
    """Operands and attributes of `conv2d_integer`."""
    if not y.size:
        return []
    views = windows(w.shape[2:], stride, padding, dilation)
    if w.shape[1] < 2 or not w.size:
        return _as_numbers(x, w, b, x_zero, w_zero, y, views, groups)
    seen, launch = _images(x, x_zero, w.shape[1], views, groups)
    packed, launches = _filters(w)
    bias, more = _starts(x, w, b, x_zero, w_zero)
    launches += [launch, *more]

    geometry = geometry_of([v._replace(before=0, after=0) for v in views], y.shape[2:])
    words = seen.shape[1] // groups
    terms = words * prod(w.shape[2:])

    def under(filters: Arg | Scratch, start: Arg | Scratch | None, to: Arg | Held) -> list[Launch]:
        if seen.size > x.shape[0] * terms:
            return [correlate(seen, filters, start, to, groups, geometry, kind=SIGNED_LEFT)]
        # a window is the whole image
        left, right = Side(seen, terms, 1, ()), Side(filters, 1, terms, ())
        return product(left, right, to, (), *to.shape[:2], terms, start, kind=SIGNED_RIGHT)

    launches += under(packed, bias, flat(y))
    if w_zero is not None or flip_of(w, signed=True):
        launches += _less_zeros(w, w_zero, y, under, words, groups)
    return launches


def _plane(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sequences as images of one row."""
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


def _images(
    x: Arg, x_zero: Arg | None, channels: int, views: Sequence[Window], groups: int
) -> tuple[Held, Launch]:
    """Words of channels, in each group, with padding."""
    words = -(-channels // per_word())
    sizes = tuple(n + v.before + v.after for n, v in zip(x.shape[2:], views, strict=True))
    axes = [(n, size, v.before) for n, size, v in zip(x.shape[2:], sizes, views, strict=True)]
    if sizes == x.shape[2:]:
        axes = [(prod(sizes), prod(sizes), 0)]  # one run of memory
    axes = [(1, 1, 0)] * (3 - len(axes)) + axes
    seen = Held(i32, _plane((x.shape[0], groups * words, *sizes)))
    units = x.shape[0] * groups * words
    launch = Launch(
        *(lay_out_images, x, x_zero or x, seen, x_zero is not None),
        *(flip_of(x, signed=False), per_word(), channels, words, *axes),
        units=units,
        grain=max(1, _GRAIN * units // max(1, seen.size)),
    )
    return seen, launch


def _filters(w: Arg) -> tuple[Arg | Scratch, list[Launch]]:
    """Words of channels at each place of each filter."""
    channels, taps, flip = w.shape[1], prod(w.shape[2:]), flip_of(w, signed=True)
    words = -(-channels // per_word())
    if per_word() == 4 and taps == 1 and channels % 4 == 0 and not flip:
        return words_of(w), []
    packed = Scratch(i32, w.shape[0] * words * taps)
    sizes = (per_word(), channels, words, taps, flip)
    return packed, [Launch(lay_out_filters, w, packed, *sizes, units=w.shape[0], grain=16)]


def _starts(
    x: Arg, w: Arg, b: Arg | None, x_zero: Arg | None, w_zero: Arg | None
) -> tuple[Arg | Scratch | None, list[Launch]]:
    """What the sums of each filter begin with."""
    flip = flip_of(x, signed=False)
    if x_zero is None and not flip and (b is None or b.rank):
        return b, []
    bias = Scratch(i32, w.shape[0])
    launch = Launch(
        *(begin_sums, w, b or w, x_zero or x, w_zero or w, bias, prod(w.shape[1:])),
        *(*each_of(b), x_zero is not None, *each_of(w_zero), flip),
        units=w.shape[0],
        grain=16,
    )
    return bias, [launch]


def _less_zeros(w: Arg, w_zero: Arg | None, y: Arg, under: Any, words: int, groups: int):
    """Takes off what zero points of filters add."""
    channels, taps, area = w.shape[1], prod(w.shape[2:]), prod(y.shape[2:])
    ones = Scratch(i32, groups * words * taps)
    sums = Held(i32, _plane((y.shape[0], groups, *y.shape[2:])))
    sizes = (*each_of(w_zero), flip_of(w, signed=True), w.shape[0], w.shape[0] // groups, area)
    return [
        Launch(lay_out_ones, ones, per_word(), channels, words, taps, units=groups * words),
        *under(ones, None, sums),
        Launch(
            *(take_off, y, sums, w_zero or w, *sizes),
            units=y.shape[0] * w.shape[0],
            grain=max(1, _GRAIN // max(1, area)),
        ),
    ]


def _as_numbers(
    x: Arg, w: Arg, b: Arg | None, x_zero: Arg | None, w_zero: Arg | None, y: Arg,
    views: Sequence[Window], groups: int,
) -> list[Launch]:  # fmt: skip
    """Filters of one channel, which fill no word: of i32."""
    seen, filters = Held(i32, _plane(x.shape)), Held(i32, _plane(w.shape))
    bias = b
    launches = [
        Launch(widen, x, x_zero or x, seen, *each_of(x_zero), 1, units=x.size),
        Launch(
            *(widen, w, w_zero or w, filters, *each_of(w_zero), max(1, prod(w.shape[1:]))),
            units=w.size,
        ),
    ]
    if b is not None and not b.rank:
        bias = Scratch(i32, w.shape[0])
        launches.append(Launch(repeat, b, bias, units=w.shape[0]))
    if x.rank < 5 and w.shape[1] == 1 and groups > 1:
        alone = slide_alone(seen, filters, bias, y, views)
        if alone is not None:
            return [*launches, alone]
    geometry = geometry_of(views, y.shape[2:])
    return [*launches, correlate(seen, filters, bias, flat(y), groups, geometry)]


# --- kernels --------------------------------------------------------------------------------------


def lay_out_images(
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


def lay_out_filters(w, to, each, channels, words, taps, flip, lo, hi):
    """A unit is a filter."""
    flips = word(flip, flip, flip, flip, each)
    for unit in range(lo, hi):
        source = offset(w, unit * channels * taps)
        out = offset(to, unit * words * taps)
        whole = channels // each
        if taps > 1:
            # whole vectors: what lies behind a word's places is overwritten by the next one
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


def lay_out_ones(to, each, channels, words, taps, lo, hi):
    """The filter that adds up all that there is; a unit is a word at all its places."""
    for unit in range(lo, hi):
        live = channels - unit % words * each
        ones = word(1, live > 1, live > 2, live > 3, each)
        for t in range(taps):
            to[unit * taps + t] = ones


def begin_sums(
    w, b, x_zero, w_zero, to, terms, biased, each_bias, x_shifted, w_shifted, each_zero, flip, lo,
    hi,
):  # fmt: skip
    """Biases, less what zero points of images take off; a unit is a filter."""
    off = flip
    if x_shifted:
        off += x_zero[0]
    for unit in range(lo, hi):
        start = 0
        if biased:
            start = b[unit * each_bias]
        if off != 0:
            weights = offset(w, unit * terms)
            total = 0
            for k in range(terms):
                total += weights[k]
            if w_shifted:
                total -= terms * w_zero[unit * each_zero]
            start -= off * total
        to[unit] = start


def take_off(y, sums, zero, shifted, each_zero, flip, filters, each, area, lo, hi):
    """Less the zero point of a filter times the sum of what it saw; a unit is a filter's plane."""
    for unit in range(lo, hi):
        f = unit % filters
        off = -flip
        if shifted:
            off += zero[f * each_zero]
        if off != 0:
            out = offset(y, unit * area)
            seen = offset(sums, unit // each * area)
            for k in range(area):
                out[k] -= off * seen[k]


def widen(x, zero, to, shifted, each_zero, part, lo, hi):
    """to = x - zero, where there is one, or one for each part of so many elements."""
    for i in range(lo, hi):
        off = 0
        if shifted:
            off = zero[i // part * each_zero]
        to[i] = x[i] - off


def repeat(x, to, lo, hi):
    for i in range(lo, hi):
        to[i] = x[0]
