"""Roots and equations of triangular matrices on CUDA, by panels of `EDGE` rows.

A block factors a panel's diagonal block in shared memory; blocks of threads solve for what stands
beside it, in tiles; then tiles over a grid take the panel's share from all that is left. The latter
are matrix products, the block of the next diagonal block goes on to factor it: two launches for
each panel.

Terms are added up by four threads a line, each its own in order, then between them.
"""

from __future__ import annotations

import math
from functools import cache
from math import prod

from opstep.kernels.matmul.cuda_tile import Tile, fetcher, putter, thread_origin
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    pointer_to,
    real,
    shuffle_xor,
    spread,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic

EDGE = 64  # rows of a panel
_SHARES = 4  # threads of a line
_THREADS = EDGE * _SHARES
_STEPS = {4: 32, 8: 16}  # terms at once of a product, by bytes of an element


def factor(a: Arg, y: Arg) -> list[Grid]:
    n = a.shape[-1]
    batches = prod(a.shape[:-2])
    if not y.size:
        return []
    edge = _edge(n)
    made = _unrounded(y) if n > EDGE else y
    square = n * n
    launches = [
        Grid(
            *(factoring(edge), a, made, square, n, min(n, edge)),
            grid=batches,
            block=edge * _SHARES,
            shared=_room(made, edge),
        )
    ]
    rows_solved = substituting(EDGE, True, True, True)
    for at in range(EDGE, n, EDGE):
        known = a if at == EDGE else made
        left, before = n - at, at - EDGE
        blocks = -(-left // EDGE)
        corner, beside = before * (n + 1), at * n + before
        launches.append(
            Grid(
                *(rows_solved, made, known, made, square, square, blocks, left, EDGE),
                *(corner, n, 1, beside, 1, n, before * n + at, 0),
                grid=batches * blocks,
                block=_THREADS,
                shared=2 * _room(made, EDGE),
            )
        )
        sides = (beside, beside, n, at * (n + 1))
        launches.append(_update(made, known, made, n, sides, (left, left), True, True))
    return [*launches, *_rounded(made, y)]


def solve(a: Arg, b: Arg, y: Arg, upper: bool, transpose: bool, unit: bool) -> list[Grid]:
    n, columns = b.shape[-2:]
    if not y.size:
        return []
    batches, edge = prod(b.shape[:-2]), _edge(n)
    made = _unrounded(y) if n > EDGE else y
    forward = upper == transpose
    step = 1 if forward else -1
    blocks = -(-columns // edge)
    solved = substituting(edge, not transpose, False, False)
    launches = []
    for done in range(0, n, EDGE):
        known = b if done == 0 else made
        some, left = min(EDGE, n - done), max(0, n - done - EDGE)
        first = done if forward else n - 1 - done
        strides = (step, step * n) if transpose else (step * n, step)
        launches.append(
            Grid(
                *(solved, a, known, made, n * n, n * columns, blocks, columns, some),
                *(first * (n + 1), *strides, first * columns, step * columns, 1, 0, int(unit)),
                grid=batches * blocks,
                block=edge * _SHARES,
                shared=2 * _room(made, edge),
            )
        )
        if left:
            panel, rest = (done, done + EDGE) if forward else (left, 0)
            at = panel * n + rest if transpose else rest * n + panel
            sides = (at, panel * columns, columns, rest * columns)
            sizes = (left, columns)
            launches.append(_update(a, known, made, n, sides, sizes, not transpose, False))
    return [*launches, *_rounded(made, y)]


def _edge(n: int) -> int:
    """Rows that a block has room for."""
    return next((edge for edge in (8, 16, 32) if n <= edge), EDGE)


def _unrounded(y: Arg) -> Arg | Scratch:
    """Memory for results while others are made of them."""
    return y if y.stored is y.dtype else Scratch(y.dtype, y.size)


def _rounded(made: Arg | Scratch, y: Arg) -> list[Grid]:
    return [] if made is y else [Grid(store_rounded, made, y, y.size, grid=-(-y.size // 256))]


def _pitch(edge: int) -> int:
    """Elements from line to line: eight lines of four threads are in different banks."""
    return edge + 4


def _room(y: Arg | Scratch, edge: int) -> int:
    return edge * _pitch(edge) * y.dtype.itemsize


def _update(a, known, y, a_pitch: int, sides, sizes, a_along: bool, is_root: bool) -> Grid:
    """The launch that takes a panel's products from what is left, m by n of y's elements. `sides`:
    where the panel's elements of a begin, those of y, how far apart its rows are, what is left.
    """
    (m, n), size = sizes, y.dtype.itemsize
    tile = Tile(EDGE, EDGE, _STEPS[size], 4, 4, size)
    a_wide, y_wide = (1 if pitch % tile.run else tile.run for pitch in (a_pitch, sides[2]))
    down, across = -(-m // EDGE), -(-n // EDGE)
    square, whole = a_pitch * a_pitch, a_pitch * sides[2]
    return Grid(
        *(updating(tile, a_along, is_root, a_wide, y_wide), a, known, y, square, whole, a_pitch),
        *(*sides, m, n, down, across),
        grid=y.size // whole * down * across,
        block=_THREADS,
        shared=max(tile.stage * size, _room(y, EDGE)),
    )


def line_product(line, other, count, share):
    """The sum of products of so many elements, for all threads of the line."""
    total = second = third = fourth = 0.0  # four at once: shared memory is far
    k = share
    while k + 3 * _SHARES < count:
        total += line[k] * other[k]
        second += line[k + _SHARES] * other[k + _SHARES]
        third += line[k + 2 * _SHARES] * other[k + 2 * _SHARES]
        fourth += line[k + 3 * _SHARES] * other[k + 3 * _SHARES]
        k += 4 * _SHARES
    while k < count:
        total += line[k] * other[k]
        k += _SHARES
    total = (total + second) + (third + fourth)
    total += shuffle_xor(total, 1)
    return total + shuffle_xor(total, 2)


@cache
def factoring_in_place(edge: int):
    pitch = _pitch(edge)

    def factor_in_place(shared, y, n, some):
        """The root of the first rows of shared memory, of which the lower triangle is read, to y,
        and zeros above it.
        """
        thread = cuda.threadIdx.x
        mine, share = thread // _SHARES, thread % _SHARES
        line = offset(shared, mine * pitch)
        for j in range(some):
            row = offset(shared, j * pitch)
            rest = line[j] - line_product(line, row, j, share)
            if mine == j and share == 0:
                row[j] = math.sqrt(rest) if rest > 0.0 else math.nan
            cuda.syncthreads()
            if mine > j and share == 0:
                line[j] = rest / row[j]
            cuda.syncthreads()
        for i in range(mine // (edge // _SHARES), some, _SHARES):
            k = thread % edge
            if k < some:
                y[i * n + k] = shared[i * pitch + k] if k <= i else 0.0

    return factor_in_place


@cache
def loading(edge: int):
    """(shared, x, some, lines, row, line, along): lines of so many elements, `row` apart, to shared
    memory, and zeros; `along`: neighbours are those of a line.
    """
    pitch = _pitch(edge)

    def load(shared, x, some, lines, row, line, along):
        thread = cuda.threadIdx.x
        for u in range(thread // edge, edge, _SHARES):
            i, at = (thread % edge, u) if along else (u, thread % edge)
            value = 0.0
            if i < some and at < lines:
                value = x[i * row + at * line]
            shared[at * pitch + i] = value

    return load


@cache
def factoring(edge: int):
    load, factor_in_place = loading(edge), factoring_in_place(edge)

    def factor_first(a, y, square, n, some):
        """The root of the first rows and columns of a matrix: a block each."""
        shared = pointer_to(cuda.shared.array(0, real))
        at = cuda.blockIdx.x * square
        load(shared, offset(a, at), some, some, 1, n, True)
        cuda.syncthreads()
        factor_in_place(shared, offset(y, at), n, some)

    return factor_first


@cache
def substituting(edge: int, a_along: bool, along: bool, mirrored: bool):
    """The kernel where rows of a are contiguous, or its columns; lines of b and y likewise.
    `mirrored`: zeros go to where the transpose of y would stand.
    """
    load, pitch = loading(edge), _pitch(edge)

    def substitute(
        a, b, y, square, whole, blocks, lines, some, a_first, a_row, a_column, first, row, line,
        mirror, unit,
    ):  # fmt: skip
        """Solves for `some` elements of each line, by the triangle of a that begins there."""
        shared = pointer_to(cuda.shared.array(0, real))
        own = offset(shared, edge * pitch)
        batch = div32(cuda.blockIdx.x, blocks)
        line0 = (cuda.blockIdx.x - batch * blocks) * edge
        count = min(edge, lines - line0)
        place = batch * whole + first + line0 * line
        load(shared, offset(a, batch * square + a_first), some, some, a_column, a_row, a_along)
        load(own, offset(b, place), some, count, row, line, along)
        cuda.syncthreads()
        thread = cuda.threadIdx.x
        share, mine = thread % _SHARES, offset(own, thread // _SHARES * pitch)
        for j in range(some):
            pivots = offset(shared, j * pitch)
            rest = mine[j] - line_product(mine, pivots, j, share)
            if share == j % _SHARES:  # the thread that reads it again
                mine[j] = rest if unit else rest / pivots[j]
        cuda.syncthreads()
        out = offset(y, place)
        for u in range(thread // edge, edge, _SHARES):
            i, at = (thread % edge, u) if along else (u, thread % edge)
            if i < some and at < count:
                out[i * row + at * line] = own[at * pitch + i]
            if mirrored:
                i, at = u, thread % edge
                if at < count:
                    y[batch * whole + mirror + i * line + (line0 + at) * row] = 0.0

    return substitute


@cache
def updating(tile: Tile, a_along: bool, is_root: bool, a_wide: int, y_wide: int):
    """`is_root`: y is a root, of which the lower triangle is needed, and the right operand is the
    left one transposed; `wide`: elements that are read and written at once.
    """
    threads, steps, right_at = tile.threads, tile.steps, tile.right_at
    run, row_gap, column_gap = tile.run, tile.row_gap, tile.column_gap
    held, count = EDGE * steps // threads, tile.thread_rows * tile.thread_columns
    fetch_left = fetcher(EDGE, steps, threads, a_along, a_wide)
    put_left = putter(EDGE, steps, threads, a_along, a_wide, tile.left_pitch)
    fetch_right = fetcher(EDGE, steps, threads, is_root, y_wide)
    put_right = putter(EDGE, steps, threads, is_root, y_wide, tile.right_pitch)
    multiply, origin_of, no_sums = tile.product(), thread_origin(tile), Intrinsic("fill", count)
    load, factor_in_place = loading(EDGE), factoring_in_place(EDGE)
    take, store = Intrinsic("load", y_wide), Intrinsic("store", y_wide)
    gather = Intrinsic("gather", y_wide)
    thread_columns = tile.thread_columns

    def update(a, known, y, square, whole, a_pitch, a_at, y_at, pitch, first, m, n, down, across):
        """The rest of `known`, less products of a panel of a and one of y; of a root, the next
        panel's block of the diagonal is factored as well.
        """
        shared = pointer_to(cuda.shared.array(0, real))
        a_held = pointer_to(cuda.local.array(held, real))
        y_held = pointer_to(cuda.local.array(held, real))
        mine = pointer_to(cuda.local.array(count, real))
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, down * across)
        block = cuda.blockIdx.x - batch * (down * across)
        row0 = div32(block, across)
        column0 = (block - row0 * across) * EDGE
        row0 *= EDGE
        if is_root and column0 > row0:
            return
        left = offset(a, batch * square + a_at)
        right = offset(y, batch * whole + y_at)
        row, column = origin_of(thread)
        sums = no_sums(0.0)
        for k in range(0, EDGE, steps):
            fetch_left(a_held, left, row0, m, k, EDGE, a_pitch, thread)
            fetch_right(y_held, right, column0, n, k, EDGE, pitch, thread)
            put_left(shared, a_held, thread)
            put_right(offset(shared, right_at), y_held, thread)
            cuda.syncthreads()
            sums = multiply(sums, offset(shared, row), offset(shared, right_at + column))
            cuda.syncthreads()
        spread(mine, sums)
        here = batch * whole + first
        for i in range(tile_rows):
            r = row0 + row + i // run * row_gap + i % run
            for j in range(0, thread_columns, y_wide):
                c = column0 + column + j // run * column_gap + j % run
                if r < m and c < n and not (is_root and c > r):
                    at = here + r * pitch + c
                    part = offset(mine, i * thread_columns + j)
                    if y_wide > 1:
                        before = take(known, at)
                        for e in range(y_wide):
                            part[e] = before[e] - part[e]
                        store(y, at, gather(part))
                    else:
                        y[at] = known[at] - part[0]
        if is_root and block == 0:
            cuda.syncthreads()
            corner = offset(y, here)
            load(shared, corner, min(EDGE, m), min(EDGE, m), 1, pitch, True)
            cuda.syncthreads()
            factor_in_place(shared, corner, pitch, min(EDGE, m))

    tile_rows = tile.thread_rows
    return update


def store_rounded(made, y, size):
    i = cuda.grid(1)
    if i < size:
        y[i] = made[i]
