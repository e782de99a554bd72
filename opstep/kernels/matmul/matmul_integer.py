"""Matrix products of bytes, as quantised models have them: exact sums in i32."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.matmul.cuda_bytes import FEWEST, exact_products, laid_bytes
from opstep.kernels.matmul.cuda_gemm import product as product_on_gpu
from opstep.kernels.matmul.matmul import matmul, matrices_of, product
from opstep.kernels.matmul.packed import each_of, flip_of, pack_planes, packed_lines, per_word
from opstep.kernels.matmul.products import Side, batch_offset
from opstep.runtime.device.builtin import SIGNED_LEFT, SIGNED_RIGHT, offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, i8, i32, u8

_GRAIN = 65536  # elements under which another lane is not woken


def want_bytes(name: str, t: TensorType, at: int) -> None:
    if t.dtype is not i8 and t.dtype is not u8:
        hint = "cast it, or use the op without _integer; a zero point is of its operand's type"
        raise Mismatch(f"{name} takes bytes, u8 or i8, not {t}", at, hint)


def want_zero(zero: TensorType | None, shape: tuple, at: int) -> None:
    if zero is not None and zero.shape not in ((), shape):
        sizes = f" or [{', '.join(map(str, shape))}]" if shape else ""
        raise Mismatch(f"a zero point is a scalar{sizes}, not {zero}", at)


class matmul_integer(Op):
    """`matmul` of bytes, exactly: less their zero points, summed in i32.

    a [..., M, K] (or [..., K, M] with `transpose_a`), b [..., K, N] (or [..., N, K]), each u8 or
    i8; a_zero a scalar, b_zero one or [N]; y [..., M, N], i32. Vectors are as in `matmul`.
    """

    signature = (
        "matmul_integer(a: I, b: I2, a_zero: I?, b_zero: I2?, *, transpose_a: bool = false, "
        "transpose_b: bool = false)"
    )
    source = "ONNX MatMulInteger, torch._int_mm"
    formula = "y[..., i, j] = sum over k of (a[..., i, k] - a_zero) * (b[..., k, j] - b_zero[j])"
    faults = NO_FAULTS
    grad = None

    def infer(a, b, a_zero, b_zero, *, transpose_a, transpose_b):
        want_bytes("matmul_integer", a, 0)
        want_bytes("matmul_integer", b, 1)
        y = matmul.infer(
            a.with_dtype(i32), b.with_dtype(i32), transpose_a=transpose_a, transpose_b=transpose_b
        )
        columns = b.shape[-2 if transpose_b else -1] if b.rank > 1 else 1
        want_zero(a_zero, (), 2)
        want_zero(b_zero, (columns,) if b.rank > 1 else (), 3)
        return y

    def oracle(a, b, a_zero=None, b_zero=None, *, transpose_a, transpose_b):
        a, b = a.astype(np.int64), b.astype(np.int64)
        a = a if a_zero is None else a - a_zero.astype(np.int64)
        if b_zero is not None:
            zero = b_zero.astype(np.int64)
            b = b - (zero[:, None] if transpose_b and zero.ndim else zero)
        y = matmul.oracle(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        return y.astype(np.int32)

    def cpu(a, b, a_zero, b_zero, y, *, transpose_a, transpose_b):
        _, _, _, shape, strides, m, n, k, _ = matrices_of(a, b, y, transpose_a, transpose_b)
        if not y.size:
            return []
        # words of four take u8 on one side and i8 on the other: of equal types the right one's move
        left_signed = a.dtype is i8
        flip = flip_of(b, signed=not left_signed)
        left, launches = _side(a, m, k, transpose_a, strides[0], 0)
        turned, more = _side(b, n, k, not transpose_b and b.rank > 1, strides[1], flip)
        right = Side(turned.array, turned.column, turned.row, turned.batch)
        kind = SIGNED_LEFT if left_signed else SIGNED_RIGHT
        launches += more
        launches += product(left, right, y, shape, m, n, -(-k // per_word()), kind=kind)
        if not k or (a_zero is None and b_zero is None and not flip):
            return launches
        rows = Scratch(i32, a.size // k)
        columns = Scratch(i32, b.size // k)
        sums = ((a, rows, m, transpose_a), (b, columns, n, not transpose_b and b.rank > 1))
        for source, to, count, across in sums:
            lines = source.size // k
            launches.append(Launch(sum_lines, source, to, count, k, across, units=lines, grain=64))
        # what was added to b's bytes is one more of their zero point
        moved = (128 if b.dtype is i8 else -128) if flip else 0
        per_matrix = tuple(tuple(s // k for s in side) for side in strides)
        launches.append(
            Launch(
                *(take_off, y, rows, columns, a_zero or a, b_zero or b, shape, *per_matrix),
                *(len(shape), m, n, k, a_zero is not None, *each_of(b_zero), moved),
                units=prod(shape) * m,
                grain=max(1, _GRAIN // n),
            )
        )
        return launches

    def cuda(a, b, a_zero, b_zero, y, *, transpose_a, transpose_b):
        _, _, _, shape, strides, m, n, k, _ = matrices_of(a, b, y, transpose_a, transpose_b)
        if k >= FEWEST and y.size:
            left = laid_bytes(a, a_zero, m, k, transpose_a)
            right = laid_bytes(b, b_zero, n, k, b.rank > 1 and not transpose_b)
            lines = tuple(tuple(s // k for s in side) for side in strides)
            exact = exact_products(left, right, y, shape, lines, m, n, k)
            if exact is not None:
                return exact
        left = Side(a, *((1, m) if transpose_a else (k, 1)), strides[0])
        right = Side(b, *((1, k) if transpose_b else (n, 1)), strides[1])
        return product_on_gpu(left, right, y, shape, m, n, k, zeros=(a_zero, b_zero))

    def flops(a, b, a_zero, b_zero, *, transpose_a, transpose_b):
        return matmul.flops(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _side(a: Arg, lines: int, k: int, across: bool, batch, flip: int) -> tuple[Side, list[Launch]]:
    """Matrices of so many lines along the sum as words; `across`: their elements are a line's
    neighbours.
    """
    each = per_word()
    words = -(-k // each)
    steps = (1, lines) if across else (words, 1)
    batch = tuple(s // max(1, lines * k) * lines * words for s in batch)
    count = a.size // max(1, lines * k)
    if not across:
        packed, launches = packed_lines(a, count * lines, k, 1, flip)
        return Side(packed, *steps, batch), launches
    packed = Scratch(i32, count * lines * words)
    axes = ((1, 1, 0), (1, 1, 0), (lines, lines, 0))
    launch = Launch(
        *(pack_planes, a, a, packed, False, flip, each, k, words, *axes),
        units=count * words,
        grain=max(1, _GRAIN // max(1, lines)),
    )
    return Side(packed, *steps, batch), [launch]


# --- kernels --------------------------------------------------------------------------------------


def sum_lines(x, to, lines, k, across, lo, hi):
    """The sum of a line a unit."""
    for unit in range(lo, hi):
        total = 0
        if across:
            source = offset(x, unit // lines * k * lines + unit % lines)
            for i in range(k):
                total += source[i * lines]
        else:
            source = offset(x, unit * k)
            for i in range(k):
                total += source[i]
        to[unit] = total


def take_off(
    y, rows, columns, a_zero, b_zero, shape, a_strides, b_strides, rank, m, n, k, a_shifted,
    b_shifted, each_zero, moved, lo, hi,
):  # fmt: skip
    """What zero points add; a unit is a row of y."""
    a_off = 0
    if a_shifted:
        a_off = np.int64(a_zero[0])
    for unit in range(lo, hi):
        batch = unit // m
        row = rows[batch_offset(batch, rank, shape, a_strides) + unit % m]
        right = offset(columns, batch_offset(batch, rank, shape, b_strides))
        out = offset(y, unit * n)
        for j in range(n):
            b_off = 0
            if b_shifted:
                b_off = b_zero[j * each_zero]
            out[j] -= (b_off + moved) * row + a_off * (right[j] - k * b_off)
