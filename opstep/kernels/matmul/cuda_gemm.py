"""Matrix products on CUDA: which kernel, which tiles, and how the terms of long sums are shared.

All is chosen from shapes and dtypes, never from the GPU or what else runs, so that a product's bits
are the same everywhere.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from opstep.kernels.matmul.cuda_gemm_simt import adding, multiply_integers, tiled
from opstep.kernels.matmul.cuda_gemm_tensor_cores import tensor_tiled
from opstep.kernels.matmul.cuda_gemm_tiles import PLAIN, WARPGROUPS, cheapest, of_halves
from opstep.kernels.matmul.cuda_tile import Tile, WarpTile
from opstep.kernels.matmul.products import Side
from opstep.kernels.pointwise.cuda_epilogue import Unfinished, ending_of
from opstep.runtime.device.cuda.compiling.target import architecture
from opstep.runtime.device.launch import Arg, Grid, Scratch

THREADS = 256  # of a block of what is no tile
_RESIDENT = 2048  # threads that a multiprocessor should hold, times the bytes of an element


class Operand(NamedTuple):
    """A matrix operand as a kernel reads it."""

    array: Arg | Scratch
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


class Result(NamedTuple):
    """Where sums go: rows of contiguous columns."""

    array: Arg | Scratch
    pitch: int
    batch: tuple[int, ...]
    contiguous: bool  # without gaps

    def wide(self, columns: int, most: int) -> int:
        """`most`, where so many elements can always be written at once, else 1."""
        return 1 if any(s % most for s in (columns, self.pitch, *self.batch)) else most


def product(
    a: Side,
    b: Side,
    c: Arg | Scratch,
    shape: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    bias: Arg | None = None,
    c_pitch: int = 0,
    c_batch: tuple[int, ...] = (),
    zeros: tuple[Arg | None, Arg | None] = (None, None),
) -> list[Grid]:
    """Launches for c = a·b (+ a bias for each column): matrices [m, k] and [k, n], as many as
    `shape` counts. With `c_pitch` that many elements lie between rows of c, whose columns are
    contiguous, and as `c_batch` says between matrices; else c is whole. `zeros`: zero points of
    bytes.
    """
    if not c.size:
        return []
    dense = tuple(m * n * prod(shape[d + 1 :]) for d in range(len(shape)))
    whole = not c_pitch or ((c_pitch == n or m == 1) and c_batch == dense)
    if whole:
        c_pitch, c_batch = n, dense
    shape, a_batch, b_batch, c_batch = _merged(shape, a.batch, b.batch, c_batch)
    if not c.dtype.is_float:
        a_zero, b_zero = zeros
        shifted = (a_zero is not None) + 2 * (b_zero is not None)
        return [
            Grid(
                *(multiply_integers, a.array, b.array, bias or a.array, c),
                *(
                    a_zero or a.array,
                    b_zero or b.array,
                    shape,
                    a_batch,
                    b_batch,
                    c_batch,
                    len(shape),
                    m,
                    n,
                    k,
                ),
                *(a.row, a.column, b.row, b.column, c_pitch, c.size, bias is not None),
                *(shifted, b_zero is not None and b_zero.rank > 0),
                grid=-(-c.size // THREADS),
                block=THREADS,
            )
        ]
    left = _operand(a.array, a.row, a.column, a_batch, m, k)
    right = _operand(b.array, b.column, b.row, b_batch, n, k)
    return _tiled(left, right, Result(c, c_pitch, c_batch, whole), shape, bias)


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


def _tiled(a: Operand, b: Operand, out: Result, shape, bias: Arg | None) -> list[Grid]:
    m, n, k, count = a.extent, b.extent, a.terms, prod(shape)
    c = out.array
    halves = halves_of(a.array, b.array)
    ending, by_row, rest = None, False, ()
    paces = of_halves() if halves else PLAIN[c.dtype.itemsize]
    tile, parts = cheapest(paces, m, n, k, count, out.contiguous)
    part_steps = -(-k // (parts * tile.steps)) * tile.steps if k else tile.steps
    parts = max(1, -(-k // part_steps))
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    if isinstance(tile, WarpTile):
        wide = (a.wide(8) > 1, b.wide(8) > 1, out.wide(n, 4))
        if parts == 1 and out.contiguous:
            ending, rest = ending_of(c, n, 1)
            if ending is None:
                ending, rest = ending_of(c, m, n)
                by_row = ending is not None
        kernel = tensor_tiled(tile, a.along, b.along, *wide, halves == "bf16", ending, by_row)
    else:
        run = min(tile.run, 4)
        wide = (a.wide(run), b.wide(run), out.wide(n, run))
        kernel = tiled(tile, a.along, b.along, *wide)
    if parts > 1:
        batch = tuple(parts * step for step in out.batch)
        out = Result(Scratch(c.dtype, parts * c.size), n, batch, True)
    fused = bias is not None and parts == 1
    launches = [
        Grid(
            *(kernel, a.array, b.array, bias or a.array, out.array),
            *(shape, a.batch, b.batch, out.batch, len(shape), m, n, k),
            *(a.pitch, b.pitch, out.pitch, down, across, parts, part_steps, fused),
            *rest,
            grid=down * across * parts * count,
            block=tile.threads,
            shared=tile.shared if isinstance(tile, WarpTile) else 0,
            blocks=_together(tile),
        )
    ]
    if parts > 1:
        launches.append(added(out.array, bias, c, m * n, n, parts))
    return launches


def _together(tile: Tile | WarpTile) -> int:
    """Blocks that a multiprocessor is to hold, for which registers are rationed; 0: no matter."""
    if isinstance(tile, Tile):
        return _RESIDENT // (tile.itemsize * tile.threads)
    return next(pace.together for pace in WARPGROUPS if pace.tile == tile) if tile.warpgroups else 0


def halves_of(a: Arg | Scratch, b: Arg | Scratch) -> str:
    """The name of their type where both are stored as halves of one, else nothing."""
    alike = a.stored is b.stored and a.stored.is_half
    return a.stored.name if alike and architecture() >= 80 else ""


def added(
    parts, bias: Arg | None, c: Arg | Scratch, count: int, n: int, part_count: int, plane: int = 0
) -> Grid:
    """Sums of parts of sums, in their order: matrices of `count` elements in rows of n; with
    `plane`, planes of so many, and n channels of them. A bias is one for each column, or channel.
    """
    channels, inner = (c.channels, c.inner) if isinstance(c, Unfinished) else (1, 1)
    if plane:
        channels, inner = n, plane
    ending, rest = ending_of(c, channels, inner)
    return Grid(
        *(adding(ending, plane > 0), parts, bias or parts, c, c.size, count, n, part_count),
        *(bias is not None, inner, channels, *rest),
        grid=-(-c.size // THREADS),
        block=THREADS,
    )
