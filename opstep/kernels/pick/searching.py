"""Binary search in sorted rows."""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch, thread_a_unit
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import i64


class searchsorted(Op):
    """The place where each value would be inserted into a sorted row, so that it stays sorted.

    `row` is sorted along its last axis: either one row [n] for all values, or one for each row of
    values, with their leading axes. Among equal elements, the first place, or with `right` that
    after them. NaN goes after all numbers.
    """

    signature = "searchsorted(row: N, values: N, *, right: bool = false)"
    formula = "row[y - 1] < value <= row[y]; right: row[y - 1] <= value < row[y]"
    source = "torch.searchsorted, torch.bucketize(values, row), numpy.searchsorted"
    grad = None

    def infer(row, values, *, right):
        if row.rank == 0:
            raise Mismatch(f"{row} is not a row", 0)
        if row.rank > 1 and row.shape[:-1] != values.shape[:-1]:
            raise Mismatch(f"{values} has not the rows of {row}", 1)
        return values.with_dtype(i64)

    def oracle(row, values, *, right):
        side = "right" if right else "left"
        if row.ndim == 1:
            return np.asarray(np.searchsorted(row, values, side))
        y = np.empty(values.shape, np.int64)
        for place in np.ndindex(row.shape[:-1]):
            y[place] = np.searchsorted(row[place], values[place], side)
        return y

    def cpu(row, values, y, *, right):
        n = row.shape[-1]
        each = values.shape[-1] if row.rank > 1 else max(values.size, 1)
        grain = max(1, 32768 // max(n.bit_length() * 4, 1))
        args = (row, values, y, n, max(each, 1), int(right))
        return Launch(search_rows, *args, units=values.size, grain=grain, cuda=thread_a_unit)

    def flops(row, values, *, right):
        return values.size


def search_rows(row, values, y, n, each, right, lo, hi):
    for i in range(lo, hi):
        sorted_row = offset(row, i // each * n)
        value = values[i]
        first, last = 0, n
        while first < last:
            middle = (first + last) // 2
            at = sorted_row[middle]
            # a NaN is after all numbers, and equal to itself
            before = at < value or (value != value and at == at)
            if right:
                before = before or not (value < at or (at != at and value == value))
            if before:
                first = middle + 1
            else:
                last = middle
        y[i] = first
