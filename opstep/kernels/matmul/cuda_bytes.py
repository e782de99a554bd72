"""Exact sums of products of bytes on CUDA, by the kernels for products of halves.

A byte less its zero point is a whole number from -255 to 255, which bf16 holds, and f32 holds the
sum of `TERMS` products of two, in whatever order they are added up. So sums are cut into parts of
so many terms, which are a batch of products; then the parts are added as integers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from opstep.kernels.matmul.cuda_gemm import product
from opstep.kernels.matmul.products import Side
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Held, Scratch
from opstep.runtime.ir.types import bf16, f32

TERMS = 256  # 256 * 255 * 255 < 2**24
FEWEST = 32  # terms that are worth it
THREADS = 256
_ROOM = 1 << 29  # bytes of working memory, about: parts beyond it come later


class Laid:
    """Matrices of lines and terms as halves, `some` parts of `length` terms: `count` of them, which
    `make` makes from term k on. `across`: lines are neighbours, else the terms of a line.
    """

    def __init__(self, lines: int, across: bool, count: int, make: Callable):
        self.lines, self.across, self.count, self.make = lines, across, count, make
        self.pitch = -(-lines // 8) * 8  # wide loads begin at each term

    def size(self, terms: int) -> int:
        """Elements for so many terms."""
        return self.count * terms * (self.pitch if self.across else self.lines)

    def side(self, array: Held, some: int, length: int, strides: tuple[int, ...]) -> Side:
        """`strides`: lines from one product to the next."""
        terms = some * length
        if self.across:
            matrix = terms * self.pitch
            batch = (length * self.pitch, *(s // self.lines * matrix for s in strides))
            return Side(array, 1, self.pitch, batch)
        return Side(array, terms, 1, (length, *(s * terms for s in strides)))


def exact_products(
    a: Laid, b: Laid, y: Arg, shape: tuple[int, ...], strides: tuple, m: int, n: int, k: int,
    bias: Arg | None = None,
) -> list[Grid] | None:  # fmt: skip
    """Launches for y = a·b, matrices [m, k] and [k, n], as many as `shape` counts, and a bias for
    the rows of each. None where there are too many elements.
    """
    parts = -(-k // TERMS)
    length = -(-k // parts // 8) * 8
    each = 4 * y.size + 2 * (a.size(length) + b.size(length))
    some = max(1, min(parts, _ROOM // each))
    if max(y.size * some, a.size(some * length), b.size(some * length)) >= LIMIT:
        return None
    left, right = (Held(f32, (side.size(some * length),), bf16) for side in (a, b))
    sums = Scratch(f32, some * y.size)
    sides = [
        side.side(array, some, length, steps)
        for side, array, steps in ((a, left, strides[0]), (b, right, strides[1]))
    ]
    right_side = Side(sides[1].array, sides[1].column, sides[1].row, sides[1].batch)
    made = product(sides[0], right_side, sums, (some, *shape), m, n, length)
    launches: list[Grid] = []
    each_bias = 0 if bias is None else int(bias.size > 1)
    for first in range(0, k, some * length):
        launches += [a.make(left, first, some * length), b.make(right, first, some * length), *made]
        biased = (bias is not None, each_bias, y.size // prod(shape[:1]), n)
        args = (sums, bias or y, y, some, first > 0, *biased, y.size)
        launches.append(Grid(add_parts, *args, grid=-(-y.size // THREADS), block=THREADS))
    return launches


def laid_bytes(x: Arg, zero: Arg | None, lines: int, k: int, across: bool) -> Laid:
    """Matrices of bytes less their zero points, one for all or one for each line."""

    def make(to: Held, first: int, terms: int) -> Grid:
        width = laid.pitch if across else terms
        each = zero is not None and zero.size > 1
        sizes = (lines, k, first, terms, width, across, zero is not None, each, to.size)
        grid = -(-to.size // THREADS)
        return Grid(lay_bytes, x, zero or x, to, *sizes, grid=grid, block=THREADS)

    laid = Laid(lines, across, x.size // max(1, lines * k), make)
    return laid


# --- kernels --------------------------------------------------------------------------------------


def lay_bytes(
    x, zero, y, lines, k, first, terms, width, across, shifted, each, size
):  # fmt: skip
    i = cuda.grid(1)
    if i < size:
        row = div32(i, width)
        column = i - row * width
        matrix = div32(row, terms if across else lines)
        row -= matrix * (terms if across else lines)
        line, term = (column, first + row) if across else (row, first + column)
        found = 0
        if line < lines and term < k:
            at = (matrix * lines + line) * k + term
            if across:
                at = (matrix * k + term) * lines + line
            found = np.int64(x[at])
            if shifted:
                found -= np.int64(zero[line if each else 0])
        y[i] = found


def add_parts(parts, bias, y, some, further, biased, each, image, plane, size):
    """y, or more of it, and a bias for each plane of an image."""
    i = cuda.grid(1)
    if i < size:
        total = 0
        if further:
            total += np.int64(y[i])
        elif biased:
            total += np.int64(bias[div32(i - div32(i, image) * image, plane) if each else 0])
        for part in range(some):
            total += np.int64(parts[part * size + i])
        y[i] = total
