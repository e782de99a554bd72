"""Sums of rows, of neighbouring elements or of runs of such: in blocks, in the data's type, and in
order over blocks, then over runs, in f64. Kernels that have a sum inside add in this order, too, so
that they give its bits.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.pointwise.broadcast import locate
from opstep.kernels.reduce.reduction import FEW, WORK, Groups
from opstep.kernels.reduce.runs import RUN, sum_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import f64


def row_sum(x, n):
    total = np.float64(0.0)
    for start in range(0, n, RUN):
        total += sum_of(offset(x, start), min(RUN, n - start))
    return total


def row_sums(x, y, sizes, strides, rank, runs, step, n, divisor, lo, hi):
    for row in range(lo, hi):
        first = locate(row, sizes, strides, rank)
        total = np.float64(0.0)
        for run in range(runs):
            total += row_sum(offset(x, first + run * step), n)
        y[row] = total / np.float64(divisor)


def block_sums(x, parts, sizes, strides, rank, runs, step, n, blocks, lo, hi):
    """Units are the blocks of all rows."""
    for unit in range(lo, hi):
        run = unit // blocks
        start = (unit - run * blocks) * RUN
        row = run // runs
        first = locate(row, sizes, strides, rank) + (run - row * runs) * step
        parts[unit] = sum_of(offset(x, first + start), min(RUN, n - start))


def sums_of_blocks(parts, y, runs, blocks, divisor, lo, hi):
    for row in range(lo, hi):
        total = np.float64(0.0)
        for run in range(row * runs, (row + 1) * runs):
            some = np.float64(0.0)
            for k in range(blocks):
                some += parts[run * blocks + k]
            total += some
        y[row] = total / np.float64(divisor)


def sum_rows(x: Arg, y: Arg, g: Groups, divisor: int) -> list[Launch]:
    """Launches for the sum of each row of floats over `divisor`: of runs of n elements that are as
    far from each other. Few long rows are shared among threads block by block.
    """
    rows, n, runs = y.size, g.n, g.rows
    (step,) = g.row_strides or (0,)
    where = g.kept_sizes, g.kept_strides, len(g.kept_sizes), runs, step, n
    if rows >= FEW or rows * runs * n <= 4 * WORK:
        grain = max(1, WORK // max(1, runs * n))
        return [Launch(row_sums, x, y, *where, divisor, units=rows, grain=grain)]
    blocks = -(-n // RUN)
    units = rows * runs * blocks
    parts = Scratch(f64, units)
    return [
        Launch(block_sums, x, parts, *where, blocks, units=units, grain=WORK // RUN),
        Launch(sums_of_blocks, parts, y, runs, blocks, divisor, units=rows),
    ]
