"""The largest elements of windows on CUDA, where they stand, and what is passed back to them.

A thread has small windows to itself: all that it reads is asked for before the first of it is used.
It has a few elements of others at a time, asked for alike; where windows are few, neighbouring
threads share one, and read its elements side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.kernels.schedules.cuda.window import sums_of_entries
from opstep.kernels.schedules.window import LINE, Span, deep, positions, sizes_of
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import u8

Sizes = tuple[int, ...]  # along each axis
THREADS = 256
LANES = 32  # threads of a window, at most, which share its rows
EACH = 8  # elements that are worth a thread
OWN = 2  # small windows of a thread, below each other
_HELD = 8  # elements of other windows that a thread asks for at a time
_ENOUGH = 1 << 18  # threads: for more, threads do not share a window
_MOST = 27  # elements of a small window
_NONE = 255  # the place of a largest element that there is not


def largest(x: Arg, y: Arg, lowest: float, spans: Sequence[Span]) -> list[Grid]:
    """y, the largest of each window of x; `lowest` where it has no elements."""
    return _largest(x, y, y, Scratch(u8, 1), "values", lowest, spans)


def largest_and_places(
    x: Arg, y: Arg, indices: Arg, lowest: float, spans: Sequence[Span]
) -> list[Grid]:
    """y, and where in its channel the largest of each window stands; 0 where there are none."""
    return _largest(x, y, y, indices, "both", lowest, spans)


def passed_to_largest(gy: Arg, x: Arg, gx: Arg, spans: Sequence[Span]) -> list[Grid]:
    """gx: the sum of gy of the windows whose largest element each is: these are looked for once."""
    small = is_small(x, gy, spans)
    places = Scratch(u8, gy.size) if small else positions(x, gy.size)
    found = _largest(x, gy, Scratch(x.dtype, 1), places, "places", 0, spans)
    if small:
        return [*found, _passed_to_small(gy, places, gx, deep(spans, LINE))]
    around = [s.around(n) for s, n in zip(spans, gx.shape[2:], strict=True)]
    return [*found, *sums_of_entries(gy, gx, around, places)]


def is_small(x: Arg, y: Arg, spans: Sequence[Span]) -> bool:
    """Whether a thread's registers hold a window, and 32 bits count elements."""
    sizes = [n for s in spans for n in (s.taps, s.stride)]
    plain = all(s.stride and s.step == 1 for s in spans)
    most = max(prod(s.taps for s in spans), prod(s.stride for s in spans))
    few = max(sizes) <= 5 and most <= _MOST
    return plain and few and 0 < x.size < LIMIT and 0 < y.size < LIMIT


