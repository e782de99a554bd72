"""Matrix products."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule, wide
from opstep.runtime.ir.types import i8, i16, i32, u8


def swapped(b, x):
    rank = x.type.rank
    return b.transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2]) if rank > 1 else x


def _multiplied(b, t, x, y):
    """ONNX's MatMul. Narrow integers are multiplied as i32 and wrap around when they are cast."""
    if x.shape[-1] == 0:  # ONNX Runtime leaves it unwritten
        return b.zeros(shape=t.shape, dtype=t.dtype)
    if t.dtype in (i8, u8):
        product = b.onnx("MatMulInteger", x, y, out=t.with_dtype(i32))
        return b.to(product, t.dtype)
    if t.dtype is i16:
        product = b.onnx("MatMul", b.to(x, i32), b.to(y, i32), out=t.with_dtype(i32))
        return b.to(product, t.dtype)
    return b.onnx("MatMul", x, y, out=t)


@rule("matmul")
def _matmul(b, t, x, y, transpose_a, transpose_b):
    if (transpose_a or transpose_b) and x.type.rank == y.type.rank == 2 and t.dtype.is_float:
        return b.onnx("Gemm", x, y, out=t, transA=int(transpose_a), transB=int(transpose_b))
    x = swapped(b, x) if transpose_a else x
    y = swapped(b, y) if transpose_b else y
    return _multiplied(b, t, x, y)


@rule("matmul_integer")
def _matmul_integer(b, t, x, y, x_zero, y_zero, transpose_a, transpose_b):
    if x.shape[-1 if not transpose_a else -2] == 0:
        return b.zeros(shape=t.shape, dtype=t.dtype)
    x = swapped(b, x) if transpose_a else x
    y = swapped(b, y) if transpose_b else y
    if y_zero is not None and y_zero.type.rank and y.type.rank > 2:  # as ONNX Runtime takes it
        y_zero = b.broadcast(y_zero, shape=(*y.shape[:-2], 1, y.shape[-1]))
    return b.onnx("MatMulInteger", x, y, x_zero, y_zero, out=t)


@rule("linear")
def _linear(b, t, x, w, bias, transpose_w):
    if x.type.rank == 2 and t.dtype.is_float:
        return b.onnx("Gemm", x, w, bias, out=t, transB=int(not transpose_w))
    product = _multiplied(b, t, x, w if transpose_w else swapped(b, w))
    return product if bias is None else b.add(product, bias)


@rule("einsum")
def _einsum(b, t, *xs, equation):
    if "->" not in equation:  # what is named once, in alphabetical order
        letters = equation.replace(",", "").replace(" ", "")
        equation += "->" + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return b.onnx("Einsum", *xs, out=t, equation=equation)


@rule("cdist")
@wide
def _cdist(b, t, x, y, p):
    away = b.abs(b.sub(b.unsqueeze(x, axes=[-2]), b.unsqueeze(y, axes=[-3])))
    if p == 0:
        return b.cast(b.sum(b.not_equal(away, 0.0), axes=[-1]), dtype=t.dtype)
    if p == float("inf"):
        return b.max(away, axes=[-1])
    if p == 1:
        return b.sum(away, axes=[-1])
    if p == 2:
        return b.sqrt(b.sum(b.square(away), axes=[-1]))
    return b.pow(b.sum(b.pow(away, p), axes=[-1]), 1 / p)
