"""Distances between rows on CUDA, by tiles of rows and others in shared memory: a thread has four
distances, whose terms are added a tile's depth at a time, and these sums in f64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.matmul.products import batch_offset
from opstep.runtime.device.cuda.compiling.names import cuda, max_nan, real
from opstep.runtime.device.launch import Arg, Grid

SIDE = 32  # rows of a tile, and others
HALF = SIDE // 2
DEPTH = 32  # elements of a row that a tile holds
_TILE = (SIDE, DEPTH + 1)


def distances(
    a: Arg, b: Arg, y: Arg, shape: tuple, strides: list[tuple], p: float,
    term: Callable, largest: bool, root: Callable,
) -> Grid:  # fmt: skip
    """y = root(sum of term(a, b, p)), or of the largest; `shape`, `strides`: of leading axes."""
    rows, others, n = a.shape[-2], b.shape[-2], a.shape[-1]
    tiles = (-(-rows // SIDE), -(-others // SIDE))
    batches = y.size // (rows * others)
    kernel = tile_distances(term, largest, root)
    args = (a, b, y, shape, *strides, len(shape), rows, others, n, *tiles, p)
    return Grid(kernel, *args, grid=batches * tiles[0] * tiles[1], block=(HALF, HALF))


@cache
def tile_distances(term: Callable, largest: bool, root: Callable) -> Callable:
    def merged(total, own):
        return max_nan(total, own) if largest else total + own

    def fetch(x, tile, base, first, count, start, n):
        """Rows of a tile; zeros where there are none, which are no distance."""
        for r in range(cuda.threadIdx.y, SIDE, HALF):
            for k in range(cuda.threadIdx.x, DEPTH, HALF):
                there = first + r < count and start + k < n
                tile[r, k] = x[(base + first + r) * n + start + k] if there else 0.0

    def put(y, batch, row, column, rows, others, total, p):
        if row < rows and column < others:
            y[(batch * rows + row) * others + column] = root(total, p)

    def tile_distances(
        a, b, y, shape, a_strides, b_strides, rank, rows, others, n, down, across, p
    ):
        left = cuda.shared.array(_TILE, real)
        right = cuda.shared.array(_TILE, real)
        block = np.int64(cuda.blockIdx.x)
        line = block // across
        column = (block - line * across) * SIDE
        batch = line // down
        row = (line - batch * down) * SIDE
        of_a = batch_offset(batch, rank, shape, a_strides) * rows
        of_b = batch_offset(batch, rank, shape, b_strides) * others
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        t00, t01, t10, t11 = np.float64(0), np.float64(0), np.float64(0), np.float64(0)
        for start in range(0, n, DEPTH):
            cuda.syncthreads()
            fetch(a, left, of_a, row, rows, start, n)
            fetch(b, right, of_b, column, others, start, n)
            cuda.syncthreads()
            s00, s01, s10, s11 = real(0.0), real(0.0), real(0.0), real(0.0)
            for k in range(min(DEPTH, n - start)):
                u, v = left[i, k], left[i + HALF, k]
                w, x = right[j, k], right[j + HALF, k]
                s00, s01 = merged(s00, term(u, w, p)), merged(s01, term(u, x, p))
                s10, s11 = merged(s10, term(v, w, p)), merged(s11, term(v, x, p))
            t00, t01 = merged(t00, np.float64(s00)), merged(t01, np.float64(s01))
            t10, t11 = merged(t10, np.float64(s10)), merged(t11, np.float64(s11))
        put(y, batch, row + i, column + j, rows, others, t00, p)
        put(y, batch, row + i, column + j + HALF, rows, others, t01, p)
        put(y, batch, row + i + HALF, column + j, rows, others, t10, p)
        put(y, batch, row + i + HALF, column + j + HALF, rows, others, t11, p)

    return tile_distances
