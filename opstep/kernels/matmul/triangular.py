"""Triangular matrices: the root of a symmetric one, and equations."""

from __future__ import annotations

import math

import numpy as np

from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.faults import Faults, Rule, Site
from opstep.runtime.ir.op import Mismatch, Op


def _size(name: str, a, at: int):
    """Rows of a square matrix, or of a batch of them."""
    if a.rank < 2 or a.shape[-1] != a.shape[-2]:
        raise Mismatch(f"{name} takes square matrices, not {a}", at)
    return a.shape[-1]


def _transposed(g, x):
    rank = x.type.rank
    return g.transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _own_matrix(site: Site):
    """Of the matrix in the same place of the batch, all elements."""
    return [(*_same(site.index[:-2]), slice(None), slice(None))]


def _own_column(site: Site):
    """All of the matrix, of what is solved for the same column."""
    *batch, _, column = _same(site.index)
    return [(*batch, slice(None), slice(None)), (*batch, slice(None), column)]


def _same(index: tuple[int, ...]) -> list[slice]:
    return [slice(k, k + 1) for k in index]


def _indefinite(a):
    if not np.isfinite(a).all():
        return False
    whole = np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)
    return np.broadcast_to(np.linalg.eigvalsh(whole)[..., :1, None] <= 0, a.shape)


def _zero_pivots(a, b, *, unit, **_):
    diagonal = np.eye(a.shape[-1], dtype=bool)
    return (a == 0) & diagonal & (not unit), None


class cholesky(Op):
    """The lower triangular root of a symmetric positive definite matrix.

    a [..., N, N], of which the lower triangle is read; y [..., N, N]. NaNs where a is not positive
    definite.
    """

    signature = "cholesky(a: F)"
    formula = "y y^T = a"
    source = "torch.linalg.cholesky"
    faults = Faults(_own_matrix, Rule("a matrix that is not positive definite", _indefinite))

    def infer(a):
        _size("cholesky", a, 0)
        return a

    def oracle(a):
        y = np.zeros_like(a)
        with np.errstate(all="ignore"):
            for j in range(a.shape[-1]):
                rest = a[..., j:, j] - np.einsum("...ik,...k->...i", y[..., j:, :j], y[..., j, :j])
                y[..., j:, j] = rest / np.sqrt(rest[..., :1])
        return y

    def cpu(a, y):
        n = a.shape[-1]
        return Launch(factor, a, y, n, units=a.size // (n * n) if n else 0, grain=1)

    def grad(g, operands, results, grads):
        (y,), (gy,) = results, grads
        product = g.matmul(_transposed(g, y), g.tril(gy))
        half = g.mul(g.add(g.tril(product), g.tril(product, diagonal=-1)), 0.5)
        left = g.solve_triangular(y, half, transpose=True)
        both = g.solve_triangular(y, _transposed(g, left), transpose=True)
        both = g.mul(g.add(both, _transposed(g, both)), 0.5)
        return (g.add(g.tril(both), g.tril(both, diagonal=-1)),)

    def flops(a):
        return a.size * a.shape[-1] // 3


class solve_triangular(Op):
    """The solution of a y = b, where a is triangular.

    a [..., N, N], b [..., N, K]; y [..., N, K]. Of a, only the lower triangle is read, with `upper`
    the upper one. `transpose`: of a^T y = b; `unit`: the diagonal of a counts as ones.
    """

    _attrs = "upper: bool = false, transpose: bool = false, unit: bool = false"
    signature = f"solve_triangular(a: F, b: F, *, {_attrs})"
    formula = "a y = b"
    source = "torch.linalg.solve_triangular"
    faults = Faults(_own_column, Rule("0 on the diagonal", _zero_pivots))

    def infer(a, b, *, upper, transpose, unit):
        n = _size("solve_triangular", a, 0)
        if b.rank != a.rank or b.shape[:-1] != (*a.shape[:-2], n):
            raise Mismatch(f"solve_triangular of {a} takes as many rows, not {b}", 1)
        return b

    def oracle(a, b, *, upper, transpose, unit):
        a = np.triu(a) if upper else np.tril(a)
        n, y = a.shape[-1], np.zeros_like(b)
        if unit:
            a = np.where(np.eye(n, dtype=bool), 1.0, a)
        a = np.swapaxes(a, -1, -2) if transpose else a
        with np.errstate(all="ignore"):
            for i in range(n) if upper == transpose else reversed(range(n)):
                known = slice(i) if upper == transpose else slice(i + 1, n)
                row = a[..., i, None, known] @ y[..., known, :]
                y[..., i, :] = (b[..., i, :] - row[..., 0, :]) / a[..., i, i, None]
        return y

    def cpu(a, b, y, *, upper, transpose, unit):
        n, columns = b.shape[-2:]
        units = b.size // n if n else 0
        options = (upper == transpose, transpose, unit)
        return Launch(substitute, a, b, y, n, columns, *options, units=units, grain=1)

    def grad(g, operands, results, grads, *, upper, transpose, unit):
        (a, _), (y,), (gy,) = operands, results, grads
        gb = g.solve_triangular(a, gy, upper=upper, transpose=not transpose, unit=unit)
        left, right = (y, gb) if transpose else (gb, y)
        ga = g.neg(g.matmul(left, right, transpose_b=True))
        ga = g.triu(ga, diagonal=int(unit)) if upper else g.tril(ga, diagonal=-int(unit))
        return ga, gb

    def flops(a, b, **attrs):
        return b.size * a.shape[-1]


def factor(a, y, n, lo, hi):
    """Units are matrices; row by row, sums in f64."""
    for unit in range(lo, hi):
        base = unit * n * n
        for i in range(n):
            row = base + i * n
            for j in range(n):
                if j > i:
                    y[row + j] = 0.0
                    continue
                above = base + j * n
                total = np.float64(a[row + j])
                for k in range(j):
                    total -= np.float64(y[row + k]) * np.float64(y[above + k])
                y[row + j] = math.sqrt(total) if i == j else total / np.float64(y[above + j])


def substitute(a, b, y, n, columns, is_forward, transpose, unit, lo, hi):
    """Units are columns of b; sums in f64."""
    for u in range(lo, hi):
        batch = u // columns
        matrix, column = batch * n * n, batch * n * columns + u - batch * columns
        for step in range(n):
            i = step if is_forward else n - 1 - step
            total = np.float64(b[column + i * columns])
            for before in range(step):
                k = before if is_forward else n - 1 - before
                place = k * n + i if transpose else i * n + k
                total -= np.float64(a[matrix + place]) * np.float64(y[column + k * columns])
            if not unit:
                total /= np.float64(a[matrix + i * n + i])
            y[column + i * columns] = total
