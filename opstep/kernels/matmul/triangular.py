"""Triangular matrices: the root of a symmetric one, and equations."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.matmul import cuda_triangular as gpu
from opstep.kernels.matmul.products import OVERREAD, PANEL, transpose
from opstep.runtime.device.builtin import (
    clear_run,
    offset,
    outer_tile_1,
    outer_tile_8,
    vector_length,
)
from opstep.runtime.device.launch import NO_LIMITS, Launch, Scratch
from opstep.runtime.ir.faults import Faults, Rule, Site
from opstep.runtime.ir.op import Mismatch, Op

_BAND = 8  # rows that a tile goes over


def _size(name: str, a, at: int):
    """Rows of a square matrix, or of a batch of them."""
    if a.rank < 2 or a.shape[-1] != a.shape[-2]:
        raise Mismatch(f"{name} takes square matrices, not {a}", at)
    return a.shape[-1]


def _held(a, size: int) -> Scratch:
    """Rows that tiles read, a lane's own."""
    return Scratch(a.dtype, size + OVERREAD // a.dtype.itemsize, per_lane=True)


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
        pitch = -(-n // 16) * 16
        held, table = _held(a, n * pitch), tuple(k * pitch for k in range(n))
        units = a.size // (n * n) if n else 0
        args = (held, held.size, table, pitch, n, NO_LIMITS)
        return Launch(factor, a, y, *args, units=units, grain=1)

    def cuda(a, y):
        return gpu.factor(a, y)

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
        panel = PANEL // a.dtype.itemsize
        held, table = _held(a, n * panel), tuple(k * panel for k in range(n))
        units = b.size // (n * columns) * -(-columns // panel) if b.size else 0
        strides = (1, n) if transpose else (n, 1)
        args = (held, held.size, table, panel, n, columns, upper == transpose, *strides, unit)
        return Launch(substitute, a, b, y, *args, NO_LIMITS, units=units, grain=1)

    def cuda(a, b, y, *, upper, transpose, unit):
        return gpu.solve(a, b, y, upper, transpose, unit)

    def grad(g, operands, results, grads, *, upper, transpose, unit):
        (a, _), (y,), (gy,) = operands, results, grads
        gb = g.solve_triangular(a, gy, upper=upper, transpose=not transpose, unit=unit)
        left, right = (y, gb) if transpose else (gb, y)
        ga = g.neg(g.matmul(left, right, transpose_b=True))
        ga = g.triu(ga, diagonal=int(unit)) if upper else g.tril(ga, diagonal=-int(unit))
        return ga, gb

    def flops(a, b, **attrs):
        return b.size * a.shape[-1]


def factor(a, y, held, lane_size, table, pitch, n, limits, lo, hi, lane):
    """Units are matrices. Rows of y's transpose are made eight at a time: each is what a has, less
    products of those above, which tiles add to it with the other sign.
    """
    whole = offset(held, lane * lane_size)
    widest = 3 * vector_length(a)
    for unit in range(lo, hi):
        source, target = offset(a, unit * n * n), offset(y, unit * n * n)
        clear_run(whole, a, lane_size)
        for i0 in range(0, n, _BAND):
            some = min(_BAND, n - i0)
            rows = offset(whole, i0 * pitch)
            transpose(offset(source, i0 * n + i0), n, offset(rows, i0), pitch, n - i0, some)
            for r in range(some):
                for j in range(i0, n):
                    rows[r * pitch + j] = -rows[r * pitch + j]
            for j in range(i0, n if i0 > 0 else 0, widest):
                place = offset(rows, j)
                outer_tile_8(
                    i0, offset(whole, i0), 1, pitch, offset(whole, j), table, place, pitch, 1,
                    place, pitch, some, min(widest, n - j), 0, limits,
                )  # fmt: skip
            for r in range(some):
                i = i0 + r
                row = offset(rows, r * pitch)
                for j in range(i, n if r > 0 else 0, widest):
                    place = offset(row, j)
                    outer_tile_1(
                        r, offset(rows, i), 1, pitch, offset(rows, j), table, place, pitch, 1,
                        place, pitch, 1, min(widest, n - j), 0, limits,
                    )  # fmt: skip
                root = math.sqrt(-row[i]) if row[i] < 0.0 else math.nan
                for j in range(i, n):
                    row[j] /= -root
                row[i] = root
        transpose(whole, pitch, target, n, n, n)
        for i in range(n):
            for j in range(i + 1, n):
                target[i * n + j] = 0.0


def substitute(
    a, b, y, held, lane_size, table, panel, n, columns, is_forward, a_row, a_column, unit, limits,
    lo, hi, lane,
):  # fmt: skip
    """Units are panels of columns of b. Tiles take products of rows of y from eight rows at a time;
    y is held with the other sign, as they add.
    """
    whole = offset(held, lane * lane_size)
    widest = 3 * vector_length(a)
    panels = (columns + panel - 1) // panel
    for u in range(lo, hi):
        batch = u // panels
        column = (u - batch * panels) * panel
        across = min(panel, columns - column)
        matrix, at = offset(a, batch * n * n), batch * n * columns + column
        source, target = offset(b, at), offset(y, at)
        clear_run(whole, a, lane_size)
        for done in range(0, n, _BAND):
            some = min(_BAND, n - done)
            i0 = done if is_forward else n - done - some
            first = 0 if is_forward else i0 + some
            left = offset(matrix, i0 * a_row + first * a_column)
            for j in range(0, across, widest):
                outer_tile_8(
                    done, left, a_row, a_column, offset(whole, first * panel + j), table,
                    offset(whole, i0 * panel + j), panel, 1, offset(source, i0 * columns + j),
                    columns, some, min(widest, across - j), 0, limits,
                )  # fmt: skip
            for r in range(some):
                i = i0 + r if is_forward else i0 + some - 1 - r
                first = i0 if is_forward else i + 1
                left = offset(matrix, i * a_row + first * a_column)
                row = offset(whole, i * panel)
                for j in range(0, across if r > 0 else 0, widest):
                    place = offset(row, j)
                    outer_tile_1(
                        r, left, a_row, a_column, offset(whole, first * panel + j), table, place,
                        panel, 1, place, panel, 1, min(widest, across - j), 0, limits,
                    )  # fmt: skip
                pivot = 1.0 if unit else matrix[i * (a_row + a_column)]
                out = offset(target, i * columns)
                for j in range(across):
                    out[j] = row[j] / pivot
                for j in range(across):
                    row[j] = -out[j]
