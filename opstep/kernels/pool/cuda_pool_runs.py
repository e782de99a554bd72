"""Maxima of small windows, what they pass back, and repeated pixels, on CUDA: all that a thread
reads is asked for before the first of it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.conv.windows import Window
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, load2, pointer_to, real, store4
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import u8

THREADS = 256
OWN = 2  # outputs of a thread, below each other
RUN = 4  # neighbours that a thread repeats
_MOST = 25  # elements of a small window
_NONE = 255  # the place of a largest element that there is not


@cache
def highest_of_few(kernel_h: int, kernel_w: int, stride_h: int, stride_w: int, kind: np.dtype):
    """The kernel for windows of that shape; `kind`: what elements are computed with as.

    Padding is less than a window, so the pixel of the image that is nearest to one in the padding
    is in the window, too: it is taken instead, and changes nothing.
    """
    own = OWN
    seen_rows = (own - 1) * stride_h + kernel_h
    held = seen_rows * kernel_w

    def highest(x, y, size, height, width, out_h, out_w, teams, top, left):
        """y = the largest of each window, NaN where it holds one; `teams`: of rows of a plane."""
        k = cuda.grid(1)
        if k < size:
            seen = pointer_to(cuda.local.array(held, kind))
            line = div32(k, out_w)
            j = k - line * out_w
            plane = div32(line, teams)
            i = (line - plane * teams) * own
            h0, w0 = i * stride_h - top, j * stride_w - left
            source = offset(x, plane * height * width)
            target = offset(y, (plane * out_h + i) * out_w + j)
            for r in range(seen_rows):
                row = offset(source, min(max(h0 + r, 0), height - 1) * width)
                for s in range(kernel_w):
                    seen[r * kernel_w + s] = row[min(max(w0 + s, 0), width - 1)]
            for p in range(own):
                window = offset(seen, p * stride_h * kernel_w)
                found = window[0]
                for t in range(1, kernel_h * kernel_w):
                    v = window[t]
                    found = pick((v > found) | (v != v), v, found)
                if i + p < out_h:
                    target[p * out_w] = found

    return highest


def small(rows: Window, columns: Window) -> bool:
    sizes = (rows.kernel, columns.kernel, rows.stride, columns.stride)
    plain = rows.dilation == columns.dilation == 1
    return plain and max(sizes) <= 5 and rows.kernel * columns.kernel <= _MOST


def small_maxima(x: Arg, y: Arg, rows: Window, columns: Window) -> list[Grid] | None:
    """Launches for y [N, C, H', W'] from x [N, C, H, W]; None where windows are not small."""
    if not (small(rows, columns) and x.size):
        return None
    shape = (rows.kernel, columns.kernel, rows.stride, columns.stride)
    teams = -(-y.shape[2] // OWN)
    size = y.shape[0] * y.shape[1] * teams * y.shape[3]
    if not 0 < size < LIMIT:
        return None
    kernel = highest_of_few(*shape, np.dtype(x.dtype.numpy))
    places = (*x.shape[2:], *y.shape[2:], teams, rows.before, columns.before)
    grid = -(-size // THREADS)
    return [Grid(kernel, x, y, size, *places, grid=grid, block=THREADS)]


@cache
def places_of_few(kernel_h: int, kernel_w: int, kind: np.dtype):
    held = kernel_h * kernel_w

    def largest_places(
        x, places, size, height, width, out_h, out_w, stride_h, stride_w, top, left
    ):  # fmt: skip
        """Which of its elements, counted row by row, is the largest of each window: the first such,
        or the last NaN.
        """
        k = cuda.grid(1)
        if k < size:
            seen = pointer_to(cuda.local.array(held, kind))
            row = div32(k, out_w)
            plane = div32(row, out_h)
            h0, w0 = (row - plane * out_h) * stride_h - top, (k - row * out_w) * stride_w - left
            source = offset(x, plane * height * width)
            for r in range(kernel_h):
                line = offset(source, min(max(h0 + r, 0), height - 1) * width)
                for s in range(kernel_w):
                    seen[r * kernel_w + s] = line[min(max(w0 + s, 0), width - 1)]
            place = _NONE
            found = seen[0]
            for r in range(kernel_h):
                for s in range(kernel_w):
                    v = seen[r * kernel_w + s]
                    h, w = h0 + r, w0 + s
                    inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
                    taken = inside & ((place == _NONE) | (v > found) | (v != v))
                    place = r * kernel_w + s if taken else place
                    found = pick(taken, v, found)
            places[k] = place

    return largest_places


@cache
def gradient_of_few(kernel_h: int, kernel_w: int, stride_h: int, stride_w: int):
    """A thread has the pixels between one window's first and the next one's, which are in the same
    windows.
    """
    across_h, across_w = -(-kernel_h // stride_h), -(-kernel_w // stride_w)
    windows = across_h * across_w

    def gradient(gy, places, gx, size, height, width, out_h, out_w, cells_h, cells_w, top, left):
        """gx = the sum of gy of the windows whose largest element a pixel is, in their order."""
        k = cuda.grid(1)
        if k < size:
            row = div32(k, cells_w)
            plane = div32(row, cells_h)
            last_i, last_j = row - plane * cells_h, k - row * cells_w
            shares, at = cuda.local.array(windows, real), cuda.local.array(windows, np.int32)
            for a in range(across_h):
                i = last_i - a
                line = (plane * out_h + min(max(i, 0), out_h - 1)) * out_w
                for b in range(across_w):
                    j = last_j - b
                    window = line + min(max(j, 0), out_w - 1)
                    there = (i >= 0) & (i < out_h) & (j >= 0) & (j < out_w)
                    shares[a * across_w + b] = gy[window]
                    at[a * across_w + b] = places[window] if there else _NONE
            h0, w0 = last_i * stride_h - top, last_j * stride_w - left
            for p in range(stride_h):
                for q in range(stride_w):
                    total = 0.0
                    for c in range(windows):
                        a, b = across_h - 1 - c // across_w, across_w - 1 - c % across_w
                        r, s = a * stride_h + p, b * stride_w + q
                        here = (at[a * across_w + b] == r * kernel_w + s) & (s < kernel_w)
                        total += pick(here, shares[a * across_w + b], 0.0)
                    h, w = h0 + p, w0 + q
                    if h >= 0 and h < height and w >= 0 and w < width:
                        gx[(plane * height + h) * width + w] = total

    return gradient


def small_maxima_gradient(
    gy: Arg, x: Arg, gx: Arg, rows: Window, columns: Window
) -> list[Grid] | None:
    """Launches for gx, like x [N, C, H, W], from gy [N, C, H', W']; None where windows are not
    small.
    """
    if not (small(rows, columns) and 0 < gy.size < LIMIT and 0 < gx.size < LIMIT):
        return None
    sizes = (*x.shape[2:], *gy.shape[2:])
    cells = [-(-(n + w.before) // w.stride) for n, w in zip(sizes, (rows, columns), strict=False)]
    count = prod(x.shape[:2]) * prod(cells)
    kernels, strides = (rows.kernel, columns.kernel), (rows.stride, columns.stride)
    padding, places = (rows.before, columns.before), Scratch(u8, gy.size)
    find = places_of_few(*kernels, np.dtype(x.dtype.numpy))
    return [
        Grid(
            *(find, x, places, gy.size, *sizes, *strides, *padding),
            grid=-(-gy.size // THREADS),
            block=THREADS,
        ),
        Grid(
            *(gradient_of_few(*kernels, *strides), gy, places, gx, count, *sizes, *cells, *padding),
            grid=-(-count // THREADS),
            block=THREADS,
        ),
    ]


def repeat_runs(x, y, size, height, width, out_h, in_line, rows, columns):
    """y = the nearest pixel of x, `RUN` neighbours a thread; `in_line`: of them in a row."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, in_line)
        plane = div32(row, out_h)
        at = (k - row * in_line) * RUN
        a, b = load2(columns, at)
        c, d = load2(columns, at + 2)
        source = offset(x, (plane * height + rows[row - plane * out_h]) * width)
        store4(y, k * RUN, (source[a], source[b], source[c], source[d]))


def repeated(x: Arg, y: Arg, before: Sequence[Sequence[int]]) -> list[Grid] | None:
    """Launches for y, whose rows and columns are those of x that `before` says; None where rows of
    y are not whole runs.
    """
    size, rest = divmod(y.size, RUN)
    if y.shape[3] % RUN or rest or not 0 < size < LIMIT:
        return None
    rows, columns = (tuple(b) for b in before)
    places = (*x.shape[2:], y.shape[2], y.shape[3] // RUN, rows, columns)
    grid = -(-size // THREADS)
    return [Grid(repeat_runs, x, y, size, *places, grid=grid, block=THREADS)]
