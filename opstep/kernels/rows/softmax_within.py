"""Softmax of a row, and of neighbouring columns, inside kernels of losses."""

from __future__ import annotations

from opstep.kernels.math.fastmath import exp
from opstep.kernels.reduce.runs import largest_of
from opstep.kernels.rows.rows import exponentials, rounded
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.source import distinct

COLUMNS = 64  # columns that are worked on side by side, where the axis is not the last


def softmax_row(x, y, n):
    total = exponentials(x, largest_of(x, n), y, n)
    share = rounded(1.0 / total)
    for i in range(n):
        y[i] *= share


def column_tops(x, n, inner, count, tops):
    """The largest of each of `count` columns of n elements that lie `inner` apart."""
    for c in range(count):
        tops[c] = x[c]
    for k in range(1, n):
        row = offset(x, k * inner)
        for c in range(count):
            tops[c] = row[c] if row[c] > tops[c] else tops[c]


@distinct
def column_softmax(x, y, n, inner, count, tops, sums):
    """`tops` and `sums`: working memory for `count` elements each."""
    column_tops(x, n, inner, count, tops)
    for c in range(count):
        sums[c] = 0.0
    for k in range(n):
        source = offset(x, k * inner)
        target = offset(y, k * inner)
        for c in range(count):
            e = exp(source[c] - tops[c])
            target[c] = e
            sums[c] += e
    for c in range(count):
        tops[c] = 1.0 / sums[c]
    for k in range(n):
        target = offset(y, k * inner)
        for c in range(count):
            target[c] *= tops[c]


def column_exponential_sums(x, n, inner, count, tops, sums):
    """The largest of each column, and its sum of exp(x - largest)."""
    column_tops(x, n, inner, count, tops)
    for c in range(count):
        sums[c] = 0.0
    for k in range(n):
        source = offset(x, k * inner)
        for c in range(count):
            sums[c] += exp(source[c] - tops[c])
