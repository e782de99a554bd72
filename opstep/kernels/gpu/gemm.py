"""Matrix products on CUDA: which kernel, which tiles, and how the terms of long sums are shared.

All is chosen from shapes and dtypes, never from the GPU or what else runs, so that a product's bits
are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.kernels.gpu.gemm_simt import add_parts, multiply_integers, tiled
from opstep.kernels.gpu.gemm_tensor import tensor_tiled
from opstep.kernels.gpu.gemm_vector import THREADS, WARPS, dots, weighted
from opstep.kernels.gpu.tile import Tile, WarpTile
from opstep.runtime.device.cuda.target import architecture
from opstep.runtime.device.launch import Arg, Grid, Scratch

if TYPE_CHECKING:
    from opstep.kernels.matmul import Side

_MULTIPROCESSORS = 128  # that work is cut for
_PARTS = 128  # of a sum, at most

# Tiles, and how many multiplications a multiprocessor does with them in a cycle.
_TILES = {
    4: (
        (Tile(128, 128, 16, 8, 8), 100),
        (Tile(64, 128, 16, 8, 8), 90),
        (Tile(64, 64, 16, 8, 4), 75),
        (Tile(32, 32, 16, 4, 4), 40),
        (Tile(16, 128, 16, 4, 8), 50),
    ),
    8: (
        (Tile(64, 64, 16, 8, 4, 8), 40),
        (Tile(32, 32, 16, 4, 4, 8), 25),
    ),
}
_HALF_TILES = (
    (WarpTile(128, 256, 64, 64, 3), 1000),
    (WarpTile(128, 128, 64, 32, 3), 800),
    (WarpTile(64, 64, 32, 32, 4), 500),
)
_WARPGROUP_TILES = (
    (WarpTile(128, 256, 16, 256, 4, True), 1800),
    (WarpTile(128, 128, 16, 128, 4, True), 1400),
    (WarpTile(64, 64, 32, 32, 4), 500),
)


class Operand(NamedTuple):
    """A matrix operand as a kernel reads it."""

    array: Arg
    along: bool  # contiguous along the sum
    pitch: int  # elements from line to line
    batch: tuple[int, ...]
    extent: int  # its rows, or columns, in the result
    terms: int

    def wide(self, most: int) -> int:
        """`most`, where so many elements can always be read at once, else 1."""
        length, lines = (self.terms, self.extent) if self.along else (self.extent, self.terms)
        steps = (length, *self.batch, *([self.pitch] if lines > 1 else []))
        return 1 if any(step % most for step in steps) else most


def product(
    a: Side,
    b: Side,
    c: Arg | Scratch,
    shape: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    bias: Arg | None = None,
) -> list[Grid]:
    """Launches for c = a·b (+ a bias for each column): matrices [m, k] and [k, n], as many as
    `shape` counts.
    """
    if not c.size:
        return []
    shape, a_batch, b_batch = _merged(shape, a.batch, b.batch)
    if not c.dtype.is_float:
        return [
            Grid(
                *(multiply_integers, a.array, b.array, bias or a.array, c),
                *(shape, a_batch, b_batch, len(shape), m, n, k),
                *(a.row, a.column, b.row, b.column, c.size, bias is not None),
                grid=-(-c.size // THREADS),
                block=THREADS,
            )
        ]
    left = _operand(a.array, a.row, a.column, a_batch, m, k)
    right = _operand(b.array, b.column, b.row, b_batch, n, k)
    if m == 1:
        return _with_vector(left, right, c, shape, bias, 1)
    if n == 1:
        return _with_vector(right, left, c, shape, bias, 0)
    return _tiled(left, right, c, shape, bias)


def _operand(array: Arg, across: int, along: int, batch, extent: int, terms: int) -> Operand:
    if along == 1 and (terms > 1 or across != 1):
        return Operand(array, True, across, batch, extent, terms)
    return Operand(array, False, along, batch, extent, terms)


def _merged(shape, *strides: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Axes of batches, those that step alike in all operands as one."""
    found: list[tuple[int, ...]] = []  # (extent, a stride for each operand)
    for extent, *steps in zip(shape, *strides, strict=True):
        if extent == 1:
            continue
        if found and all(s * extent == t for s, t in zip(steps, found[-1][1:], strict=True)):
            found[-1] = (found[-1][0] * extent, *steps)
        else:
            found.append((extent, *steps))
    columns = zip(*found, strict=True) if found else [()] * (1 + len(strides))
    return tuple(map(tuple, columns))


