"""softmax and log_softmax along an axis, and their gradients.

The largest element is subtracted before the exponential, so nothing overflows. A row that contains
NaN or +inf, or only -inf, becomes NaN.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.reduce.runs import largest_of
from opstep.kernels.rows import cuda_long_rows
from opstep.kernels.rows import cuda_softmax as gpu
from opstep.kernels.rows.rows import dot, exponential_sum, exponentials, rounded, row_sum
from opstep.kernels.rules.axes import around, axis_of, want_shape
from opstep.kernels.rules.pitfalls import SOFTMAX, SOFTMAX_GRAD
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.device.source import distinct
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import f64

COLUMNS = 64  # columns that are worked on side by side, where the axis is not the last


class AlongAxis(Op):
    """Base: x and the result have one shape, and one axis is looked along."""

    inplace = (0,)

    def infer(x, *others, axis):
        axis_of(axis, x.rank)
        return x

    def flops(x, *others, axis):
        return 5 * x.size


class softmax(AlongAxis):
    """exp(x) divided by its sum along `axis`."""

    signature = "softmax(x: F, *, axis: int = -1)"
    formula = "exp(x - max(x)) / sum(exp(x - max(x)))"
    source = "torch.softmax, ONNX Softmax"
    faults = SOFTMAX

    def oracle(x, *, axis):
        e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
        return e / np.sum(e, axis, keepdims=True)

    def cpu(x, y, *, axis):
        return _launch(softmax_rows, softmax_columns, (x, y), axis)

    def cuda(x, y, *, axis):
        return _on_gpu("softmax", (x, y), axis)

    def grad(g, operands, results, grads, *, axis):
        return (g.softmax_grad(results[0], grads[0], axis=axis),)


class log_softmax(AlongAxis):
    """The logarithm of softmax, more accurate than log(softmax(x))."""

    signature = "log_softmax(x: F, *, axis: int = -1)"
    formula = "x - max(x) - log(sum(exp(x - max(x))))"
    source = "torch.log_softmax, ONNX LogSoftmax"
    faults = SOFTMAX

    def oracle(x, *, axis):
        moved = x - np.max(x, axis, keepdims=True, initial=-np.inf)
        with np.errstate(divide="ignore"):  # an axis of no elements
            return moved - np.log(np.sum(np.exp(moved), axis, keepdims=True))

    def cpu(x, y, *, axis):
        return _launch(log_softmax_rows, log_softmax_columns, (x, y), axis)

    def cuda(x, y, *, axis):
        return _on_gpu("log_softmax", (x, y), axis)

    def grad(g, operands, results, grads, *, axis):
        return (g.log_softmax_grad(results[0], grads[0], axis=axis),)


class softmax_grad(AlongAxis):
    """The gradient of softmax with respect to x, from its result y and the gradient of y."""

    signature = "softmax_grad(y: F, gy: F, *, axis: int = -1)"
    formula = "y * (gy - sum(gy * y))"
    source = "ATen _softmax_backward_data"
    inplace = ()
    faults = SOFTMAX_GRAD

    def infer(y, gy, *, axis):
        axis_of(axis, y.rank)
        want_shape(gy, y, 1)
        return y

    def oracle(y, gy, *, axis):
        return y * (gy - np.sum(gy * y, axis, keepdims=True))

    def cpu(y, gy, gx, *, axis):
        return _launch(softmax_grad_rows, softmax_grad_columns, (y, gy, gx), axis)

    def cuda(y, gy, gx, *, axis):
        return _on_gpu("softmax_grad", (y, gy, gx), axis)

    def grad(g, operands, results, grads, *, axis):
        (y, gy), (h,) = operands, grads

        def dot(a, b):
            return g.sum(g.mul(a, b), axes=[axis], keepdims=True)

        by_y = g.sub(g.mul(h, g.sub(gy, dot(gy, y))), g.mul(gy, dot(h, y)))
        return by_y, g.softmax_grad(y, h, axis=axis)


class log_softmax_grad(AlongAxis):
    """The gradient of log_softmax with respect to x, from its result y and the gradient of y."""

    signature = "log_softmax_grad(y: F, gy: F, *, axis: int = -1)"
    formula = "gy - exp(y) * sum(gy)"
    source = "ATen _log_softmax_backward_data"
    inplace = ()
    faults = SOFTMAX_GRAD

    def infer(y, gy, *, axis):
        axis_of(axis, y.rank)
        want_shape(gy, y, 1)
        return y

    def oracle(y, gy, *, axis):
        return gy - np.exp(y) * np.sum(gy, axis, keepdims=True)

    def cpu(y, gy, gx, *, axis):
        return _launch(log_softmax_grad_rows, log_softmax_grad_columns, (y, gy, gx), axis)

    def cuda(y, gy, gx, *, axis):
        return _on_gpu("log_softmax_grad", (y, gy, gx), axis)

    def grad(g, operands, results, grads, *, axis):
        (y, gy), (h,) = operands, grads
        weighted = g.mul(h, g.exp(y))
        by_y = g.neg(g.mul(weighted, g.sum(gy, axes=[axis], keepdims=True)))
        return by_y, g.sub(h, g.sum(weighted, axes=[axis], keepdims=True))


def _launch(rows, columns, args: tuple[Arg, ...], axis: int) -> Launch:
    """`rows` where the axis is the last in memory, else `columns`, whose units are columns."""
    before, n, after = around(args[0].shape, axis_of(axis, args[0].rank))
    if after == 1:
        grain = max(1, 8192 // max(n, 1))
        return Launch(rows, *args, n, units=before if n else 0, grain=grain)
    tiles = [Scratch(t, COLUMNS, per_lane=True) for t in (args[0].dtype, f64)]
    units = before * after if n else 0
    return Launch(
        columns, *args, n, after, *tiles, units=units, grain=max(COLUMNS, 8192 // max(n, 1))
    )


def _on_gpu(name: str, args: tuple[Arg, ...], axis: int) -> Grid | list[Grid]:
    _, n, after = around(args[0].shape, axis_of(axis, args[0].rank))
    if args[0].size == 0:
        return []
    if after > 1:
        return cuda_long_rows.along_columns(
            getattr(cuda_long_rows, f"{name}_columns"), args, n, after
        )
    grid = gpu.along_rows(getattr(gpu, name), args, n)
    if grid is not None:
        return grid
    if len(args) == 2:
        return cuda_long_rows.long_softmax(*args, n, logarithm=name == "log_softmax")
    sums = (
        cuda_long_rows.dot_coefficients
        if name == "softmax_grad"
        else cuda_long_rows.sum_coefficients
    )
    y, gy, gx = args
    return cuda_long_rows.from_sums(
        sums, getattr(cuda_long_rows, name), y, gy, None, None, gx, n, 0.0
    )


# --- the axis is the last -------------------------------------------------------------------------


def softmax_row(x, y, n):
    total = exponentials(x, largest_of(x, n), y, n)
    share = rounded(1.0 / total)
    for i in range(n):
        y[i] *= share


def softmax_rows(x, y, n, lo, hi):
    for row in range(lo, hi):
        softmax_row(offset(x, row * n), offset(y, row * n), n)


def log_softmax_rows(x, y, n, lo, hi):
    for row in range(lo, hi):
        source = offset(x, row * n)
        target = offset(y, row * n)
        top = largest_of(source, n)
        log_total = rounded(math.log(exponential_sum(source, top, n)))
        for i in range(n):
            target[i] = source[i] - top - log_total


def softmax_grad_rows(y, gy, gx, n, lo, hi):
    for row in range(lo, hi):
        result = offset(y, row * n)
        incoming = offset(gy, row * n)
        target = offset(gx, row * n)
        mean = rounded(dot(result, incoming, n))
        for i in range(n):
            target[i] = result[i] * (incoming[i] - mean)


def log_softmax_grad_rows(y, gy, gx, n, lo, hi):
    for row in range(lo, hi):
        result = offset(y, row * n)
        incoming = offset(gy, row * n)
        target = offset(gx, row * n)
        total = rounded(row_sum(incoming, n))
        for i in range(n):
            target[i] = incoming[i] - exp(result[i]) * total


# --- the axis is not the last: neighbouring columns side by side ----------------------------------


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


def softmax_columns(x, y, n, inner, tops, sums, lo, hi, lane):
    top = offset(tops, lane * COLUMNS)
    total = offset(sums, lane * COLUMNS)
    column = lo
    while column < hi:
        outer = column // inner
        count = min(COLUMNS, hi - column, (outer + 1) * inner - column)
        start = outer * n * inner + column - outer * inner
        column_softmax(offset(x, start), offset(y, start), n, inner, count, top, total)
        column += count


def log_softmax_columns(x, y, n, inner, tops, sums, lo, hi, lane):
    top = offset(tops, lane * COLUMNS)
    total = offset(sums, lane * COLUMNS)
    column = lo
    while column < hi:
        outer = column // inner
        count = min(COLUMNS, hi - column, (outer + 1) * inner - column)
        start = outer * n * inner + column - outer * inner
        column_exponential_sums(offset(x, start), n, inner, count, top, total)
        for c in range(count):
            total[c] = math.log(total[c])
        for k in range(n):
            source = offset(x, start + k * inner)
            target = offset(y, start + k * inner)
            for c in range(count):
                target[c] = source[c] - top[c] - rounded(total[c])
        column += count


def softmax_grad_columns(y, gy, gx, n, inner, tops, sums, lo, hi, lane):
    total = offset(sums, lane * COLUMNS)
    column = lo
    while column < hi:
        outer = column // inner
        count = min(COLUMNS, hi - column, (outer + 1) * inner - column)
        start = outer * n * inner + column - outer * inner
        for c in range(count):
            total[c] = 0.0
        for k in range(n):
            result = offset(y, start + k * inner)
            incoming = offset(gy, start + k * inner)
            for c in range(count):
                total[c] += result[c] * incoming[c]
        for k in range(n):
            result = offset(y, start + k * inner)
            incoming = offset(gy, start + k * inner)
            target = offset(gx, start + k * inner)
            for c in range(count):
                target[c] = result[c] * (incoming[c] - rounded(total[c]))
        column += count


def log_softmax_grad_columns(y, gy, gx, n, inner, tops, sums, lo, hi, lane):
    total = offset(sums, lane * COLUMNS)
    column = lo
    while column < hi:
        outer = column // inner
        count = min(COLUMNS, hi - column, (outer + 1) * inner - column)
        start = outer * n * inner + column - outer * inner
        for c in range(count):
            total[c] = 0.0
        for k in range(n):
            incoming = offset(gy, start + k * inner)
            for c in range(count):
                total[c] += incoming[c]
        for k in range(n):
            result = offset(y, start + k * inner)
            incoming = offset(gy, start + k * inner)
            target = offset(gx, start + k * inner)
            for c in range(count):
                target[c] = incoming[c] - exp(result[c]) * rounded(total[c])
        column += count
