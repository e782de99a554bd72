"""Sums of rows of neighbouring elements: in blocks, in the data's type, and in order over blocks,
in f64. Kernels that have a sum inside add in this order, too, so that they give its bits.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.reduce.reduction import FEW, WORK
from opstep.kernels.reduce.runs import RUN, sum_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import f64


def row_sum(x, n):
    total = np.float64(0.0)
    for start in range(0, n, RUN):
        total += sum_of(offset(x, start), min(RUN, n - start))
    return total


def row_sums(x, y, n, divisor, lo, hi):
    for row in range(lo, hi):
        y[row] = row_sum(offset(x, row * n), n) / np.float64(divisor)


def block_sums(x, parts, n, blocks, lo, hi):
    """Units are the blocks of all rows."""
    for unit in range(lo, hi):
        row = unit // blocks
        start = (unit - row * blocks) * RUN
        parts[unit] = sum_of(offset(x, row * n + start), min(RUN, n - start))


def sums_of_blocks(parts, y, blocks, divisor, lo, hi):
    for row in range(lo, hi):
        total = np.float64(0.0)
        for k in range(blocks):
            total += parts[row * blocks + k]
        y[row] = total / np.float64(divisor)


def sum_rows(x: Arg, y: Arg, n: int, divisor: int) -> list[Launch]:
    """Launches for the sum of each row of n floats over `divisor`. Few long rows are shared among
    threads block by block.
    """
    rows = y.size
    if rows >= FEW or rows * n <= 4 * WORK:
        grain = max(1, WORK // max(1, n))
        return [Launch(row_sums, x, y, n, divisor, units=rows, grain=grain)]
    blocks = -(-n // RUN)
    parts = Scratch(f64, rows * blocks)
    return [
        Launch(block_sums, x, parts, n, blocks, units=rows * blocks, grain=WORK // RUN),
        Launch(sums_of_blocks, parts, y, blocks, divisor, units=rows),
    ]