def _with_vector(
    x: Operand, matrix: Operand, c: Arg | Scratch, shape, bias: Arg | None, bias_step: int
) -> list[Grid]:
    """A vector by the lines of a matrix, or their sum weighted by it."""
    count, k, batches = matrix.extent, matrix.terms, prod(shape)
    most = min(8, 16 // _itemsize(matrix.array))
    wide = matrix.wide(most)
    if matrix.along:
        wide = min(wide, x.wide(most) if x.along else 1)
        team = 8 if k <= 64 * wide else 32 if count * batches > 1024 else THREADS
        lines, terms, kernel = THREADS // team, 4 * team * wide, dots(wide, team)
    else:
        lines, terms, kernel = 32 * wide, 16 * WARPS, weighted(wide)
    blocks = -(-count // lines)
    parts = max(1, min(_PARTS, 8 * _MULTIPROCESSORS // (blocks * batches), k // terms))
    part_steps = -(-k // (parts * terms)) * terms if k else terms
    parts = max(1, -(-k // part_steps))
    target = c if parts == 1 else Scratch(c.dtype, parts * c.size)
    launches = [
        Grid(
            *(kernel, x.array, matrix.array, bias or x.array, target),
            *(shape, x.batch, matrix.batch, len(shape), count, 1 if x.along else x.pitch),
            *(matrix.pitch, blocks, parts, part_steps, k, bias_step),
            bias is not None and parts == 1,
            grid=blocks * parts * batches,
            block=THREADS,
        )
    ]
    if parts > 1:
        launches.append(added(target, bias, c, count, count if bias_step else 1, parts))
    return launches


def _itemsize(array: Arg | Scratch) -> int:
    """Bytes of an element in memory."""
    return array.stored.itemsize if isinstance(array, Arg) else array.dtype.itemsize


def _tiled(a: Operand, b: Operand, c: Arg | Scratch, shape, bias: Arg | None) -> list[Grid]:
    m, n, k, count = a.extent, b.extent, a.terms, prod(shape)
    halves = _halves(a.array, b.array)
    tiles = _half_tiles() if halves else _TILES[c.dtype.itemsize]
    tile, parts = _cheapest(tiles, m, n, k, count)
    part_steps = -(-k // (parts * tile.steps)) * tile.steps if k else tile.steps
    parts = max(1, -(-k // part_steps))
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    if isinstance(tile, WarpTile):
        wide = (a.wide(8) > 1, b.wide(8) > 1, 1 if n % 2 else 2)
        kernel = tensor_tiled(tile, a.along, b.along, *wide, halves == "bf16")
    else:
        run = min(tile.run, 4)
        wide = (a.wide(run), b.wide(run), 1 if n % run else run)
        kernel = tiled(tile, a.along, b.along, *wide)
    target = c if parts == 1 else Scratch(c.dtype, parts * c.size)
    fused = bias is not None and parts == 1
    launches = [
        Grid(
            *(kernel, a.array, b.array, bias or a.array, target),
            *(shape, a.batch, b.batch, len(shape), m, n, k, a.pitch, b.pitch),
            *(down, across, parts, part_steps, fused),
            grid=down * across * parts * count,
            block=tile.threads,
            shared=tile.shared if isinstance(tile, WarpTile) else 0,
            blocks=0 if isinstance(tile, WarpTile) else 512 // tile.threads,
        )
    ]
    if parts > 1:
        launches.append(added(target, bias, c, m * n, n, parts))
    return launches


def _half_tiles() -> tuple:
    return _WARPGROUP_TILES if architecture() == 90 else _HALF_TILES


def _halves(a: Arg | Scratch, b: Arg | Scratch) -> str:
    """The name of their type where both are stored as halves of one, else nothing."""
    there = isinstance(a, Arg) and isinstance(b, Arg) and architecture() >= 80
    return a.stored.name if there and a.stored is b.stored and a.stored.is_half else ""


def added(parts, bias: Arg | None, c: Arg | Scratch, count: int, n: int, part_count: int) -> Grid:
    """Sums of parts of sums, in their order: matrices of `count` elements in rows of n."""
    return Grid(
        *(add_parts, parts, bias or parts, c, c.size, count, n, part_count, bias is not None),
        grid=-(-c.size // THREADS),
        block=THREADS,
    )


def _cheapest(tiles, m: int, n: int, k: int, count: int) -> tuple[Any, int]:
    """The tile, and in how many parts sums are cut, that should take the least time."""
    return min(_costs(tiles, m, n, k, count), key=lambda found: found[0])[1:]


def _costs(tiles, m: int, n: int, k: int, count: int) -> Iterator[tuple[float, Any, int]]:
    for tile, pace in tiles:
        blocks = -(-m // tile.rows) * -(-n // tile.columns) * count
        parts = 1
        while parts <= _PARTS and (parts == 1 or k // parts >= 4 * tile.steps):
            waves = -(-blocks * parts // _MULTIPROCESSORS)
            terms = -(-k // parts) + 2 * tile.steps  # filling and emptying a tile takes time too
            cost = waves * terms * tile.rows * tile.columns / pace  # cycles
            if parts > 1:
                cost += 3000 + count * m * n * parts / 400  # a launch; elements a cycle
            yield cost, tile, parts
            parts *= 2
