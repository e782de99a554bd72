"""Kernels behind matrix products.

`multiply` cuts the result into blocks. For each, and some hundred terms of the sum at a time, a
lane lays the right operand's part out in its cache and goes over it in register tiles; the left
operand is read where it is. Two more kernels take products with a vector, which are bound by
memory: they read the matrix once.
"""

from __future__ import annotations

import os
from functools import cache

from opstep.runtime.device.builtin import (
    clear_run,
    copy_run,
    inner_tile_1x8,
    offset,
    outer_tile_8,
    vector_length,
)

OVERREAD = 3 * 64  # bytes that a tile may read past its columns


@cache
def pieces() -> int:
    """What large work is cut into at least, where no bit depends on the cut: four pieces a core."""
    return 4 * max(2, os.cpu_count() or 1)


def batch_offset(batch, rank, shape, strides):
    """Where the matrix of the `batch`-th product begins: its index in `shape` times the strides."""
    at = 0
    for d in range(rank - 1, -1, -1):
        at += batch % shape[d] * strides[d]
        batch = batch // shape[d]
    return at


def lay_out(b, buffer, steps, columns, b_row, b_column, line):
    """buffer[k, j] = b[k*b_row + j*b_column]; one of the strides is 1."""
    if b_column == 1:
        for k in range(steps):
            copy_run(offset(buffer, k * line), offset(b, k * b_row), columns)
    else:
        for j0 in range(0, columns, 8):
            count = min(8, columns - j0)
            if count == 8:
                for k in range(steps):
                    for j in range(8):
                        buffer[k * line + j0 + j] = b[(j0 + j) * b_column + k]
            else:
                for k in range(steps):
                    for j in range(count):
                        buffer[k * line + j0 + j] = b[(j0 + j) * b_column + k]


def multiply(
    a, b, bias, c, buffers, lane_size, left_at, held_at, table, batch_shape, a_strides, b_strides,
    rank, m, n, steps, a_row, a_step, b_row, b_column, c_row, c_column, bias_row, bias_column,
    m_block, n_block, step_block, ready, lo, hi, lane,
):  # fmt: skip
    """c[i, j] = sum of a[i, k] * b[k, j], and a bias for each row or each column if set."""
    buffer = offset(buffers, lane * lane_size)
    m_blocks = (m + m_block - 1) // m_block
    n_blocks = (n + n_block - 1) // n_block
    widest = 3 * vector_length(a)
    for unit in range(lo, hi):
        i0 = unit % m_blocks * m_block
        rest = unit // m_blocks
        j0 = rest % n_blocks * n_block
        batch = rest // n_blocks
        left = offset(a, batch_offset(batch, rank, batch_shape, a_strides) + i0 * a_row)
        right = offset(b, batch_offset(batch, rank, batch_shape, b_strides) + j0 * b_column)
        rows = min(m_block, m - i0)
        columns = min(n_block, n - j0)
        whole = offset(c, batch * m * n + i0 * c_row + j0 * c_column)
        target = whole
        pitch = c_row
        if c_column != 1:
            target = offset(buffer, held_at)
            pitch = n_block
        for k in range(0, max(steps, 1), step_block):
            some = min(step_block, steps - k)
            source = buffer
            if ready:
                source = offset(b, j0 * steps + k * n_block)
            else:
                lay_out(offset(right, k * b_row), buffer, some, columns, b_row, b_column, n_block)
            if a_step != 1:  # rows are not contiguous along the sum: panels of eight that are
                for s in range(some):
                    part = offset(left, (k + s) * a_step)
                    for i in range(0, rows, 8):
                        to = offset(buffer, left_at + i * step_block + i * 2 + s * 8)
                        copy_run(to, offset(part, i), min(8, rows - i))
            for j in range(0, columns, widest):
                for i in range(0, rows, 8):
                    place = offset(target, i * pitch + j)
                    start = place
                    start_row = pitch
                    mode = 1
                    if k == 0:
                        mode = 0
                        if bias_row > 0:
                            mode = 2
                            start = offset(bias, i0 + i)
                            start_row = 1
                        elif bias_column > 0:
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
                    outer_tile_8(
                        some, rows_here, row, step, offset(source, j), table, place, pitch, mode,
                        start, start_row, rows - i, min(widest, columns - j),
                    )  # fmt: skip
        if c_column != 1:
            for j in range(columns):
                for i in range(rows):
                    whole[j * c_column + i] = target[i * pitch + j]


def lay_out_right(b, packed, steps, n, b_row, b_column, n_block, lo, hi):
    """The right operand as `multiply` wants it `ready`: blocks of columns, each [steps, n_block]; a
    unit is 64 steps
    """
    for unit in range(lo, hi):
        k = unit * 64
        some = min(64, steps - k)
        for j in range(0, n, n_block):
            part = offset(packed, j * steps + k * n_block)
            lay_out(
                offset(b, k * b_row + j * b_column), part, some, min(n_block, n - j), b_row,
                b_column, n_block,
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
                out[j] = out[j] + x0 * row0[j] + x1 * row1[j] + x2 * row2[j] + x3 * row3[j]
        for k in range(whole, terms):
            one = vector[k]
            row = offset(rows, k * matrix_row)
            for j in range(some):
                out[j] = out[j] + one * row[j]


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
