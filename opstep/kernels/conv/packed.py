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
from opstep.kernels.matmul.packed import each_of, flip_of, pack_planes, packed_lines, per_word, word
from opstep.kernels.matmul.products import Side
from opstep.runtime.device.builtin import SIGNED_LEFT, SIGNED_RIGHT, offset
from opstep.runtime.device.launch import Arg, Held, Launch, Scratch
from opstep.runtime.ir.types import i32

_GRAIN = 65536  # elements under which another lane is not woken


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
    flip = flip_of(w, signed=True)
    packed, launches = packed_lines(w, w.shape[0], w.shape[1], prod(w.shape[2:]), flip)
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
    if w_zero is not None or flip:
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
        *(pack_planes, x, x_zero or x, seen, x_zero is not None),
        *(flip_of(x, signed=False), per_word(), channels, words, *axes),
        units=units,
        grain=max(1, _GRAIN * units // max(1, seen.size)),
    )
    return seen, launch


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
