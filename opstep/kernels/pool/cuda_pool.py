"""Pooling and upsampling of planes on CUDA: a thread a pixel of the result, so that what neighbours
read lies side by side. Gradients are gathered: each pixel asks the windows that it is in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from opstep.kernels.conv.windows import Window
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.pool.cuda_pool_runs import repeated, small_maxima, small_maxima_gradient
from opstep.kernels.pool.pooling import argmax_of_window
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import i32, i64

THREADS = 256

# --- maxima ---------------------------------------------------------------------------------------


def highest(
    x, y, lowest, size, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top,
    left, dilation_h, dilation_w,
):  # fmt: skip
    """y = the largest of each window, NaN where it holds one."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, out_w)
        plane = div32(row, out_h)
        h0 = (row - plane * out_h) * stride_h - top
        w0 = (k - row * out_w) * stride_w - left
        source = offset(x, plane * height * width)
        found = lowest
        for r in range(kernel_h):
            h = h0 + r * dilation_h
            if h >= 0 and h < height:
                for s in range(kernel_w):
                    w = w0 + s * dilation_w
                    if w >= 0 and w < width:
                        v = source[h * width + w]
                        if v > found or v != v:
                            found = v
        y[k] = found


def max_and_index(
    x, y, indices, lowest, size, height, width, out_h, out_w, kernel_h, kernel_w, stride_h,
    stride_w, top, left, dilation_h, dilation_w,
):  # fmt: skip
    """The same, and where in its plane each stands."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, out_w)
        plane = div32(row, out_h)
        source = offset(x, plane * height * width)
        at = -1
        if height * width > 0:
            at = argmax_of_window(
                source, height, width, (row - plane * out_h) * stride_h - top,
                (k - row * out_w) * stride_w - left, kernel_h, kernel_w, dilation_h, dilation_w,
            )  # fmt: skip
        if at < 0:
            y[k] = lowest
            indices[k] = 0
        else:
            y[k] = source[at]
            indices[k] = at


def max_indices(
    x, indices, size, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top,
    left, dilation_h, dilation_w,
):  # fmt: skip
    """Where in its plane the largest of each window stands; -1: it has no pixels."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, out_w)
        plane = div32(row, out_h)
        indices[k] = argmax_of_window(
            offset(x, plane * height * width), height, width,
            (row - plane * out_h) * stride_h - top, (k - row * out_w) * stride_w - left, kernel_h,
            kernel_w, dilation_h, dilation_w,
        )  # fmt: skip


def max_gradient(
    gy, indices, gx, size, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top,
    left, dilation_h, dilation_w,
):  # fmt: skip
    """gx = the sum of gy of the windows whose largest element a pixel is."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, width)
        plane = div32(row, height)
        at_h, at_w = row - plane * height, k - row * width
        place = at_h * width + at_w
        first = plane * out_h * out_w
        total = 0.0
        for r in range(kernel_h - 1, -1, -1):  # windows in order of their rows
            h = at_h + top - r * dilation_h
            i = div32(h, stride_h) if h >= 0 else 0
            if h >= 0 and i * stride_h == h and i < out_h:
                for s in range(kernel_w - 1, -1, -1):
                    w = at_w + left - s * dilation_w
                    j = div32(w, stride_w) if w >= 0 else 0
                    if w >= 0 and j * stride_w == w and j < out_w:
                        window = first + i * out_w + j
                        if indices[window] == place:
                            total += gy[window]
        gx[k] = total


def maxima(x: Arg, y: Arg, lowest: float | int, rows: Window, columns: Window) -> list[Grid]:
    """Launches for y [N, C, H', W'] from x [N, C, H, W]."""
    small = small_maxima(x, y, rows, columns)
    if small is not None:
        return small
    return _over(highest, y, x, y, lowest, sizes=_both(x, y, rows, columns))


def maxima_and_indices(
    x: Arg, y: Arg, indices: Arg, lowest: float | int, rows: Window, columns: Window
) -> list[Grid]:
    sizes = _both(x, y, rows, columns)
    return _over(max_and_index, y, x, y, indices, lowest, sizes=sizes)


def maxima_gradient(gy: Arg, x: Arg, gx: Arg, rows: Window, columns: Window) -> list[Grid]:
    """Looked for once, a window's largest element need not be looked for by each of its pixels."""
    small = small_maxima_gradient(gy, x, gx, rows, columns)
    if small is not None:
        return small
    sizes = _both(x, gy, rows, columns)
    indices = Scratch(i32 if x.shape[2] * x.shape[3] < 1 << 31 else i64, gy.size)
    found = _over(max_indices, gy, x, indices, sizes=sizes)
    return [*found, *_over(max_gradient, gx, gy, indices, gx, sizes=sizes)]