def _largest(
    x: Arg, like: Arg, y: Arg | Scratch, places: Arg | Scratch, gives: str, lowest, spans
) -> list[Grid]:
    """For windows that make something `like`."""
    if not like.size:
        return []
    sizes, out, small, spans = (
        sizes_of(x),
        sizes_of(like),
        is_small(x, like, spans),
        deep(spans, LINE),
    )
    taps, kind = tuple(s.taps for s in spans), np.dtype(x.dtype.numpy)
    if small:
        own = 1 if gives == "places" else min(OWN, out[1])
        strides, before = tuple(s.stride for s in spans), [s.before for s in spans]
        teams, flat = -(-out[1] // own), sizes[0] == out[0] == 1
        size = prod(like.shape[:2]) * out[0] * teams * out[2]
        kernel = largest_of_few(taps, strides, flat, own, kind, gives)
        args = (x, y, places, size, *sizes, *out, teams, *before)
        return [Grid(kernel, *args, grid=-(-size // THREADS), block=THREADS)]
    lanes = 1
    most = min(_ENOUGH, -(-x.size // EACH))
    while lanes < min(LANES, taps[2]) and lanes * like.size < most:
        lanes *= 2
    columns = min(_HELD, max(1, -(-taps[2] // lanes)))
    quotient = floor_quotient if max(x.size, like.size * lanes) >= LIMIT else div32
    kernel = largest_of_spans(lanes, _HELD // columns, columns, _kind(x), quotient, gives)
    none = -1 if gives == "places" else 0
    tables = (_seen(s) for s in spans)
    args = (x, y, places, lowest, none, like.size, *sizes, *out, *tables, *(s.step for s in spans))
    return [Grid(kernel, *args, grid=-(-like.size * lanes // THREADS), block=THREADS)]


def _seen(span: Span) -> tuple[int, ...]:
    """Begins, then ends that stand next to a window's last element."""
    pairs = zip(span.begins, span.ends, strict=True)
    return span.begins + tuple(e - (e - 1 - b) % span.step for b, e in pairs)


def _kind(x: Arg) -> Any:
    if not x.dtype.is_float:
        return np.int64
    return np.float64 if x.dtype.itemsize == 8 else np.float32


@cache
def largest_of_few(
    taps: Sizes, strides: Sizes, flat: bool, own: int, kind: np.dtype, gives: str
) -> Callable:
    """The kernel for regular windows of that shape; `kind`: what elements are computed with as;
    `flat`: channels have no depth.

    Padding is less than a window, so the element that is nearest to one in the padding is in the
    window, too: it is taken instead, and changes nothing.
    """
    (taps_d, taps_h, taps_w), (stride_d, stride_h, stride_w) = taps, strides
    seen_rows = (own - 1) * stride_h + taps_h
    held, count = taps_d * seen_rows * taps_w, taps_d * taps_h * taps_w
    with_values, with_places = gives != "places", gives != "values"
    plane_taps, plane_held = taps_h * taps_w, seen_rows * taps_w

    def largest_of_few(
        x, y, places, size, depth, height, width, out_d, out_h, out_w, teams, front, top, left
    ):  # fmt: skip
        """`own` windows a thread; `teams`: of such in a column of windows."""
        k = cuda.grid(1)
        if k < size:
            seen = pointer_to(cuda.local.array(held, kind))
            line = div32(k, out_w)
            j = k - line * out_w
            above = div32(line, teams)
            i = (line - above * teams) * own
            if flat:
                depth, out_d, front = 1, 1, 0
            channel = above if flat else div32(above, out_d)
            d0 = (above - channel * out_d) * stride_d - front
            h0, w0 = i * stride_h - top, j * stride_w - left
            source = offset(x, channel * depth * height * width)
            for a in range(taps_d):
                plane = min(max(d0 + a, 0), depth - 1) * height
                for r in range(seen_rows):
                    row = offset(source, (plane + min(max(h0 + r, 0), height - 1)) * width)
                    for s in range(taps_w):
                        at = (a * seen_rows + r) * taps_w + s
                        seen[at] = row[min(max(w0 + s, 0), width - 1)]
            for p in range(own):
                first = p * stride_h * taps_w
                found, tap = seen[first], 0
                for t in range(1, count):
                    v = seen[first + t // plane_taps * plane_held + t % plane_taps]
                    taken = (v > found) | (v != v)
                    found = pick(taken, v, found)
                    tap = t if taken else tap
                if i + p < out_h:
                    to = (above * out_h + i + p) * out_w + j
                    if with_values:
                        y[to] = found
                    if with_places:
                        d = min(max(d0 + tap // plane_taps, 0), depth - 1)
                        h = h0 + p * stride_h
                        h = min(max(h + tap // taps_w % taps_h, 0), height - 1)
                        w = min(max(w0 + tap % taps_w, 0), width - 1)
                        if with_values:
                            places[to] = (d * height + h) * width + w
                        else:
                            places[to] = ((d - d0) * taps_h + h - h0) * taps_w + w - w0

    return largest_of_few


@cache
def largest_of_spans(
    lanes: int, rows: int, columns: int, kind: Any, quotient: Callable, gives: str
) -> Callable:
    """The kernel for any windows, `lanes` neighbouring threads each, which ask for `rows` times
    `columns` elements at a time: `rows` is 1 where a row is more than `lanes` times `columns`.

    Past the end of a window its last element, or row, is taken again, and changes nothing. Loops
    add their steps: a range by a step that is not known is a division for each row.
    """
    with_values, with_places = gives != "places", gives != "values"
    held = rows * columns

    def largest_of_spans(
        x, y, places, lowest, none, n, depth, height, width, out_d, out_h, out_w, deep, high, wide,
        step_d, step_h, step_w,
    ):  # fmt: skip
        unit = cuda.grid(1) // lanes
        lane = np.int64(cuda.threadIdx.x % lanes)
        there = min(unit, n - 1)
        above = quotient(there, out_w)
        j = there - above * out_w
        volume = quotient(above, out_h)
        i = above - volume * out_h
        channel = quotient(volume, out_d)
        z = volume - channel * out_d
        d, first_h, first_w = deep[z], high[i], wide[j]
        end_d, end_h, end_w = deep[out_d + z], high[out_h + i], wide[out_w + j]
        some = (d < end_d) & (first_h < end_h) & (first_w < end_w)
        found, highest = (d * height + first_h) * width + first_w, kind(0)
        if some:
            seen = pointer_to(cuda.local.array(held, kind))
            source = offset(x, channel * depth * height * width)
            highest = kind(source[found])
            while d < end_d:
                h = first_h
                while h < end_h:
                    w = first_w + lane * step_w
                    while w < end_w:
                        for t in range(held):
                            row = d * height + min(h + t // columns * step_h, end_h - 1)
                            to = min(w + t % columns * lanes * step_w, end_w - 1)
                            seen[t] = kind(source[row * width + to])
                        for t in range(held):
                            row = d * height + min(h + t // columns * step_h, end_h - 1)
                            to = min(w + t % columns * lanes * step_w, end_w - 1)
                            v = seen[t]
                            taken = (v > highest) | (v != v)
                            found = row * width + to if taken else found
                            highest = pick(taken, v, highest)
                        w += lanes * columns * step_w
                    h += rows * step_h
                d += step_d
        step = lanes // 2
        while step > 0:  # the first of the largest, or the last NaN
            v, at = shuffle_xor(highest, step), shuffle_xor(found, step)
            if (
                v > highest
                or (v == highest and at < found)
                or (v != v and (highest == highest or at > found))
            ):
                found = at
                highest = v
            step //= 2
        if unit < n and lane == 0:
            if with_values:
                y[unit] = highest if some else kind(lowest)
            if with_places:
                places[unit] = found if some else none

    return largest_of_spans


def _passed_to_small(gy: Arg, places: Scratch, gx: Arg, spans: Sequence[Span]) -> Grid:
    sizes, out = sizes_of(gx), sizes_of(gy)
    cells = [-(-(n + s.before) // s.stride) for n, s in zip(sizes, spans, strict=True)]
    size = prod(gx.shape[:2]) * prod(cells)
    flat = sizes[0] == cells[0] == 1
    kernel = pass_to_few(tuple(s.taps for s in spans), tuple(s.stride for s in spans), flat)
    args = (gy, places, gx, size, *sizes, *out, *cells, *(s.before for s in spans))
    return Grid(kernel, *args, grid=-(-size // THREADS), block=THREADS)


@cache
def pass_to_few(taps: Sizes, strides: Sizes, flat: bool) -> Callable:
    """A thread has the elements between one window's first and the next one's, along each axis,
    which are in the same windows.
    """
    (_, taps_h, taps_w), (stride_d, stride_h, stride_w) = taps, strides
    across_d, across_h, across_w = (-(-t // s) for t, s in zip(taps, strides, strict=True))
    windows, cell = across_d * across_h * across_w, stride_d * stride_h * stride_w
    none = _NONE

    def pass_to_few(
        gy, places, gx, size, depth, height, width, out_d, out_h, out_w, cells_d, cells_h, cells_w,
        front, top, left,
    ):  # fmt: skip
        """gx = the sum of gy of the windows whose largest element one is, in their order."""
        k = cuda.grid(1)
        if k < size:
            line = div32(k, cells_w)
            above = div32(line, cells_h)
            if flat:
                depth, out_d, cells_d, front = 1, 1, 1, 0
            channel = above if flat else div32(above, cells_d)
            z0, i0, j0 = above - channel * cells_d, line - above * cells_h, k - line * cells_w
            shares, at = cuda.local.array(windows, real), cuda.local.array(windows, np.int32)
            for c in range(windows):  # the last one first
                z, i = z0 - c // (across_h * across_w), i0 - c // across_w % across_h
                j = j0 - c % across_w
                there = (z >= 0) & (z < out_d) & (i >= 0) & (i < out_h) & (j >= 0) & (j < out_w)
                plane = channel * out_d + min(max(z, 0), out_d - 1)
                row = plane * out_h + min(max(i, 0), out_h - 1)
                window = row * out_w + min(max(j, 0), out_w - 1)
                shares[c] = gy[window]
                at[c] = places[window] if there else none
            d0, h0, w0 = z0 * stride_d - front, i0 * stride_h - top, j0 * stride_w - left
            for p in range(cell):
                p_d, p_h, p_w = p // (stride_h * stride_w), p // stride_w % stride_h, p % stride_w
                total = 0.0
                for c in range(windows - 1, -1, -1):
                    r = c // (across_h * across_w) * stride_d + p_d
                    s = c // across_w % across_h * stride_h + p_h
                    t = c % across_w * stride_w + p_w
                    here = (at[c] == (r * taps_h + s) * taps_w + t) & (s < taps_h) & (t < taps_w)
                    total += pick(here, shares[c], 0.0)
                d, h, w = d0 + p_d, h0 + p_h, w0 + p_w
                if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                    gx[((channel * depth + d) * height + h) * width + w] = total

    return pass_to_few
