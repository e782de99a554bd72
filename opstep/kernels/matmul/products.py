"""Kernels behind matrix products.

`multiply` cuts the result into blocks. For each, and some hundred terms of the sum at a time, a
lane lays the right operand's part out in its cache and goes over it in register tiles; the left
operand is read where it is. Two more kernels take products with a vector, which are bound by
memory: they read the matrix once.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from opstep.runtime.device.builtin import (
    TILES,
    clear_run,
    column_rows,
    copy_run,
    copy_vectors_3,
    fma,
    inner_tile_1x8,
    offset,
    prefetch_run,
    transpose_8x8,
    vector_length,
)
from opstep.runtime.device.launch import Arg, Launch, Scratch, lanes
from opstep.runtime.device.source import by_dtype

PANEL = 3 * 64  # bytes of a row in the widest tile
_AHEAD = 32  # rows that are asked for before they are copied
_HIGH = max(TILES[0].outer)  # rows that a tile goes over, in bands
_LINE = 64  # bytes, of a cache's line: a vector has no more
OVERREAD = PANEL  # bytes that a tile may read past its columns
LAID_OUT, READY, STANDING = range(3)  # by `multiply`, before it, not at all: the right operand


class Side(NamedTuple):
    """A matrix operand: elements from row to row, column to column, and from matrix to matrix."""

    array: Arg | Scratch
    row: int
    column: int
    batch: tuple[int, ...]


def pieces() -> int:
    """What large work is cut into at least, where no bit depends on the cut: four pieces a lane,
    that none waits for long for another one.
    """
    return 1 if lanes() == 1 else 4 * lanes()


def _fused(a, b, c):
    return fma(a, b, c)


@by_dtype(f32=_fused, f64=_fused)
def multiply_add(a, b, c):
    return a * b + c


def batch_offset(batch, rank, shape, strides):
    """Where the matrix of the `batch`-th product begins: its index in `shape` times the strides."""
    at = 0
    for d in range(rank - 1, -1, -1):
        at += batch % shape[d] * strides[d]
        batch = batch // shape[d]
    return at


def stragglers(columns, length):
    """How many of the last columns, that fill no vector, are worth tiles of their own: tiles three
    vectors wide would take another one for them.
    """
    if columns < length:
        return 0
    rest = columns % length
    beside = columns // length % 3
    if beside == 1 or rest > (length // 2 if beside == 0 else length // 4):
        return 0
    return rest


def clear_ends(rows, pitch, count, columns):
    """Zeros in the vector in which each of so many rows ends before it is full, which tiles read
    whole. The columns in it are written afterwards.
    """
    length = vector_length(rows)
    if columns % length > 0:
        for r in range(count):
            clear_run(offset(rows, r * pitch + columns - columns % length), rows, length)


def in_vectors(x: Arg) -> tuple[Arg | Scratch, int, list[Launch]]:
    """x with rows that end where a vector does, as tiles read them, how many elements they are
    apart, and the launches that make it.
    """
    columns, size, lines = x.shape[-1], x.dtype.itemsize, prod(x.shape[:-1])
    if columns * size % _LINE == 0:
        return x, columns, []
    pitch = -(-columns * size // _LINE) * _LINE // size
    y = Scratch(x.dtype, lines * pitch + OVERREAD // size)
    grain = max(1, 32768 // pitch)
    return y, pitch, [Launch(spread_rows, x, y, columns, pitch, units=lines, grain=grain)]


def spread_rows(x, y, columns, pitch, lo, hi):
    """Rows of x, `pitch` apart, zeros between them; units are rows."""
    for i in range(lo, hi):
        row = offset(y, i * pitch)
        clear_ends(row, pitch, 1, columns)
        copy_run(row, offset(x, i * columns), columns)


def lay_out(b, buffer, steps, columns, b_row, b_column, pitch, panel):
    """Panels of so many columns, three vectors: element (k, j) of b stands in row k of the panel of
    column j, and panels are `pitch` apart. One of b's strides is 1.
    """
    if b_column == 1:
        whole = columns - columns % panel
        clear_ends(offset(buffer, whole // panel * pitch), panel, steps, columns - whole)
        for k in range(steps):
            row = offset(b, k * b_row)
            to = offset(buffer, k * panel)
            if k + _AHEAD < steps:
                prefetch_run(offset(row, _AHEAD * b_row), columns)
            for j in range(0, whole, panel):
                copy_vectors_3(to, offset(row, j))
                to = offset(to, pitch)
            copy_run(to, offset(row, whole), columns - whole)
        return
    for j in range(0, columns, panel):
        to = offset(buffer, j // panel * pitch)
        clear_ends(to, panel, steps, min(panel, columns - j))
        transpose(offset(b, j * b_column), b_column, to, panel, min(panel, columns - j), steps)


def prefetch_rows(place, pitch, rows, columns):
    """Asks for the memory of so many rows that are `pitch` apart."""
    for r in range(rows):
        prefetch_run(offset(place, r * pitch), columns)


def transpose(x, x_row, y, y_row, rows, columns):
    """y[j, i] = x[i, j] for i < rows, j < columns."""
    whole = columns - columns % 8
    for i in range(0, rows - rows % 8, 8):
        for j in range(0, whole, 8):
            transpose_8x8(offset(x, i * x_row + j), x_row, offset(y, j * y_row + i), y_row)
        for j in range(whole, columns):
            for k in range(8):
                y[j * y_row + i + k] = x[(i + k) * x_row + j]
    for i in range(rows - rows % 8, rows):
        for j in range(columns):
            y[j * y_row + i] = x[i * x_row + j]


@cache
def multiply(kind: int):
    """The kernel whose tiles are of that kind."""
    outer_tile, column_tile = TILES[kind].outer[_HIGH], TILES[kind].column

    def multiply_blocks(
        a, b, bias, c, buffers, lane_size, left_at, held_at, tables, batch_shape, a_strides,
        b_strides, rank, m, n, steps, a_row, a_step, b_row, b_column, c_batch, c_row, c_column,
        biased, m_block, n_block, step_block, panel, ready, along, limits, lo, hi, lane,
    ):  # fmt: skip
        """c[i, j] = sum of a[i, k] * b[k, j], and a bias: 1 for each row, 2 for each column. Blocks
        `along` a row follow each other, else those along a column. `limits`: see `Launch`.
        """
        buffer = offset(buffers, lane * lane_size)
        m_blocks = (m + m_block - 1) // m_block
        n_blocks = (n + n_block - 1) // n_block
        widest = 3 * vector_length(a)  # columns of a tile, and of a panel: it reads all of that
        tall = column_rows(a)
        for unit in range(lo, hi):
            i0 = unit % m_blocks * m_block
            j0 = unit // m_blocks % n_blocks * n_block
            if along:
                i0 = unit // n_blocks % m_blocks * m_block
                j0 = unit % n_blocks * n_block
            batch = unit // (m_blocks * n_blocks)
            left = offset(a, batch_offset(batch, rank, batch_shape, a_strides) + i0 * a_row)
            whole_right = offset(b, batch_offset(batch, rank, batch_shape, b_strides))
            right = offset(whole_right, j0 * b_column)
            rows = min(m_block, m - i0)
            columns = min(n_block, n - j0)
            filled = columns
            high = 8  # rows of a tile, as they are laid out
            if a_step == 1:
                high = _HIGH
                if rows >= tall and tall >= 16:  # of short vectors it takes some rows
                    filled -= stragglers(columns, vector_length(a))
            shares = max(1, (filled + widest - 1) // widest * ((rows + high - 1) // high))
            whole = offset(c, batch * c_batch + i0 * c_row + j0 * c_column)
            target = whole
            pitch = c_row
            if c_column != 1:
                target = offset(buffer, held_at)
                pitch = n_block
            for k in range(0, max(steps, 1), step_block):
                some = min(step_block, steps - k)
                limited = limits[0] if k + some >= steps else 0
                source = buffer
                apart = step_block
                table = offset(tables, panel // widest // 2 * step_block)
                if ready == READY:
                    source = offset(whole_right, j0 * steps + k * widest)
                    apart = steps
                elif ready == STANDING and filled % vector_length(a) == 0:  # none reads past a row
                    source = offset(right, k * b_row)
                    apart = 1
                    table = offset(tables, 3 * step_block)
                else:
                    lay_out(
                        offset(right, k * b_row),
                        buffer,
                        some,
                        columns,
                        b_row,
                        b_column,
                        apart * widest,
                        widest,
                    )
                if a_step != 1:  # rows are not contiguous along the sum: panels of eight that are
                    for s in range(some):
                        part = offset(left, (k + s) * a_step)
                        for i in range(0, rows, 8):
                            to = offset(buffer, left_at + i * step_block + i * 2 + s * 8)
                            copy_run(to, offset(part, i), min(8, rows - i))
                # each tile asks for a share of what is read next: the left rows' next terms or the
                # next rows, and what is laid out next
                next_left = offset(left, k + some if k + some < steps else rows * a_row)
                next_right = offset(right, (k + some) * b_row if k + some < steps else columns)
                rows_each, steps_each = -(-rows // shares), -(-some // shares)
                rows_asked = steps_asked = 0
                for j in range(0, filled, widest):
                    across = offset(source, j * apart)
                    for i in range(0, rows, high):
                        if a_step == 1:
                            there = offset(next_left, rows_asked * a_row)
                            prefetch_rows(there, a_row, min(rows_each, rows - rows_asked), some)
                            rows_asked += rows_each
                        if b_column == 1 and ready != READY:
                            there = offset(next_right, steps_asked * b_row)
                            count = min(steps_each, some - steps_asked)
                            prefetch_rows(there, b_row, count, columns)
                            steps_asked += steps_each
                        place = offset(target, i * pitch + j)
                        start = place
                        start_row = pitch
                        mode = 1
                        if k == 0:
                            mode = 0
                            if biased == 1:
                                mode = 2
                                start = offset(bias, i0 + i)
                                start_row = 1
                            elif biased == 2:
                                mode = 1
                                start = offset(bias, j0 + j)
                                start_row = 0
                        rows_here = offset(left, i * a_row + k)
                        row = a_row
                        step = 1
                        if a_step != 1:
                            rows_here = offset(buffer, left_at + i * step_block + i * 2)
                            row = 1
                            step = 8
                        outer_tile(
                            some, rows_here, row, step, across, table, place, pitch, mode,
                            start, start_row, min(high, rows - i), min(widest, filled - j),
                            limited, limits,
                        )  # fmt: skip
                        if j + widest < filled:
                            continue
                        for f in range(filled, columns, 4):
                            few = offset(source, f // widest * widest * apart + f % widest)
                            for r in range(0, min(high, rows - i), tall):
                                place = offset(target, (i + r) * pitch + f)
                                first = offset(start, r * start_row)
                                if mode == 1:
                                    first = offset(bias, j0 + f) if start_row == 0 else place
                                column_tile(
                                    some, offset(rows_here, r * a_row), row, few, table, place,
                                    pitch, mode, first, start_row, rows - i - r, columns - f,
                                    limited, limits,
                                )  # fmt: skip
            if c_column != 1:
                transpose(target, pitch, whole, c_column, rows, columns)

    return multiply_blocks


def lay_out_right(b, packed, steps, n, b_row, b_column, lo, hi):
    """The right operand as `multiply` wants it `ready`: panels of [steps, a tile's columns]; a unit
    is 64 steps of all.
    """
    panel = 3 * vector_length(b)
    for unit in range(lo, hi):
        k = unit * 64
        lay_out(
            offset(b, k * b_row), offset(packed, k * panel), min(64, steps - k), n, b_row, b_column,
            steps * panel, panel,
        )  # fmt: skip


def dot_rows(
    x, matrix, bias, y, table, batch_shape, x_strides, matrix_strides, rank, count, steps,
    matrix_row, biased, block, lo, hi,
):  # fmt: skip
    """y[j] = sum of x[k] * matrix[j, k], with `block` (a multiple of 8) results a unit."""
    blocks = (count + block - 1) // block
    for unit in range(lo, hi):
        batch = unit // blocks
        j0 = unit % blocks * block
        vector = offset(x, batch_offset(batch, rank, batch_shape, x_strides))
        rows = offset(matrix, batch_offset(batch, rank, batch_shape, matrix_strides))
        for j in range(j0, min(j0 + block, count), 8):
            start = bias
            if biased:
                start = offset(bias, j)
            inner_tile_1x8(
                steps, vector, 0, offset(rows, j * matrix_row), table,
                offset(y, batch * count + j), 0, 1, 2 * biased, start, 1, count - j,
            )  # fmt: skip


def weigh_rows(
    x, matrix, bias, y, batch_shape, x_strides, matrix_strides, rank, count, steps, matrix_row,
    biased, block, parts, part_steps, lo, hi,
):  # fmt: skip
    """y[part, j] = sum over the part's k of x[k] * matrix[k, j]: four rows of the matrix at a time.

    A unit is `block` results of one part.
    """
    blocks = (count + block - 1) // block
    for unit in range(lo, hi):
        j0 = unit % blocks * block
        some = min(block, count - j0)
        k0 = unit // blocks % parts * part_steps
        batch = unit // (blocks * parts)
        terms = min(part_steps, steps - k0)
        vector = offset(x, batch_offset(batch, rank, batch_shape, x_strides) + k0)
        at = batch_offset(batch, rank, batch_shape, matrix_strides) + k0 * matrix_row + j0
        rows = offset(matrix, at)
        out = offset(y, unit // blocks * count + j0)
        if biased:
            copy_run(out, offset(bias, j0), some)
        else:
            clear_run(out, bias, some)
        whole = terms // 4 * 4
        for k in range(0, whole, 4):
            x0, x1, x2, x3 = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
            row0 = offset(rows, k * matrix_row)
            row1 = offset(rows, (k + 1) * matrix_row)
            row2 = offset(rows, (k + 2) * matrix_row)
            row3 = offset(rows, (k + 3) * matrix_row)
            for j in range(some):
                y0 = multiply_add(x0, row0[j], out[j])
                y1 = multiply_add(x1, row1[j], y0)
                y2 = multiply_add(x2, row2[j], y1)
                out[j] = multiply_add(x3, row3[j], y2)
        for k in range(whole, terms):
            one = vector[k]
            row = offset(rows, k * matrix_row)
            for j in range(some):
                out[j] = multiply_add(one, row[j], out[j])


def add_parts(parts, bias, y, count, part_count, biased, lo, hi):
    """y[batch, j] = bias[j] + sum of parts[batch, part, j]; a unit is 64 results of a row."""
    blocks = (count + 63) // 64
    for unit in range(lo, hi):
        j0 = unit % blocks * 64
        some = min(64, count - j0)
        batch = unit // blocks
        out = offset(y, batch * count + j0)
        if biased:
            copy_run(out, offset(bias, j0), some)
        else:
            clear_run(out, bias, some)
        for part in range(part_count):
            source = offset(parts, (batch * part_count + part) * count + j0)
            for j in range(some):
                out[j] += source[j]
