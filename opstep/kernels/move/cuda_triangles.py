"""Triangles of matrices on CUDA: a vector of neighbours a thread, of which zeros are not read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

THREADS = 256  # of a block


def triangle(x: Arg, y: Arg, rows: int, columns: int, border: int, lower: bool) -> Grid:
    """Of row i, columns below i + `border` are on the lower side."""
    width = min(8, 16 // x.dtype.itemsize)
    kernel = triangle_kernel(width, x.dtype.numpy.type, lower, x.size >= LIMIT)
    grid = -(-x.size // (THREADS * width))
    return Grid(kernel, x, y, x.size, rows, columns, border, grid=grid, block=THREADS)


@cache
def triangle_kernel(width: int, kind, lower: bool, large: bool) -> Callable:
    load, store, gathered = Intrinsic("load", width), Intrinsic("store", width), GATHERED[width]
    quotient = floor_quotient if large else div32

    def copy_triangle(x, y, n, rows, columns, border):
        at = cuda.grid(1) * width
        if at >= n:
            return
        row = quotient(at, columns)
        column = at - row * columns
        first = row - quotient(row, rows) * rows + border  # column on the other side
        whole = at + width <= n
        kept = column < first if lower else column + width > first
        if whole and not kept and column + width <= columns:
            values = cuda.local.array(width, kind)
            for k in range(width):
                values[k] = 0
            store(y, at, gathered(values, 0))
            return
        values = cuda.local.array(width, kind)
        if whole:
            vector = load(x, at)
            for k in range(width):
                values[k] = vector[k]
        for k in range(width):
            if not whole and at + k < n:
                values[k] = x[at + k]
            if (column < first) != lower:
                values[k] = 0
            if not whole and at + k < n:
                y[at + k] = values[k]
            column += 1
            if column == columns:  # the next row, or the first one of the next matrix
                column = 0
                row += 1
                first = row - quotient(row, rows) * rows + border
        if whole:
            store(y, at, gathered(values, 0))

    return copy_triangle