def _both(x: Arg, y: Arg, a: Window, b: Window) -> tuple:
    return (
        *(*x.shape[2:], *y.shape[2:], a.kernel, b.kernel, a.stride, b.stride),
        *(a.before, b.before, a.dilation, b.dilation),
    )


def _over(kernel: Callable, result: Arg, *args, sizes: Sequence) -> list[Grid]:
    """A thread for each element of the result."""
    if not result.size:
        return []
    if result.size >= LIMIT:
        raise Mismatch("on CUDA images have less than 2**32 pixels in all")
    grid = -(-result.size // THREADS)
    return [Grid(kernel, *args, result.size, *sizes, grid=grid, block=THREADS)]


# --- means ----------------------------------------------------------------------------------------


def average(
    x, y, size, height, width, out_h, out_w, row_from, row_to, row_count, column_from, column_to,
    column_count,
):  # fmt: skip
    """y = the sum of x[rows of i, columns of j] / their counts."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, out_w)
        plane = div32(row, out_h)
        i, j = row - plane * out_h, k - row * out_w
        source = offset(x, plane * height * width)
        total = 0.0
        for h in range(row_from[i], row_to[i]):
            part = 0.0
            for w in range(column_from[j], column_to[j]):
                part += source[h * width + w]
            total += part
        y[k] = total / real(row_count[i] * column_count[j])


def average_gradient(
    gy, gx, size, height, width, out_h, out_w, row_first, row_end, row_count, column_first,
    column_end, column_count,
):  # fmt: skip
    """gx = the sum of the shares that a pixel has in the windows it is in."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, width)
        plane = div32(row, height)
        h, w = row - plane * height, k - row * width
        plane_gy = offset(gy, plane * out_h * out_w)
        total = 0.0
        for i in range(row_first[h], row_end[h]):
            for j in range(column_first[w], column_end[w]):
                total += plane_gy[i * out_w + j] / real(row_count[i] * column_count[j])
        gx[k] = total


def means(x: Arg, y: Arg, tables: Sequence[tuple[int, ...]]) -> list[Grid]:
    """`tables`: where windows begin and end, and what their sums are divided by; rows, then
    columns.
    """
    return _over(average, y, x, y, sizes=(*x.shape[2:], *y.shape[2:], *tables))


def means_gradient(gy: Arg, gx: Arg, tables: Sequence[tuple[int, ...]]) -> list[Grid]:
    tables_gx: list[tuple[int, ...]] = []
    for size, (begins, ends, counts) in zip(gx.shape[2:], (tables[:3], tables[3:]), strict=True):
        tables_gx += [
            tuple(bisect_right(ends, place) for place in range(size)),
            tuple(bisect_right(begins, place) for place in range(size)),
            counts,
        ]
    return _over(average_gradient, gx, gy, gx, sizes=(*gx.shape[2:], *gy.shape[2:], *tables_gx))


# --- upsampling -----------------------------------------------------------------------------------


def repeat(x, y, size, height, width, out_h, out_w, rows, columns):
    """y = the nearest pixel of x."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, out_w)
        plane = div32(row, out_h)
        source = plane * height + rows[row - plane * out_h]
        y[k] = x[source * width + columns[k - row * out_w]]


def repeated_gradient(
    gy, gx, size, height, width, out_h, out_w, row_first, row_end, column_first, column_end
):  # fmt: skip
    """gx = the sum of what was taken from a pixel."""
    k = cuda.grid(1)
    if k < size:
        row = div32(k, width)
        plane = div32(row, height)
        h, w = row - plane * height, k - row * width
        total = 0.0
        for i in range(row_first[h], row_end[h]):
            source = offset(gy, (plane * out_h + i) * out_w)
            for j in range(column_first[w], column_end[w]):
                total += source[j]
        gx[k] = total


def upsampled(x: Arg, y: Arg, before: Sequence[Sequence[int]]) -> list[Grid]:
    """`before`: for each row and each column of y the one of x that it repeats."""
    tables = tuple(tuple(b) for b in before)
    sizes = (*x.shape[2:], *y.shape[2:], *tables)
    return repeated(x, y, tables) or _over(repeat, y, x, y, sizes=sizes)


def upsampled_gradient(gy: Arg, gx: Arg, before: Sequence[Sequence[int]]) -> list[Grid]:
    """The same for gx from gy."""
    ranges: list[tuple[int, ...]] = []
    for size, found in zip(gx.shape[2:], before, strict=True):
        ranges += [
            tuple(bisect_left(found, place) for place in range(size)),
            tuple(bisect_right(found, place) for place in range(size)),
        ]
    return _over(repeated_gradient, gx, gy, gx, sizes=(*gx.shape[2:], *gy.shape[2:], *ranges))
