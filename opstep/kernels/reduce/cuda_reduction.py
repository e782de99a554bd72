"""Reductions on CUDA, over any axes.

As on the CPU, axes are merged into groups that are kept and groups that are reduced. If the last
group is reduced, a power of 2 of neighbouring threads (`lanes`, up to a block) folds each result
from *rows* of neighbouring elements. If it is kept, threads fold *columns*, a vector of
neighbouring results each, and the threads of a block that share columns join what they have. Where
results are few and long, each is folded by several blocks into states, which a second launch joins:
the order depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.reduce.cuda_columns import by_columns
from opstep.kernels.reduce.cuda_folding import (
    THREADS,
    finisher,
    folded_by,
    power_of_two,
    term_of,
    together,
)
from opstep.kernels.reduce.folds import Fold
from opstep.kernels.reduce.reduction import Groups, group
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

PIECE = 65536  # elements; a longer run is folded in pieces
BUSY = 1 << 18  # threads that fill a large GPU
LEAST = 1 << 14  # elements worth a block of their own
SHARE = 16  # vectors that a thread folds, where there are enough threads
RESIDENT = 4  # blocks of rows that a multiprocessor holds at least
ROW_BLOCKS = 1056  # about so many blocks share results that are few


def reduce(fold: Fold, x: Arg, y: Arg, axes: Sequence[int], count: int = 0) -> list[Grid] | None:
    """Launches that reduce x over the axes into y; None where x is too large for the kernels.
    `count` is handed to `finish`.
    """
    if x.size == 0:
        args = (y, y.size, count)
        return [Grid(fold_nothing(fold), *args, grid=-(-y.size // THREADS), block=THREADS)]
    s = group(x.shape, axes)
    results = s.kept * (s.n if s.columns else 1)
    rows = s.rows * (1 if s.columns else -(-s.n // PIECE))
    if max(results, rows) >= LIMIT:
        return None
    form = by_columns if s.columns else _rows
    return form(fold, s, x, y, count)


@cache
def fold_nothing(fold: Fold):
    start, finish = fold.start, fold.finish

    def kernel(y, n, count):
        i = cuda.grid(1)
        if i < n:
            y[i] = finish(start(), count)

    kernel.__name__ = fold.name
    return kernel


# --- rows -----------------------------------------------------------------------------------------


@cache
def rows_kernel(fold: Fold, width: int, raw: bool):
    """Units are parts of results: `lanes` threads each, `wide` of them side by side over a run."""
    start, load, widen, combine = fold.start, fold.load, fold.widen, fold.combine
    term, folded, finish = term_of(fold, width), together(fold), finisher(fold, raw)
    vector = Intrinsic("load", width)

    def run(x, p, length, lane, wide, place, state):
        """Folds length elements from p on: single ones up to a vector's place, vectors, more."""
        ahead = min(-p & (width - 1), length)
        j = lane
        while j < ahead:
            state = combine(state, widen(load(x[p + j], place + j)))
            j += wide
        j = ahead + lane * width
        jump = wide * width
        while j + 3 * jump + width <= length:
            v0 = vector(x, p + j)
            v1 = vector(x, p + j + jump)
            v2 = vector(x, p + j + 2 * jump)
            v3 = vector(x, p + j + 3 * jump)
            state = combine(state, widen(term(v0, place + j)))
            state = combine(state, widen(term(v1, place + j + jump)))
            state = combine(state, widen(term(v2, place + j + 2 * jump)))
            state = combine(state, widen(term(v3, place + j + 3 * jump)))
            j += 4 * jump
        while j + width <= length:
            state = combine(state, widen(term(vector(x, p + j), place + j)))
            j += jump
        j = ahead + ((length - ahead) & -width) + lane
        while j < length:
            state = combine(state, widen(load(x[p + j], place + j)))
            j += wide
        return state

    def kernel(
        x, y, more, kept_sizes, kept_strides, kept, row_sizes, row_strides, axes,
        units, rows, per, blocks, pieces, piece, n, lanes_bits, wide_bits, count,
    ):  # fmt: skip
        lanes = 1 << lanes_bits
        wide = 1 << wide_bits
        lane = cuda.threadIdx.x & (lanes - 1)
        unit = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> lanes_bits
        state = start()
        if unit < units:
            i = unit if blocks == 1 else div32(unit, blocks)
            begin = (unit - i * blocks) * per
            base = spot(i, kept_sizes, kept_strides, kept)
            tall = lanes >> wide_bits
            r = begin + (lane >> wide_bits)
            end = min(begin + per, rows)
            while r < end:
                p = base
                length = n
                done = 0
                if rows == 1:
                    pass
                elif pieces == 1:
                    p += spot(r, row_sizes, row_strides, axes)
                else:
                    row = div32(r, pieces)
                    done = (r - row * pieces) * piece
                    p += spot(row, row_sizes, row_strides, axes) + done
                    length = min(piece, n - done)
                state = run(x, p, length, lane & (wide - 1), wide, done, state)
                r += tall
        state = folded(state, lanes)
        if unit < units and lane == 0:
            finish(y, more, unit, state, count)

    kernel.__name__ = fold.name
    return kernel


def _rows(fold: Fold, s: Groups, x: Arg, y: Arg, count: int) -> list[Grid]:
    width = 16 // x.stored.itemsize
    pieces = -(-s.n // PIECE)
    rows = s.rows * pieces
    vectors = -(-min(s.n, PIECE) // width)  # of a run
    each = s.rows * -(-s.n // width)  # of a result
    blocks = 1
    if s.kept * THREADS < BUSY and s.rows * s.n > 2 * LEAST and rows > 1:
        blocks = min(rows, ROW_BLOCKS // s.kept or 1, -(-s.rows * s.n // LEAST))
    per = -(-rows // blocks)
    blocks = -(-rows // per)
    lanes = _lanes(s.kept * blocks, -(-each // blocks))
    wide = min(lanes, power_of_two(vectors))
    units = s.kept * blocks

    def first(raw, *into):
        return Grid(
            rows_kernel(fold, width, raw),
            *(x, *into, *s.about()),
            *(units, rows, per, blocks, pieces, PIECE, s.n),
            *(lanes.bit_length() - 1, wide.bit_length() - 1, count),
            grid=-(-units // (THREADS // lanes)),
            block=THREADS,
            blocks=RESIDENT,
        )

    return folded_by(fold, y, blocks, 1, count, first)


def _lanes(results: int, vectors: int) -> int:
    """Threads for a result: each with vectors enough to pay for the joining, unless that would
    leave the GPU idle.
    """
    lanes = max(min(4, power_of_two(vectors // 4)), min(THREADS, power_of_two(vectors // SHARE)))
    while lanes < min(THREADS, power_of_two(vectors)) and results * lanes < BUSY:
        lanes *= 2
    return lanes
