"""Choosing between elements, changing their type, copying."""

from __future__ import annotations

import numpy as np

from opstep.kernels.pointwise.broadcast import broadcast_shape, collapse, locate
from opstep.kernels.pointwise.cuda_cast import as_bits, cast_of
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.elementwise import onto, same
from opstep.kernels.rules.pitfalls import OVERFLOW
from opstep.runtime.device.convert import conversion, plain
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import f32


def choose(c, a, b, y, sizes, c_steps, a_steps, b_steps, rank, lo, hi):
    """Rows of the last axis; loops for the usual cases, and one that takes any steps."""
    last = rank - 1
    n = sizes[last]
    row = lo // n
    j = lo - row * n
    i = lo
    while i < hi:
        count = min(n - j, hi - i)
        r = locate(row, sizes, c_steps, last) + j * c_steps[last]
        p = locate(row, sizes, a_steps, last) + j * a_steps[last]
        q = locate(row, sizes, b_steps, last) + j * b_steps[last]
        steps = c_steps[last] * 4 + a_steps[last] * 2 + b_steps[last]
        if steps == 7:
            for k in range(count):
                y[i + k] = a[p + k] if c[r + k] != 0 else b[q + k]
        elif steps == 6:
            other = b[q]
            for k in range(count):
                y[i + k] = a[p + k] if c[r + k] != 0 else other
        elif steps == 5:
            one = a[p]
            for k in range(count):
                y[i + k] = one if c[r + k] != 0 else b[q + k]
        else:
            for k in range(count):
                one = a[p + k * a_steps[last]]
                other = b[q + k * b_steps[last]]
                y[i + k] = one if c[r + k * c_steps[last]] != 0 else other
        i += count
        j = 0
        row += 1


def chosen(c, a, b):
    return a if c != 0 else b


class where(Op):
    """a if cond is true, else b, element by element; all three broadcast."""

    signature = "where(cond: B, a: T, b: T)"
    formula = "a if cond else b"
    source = "torch.where, torch.Tensor.masked_fill, ONNX Where"
    moves = True
    inplace = (1, 2)
    oracle = np.where

    def element(cond, a, b):
        return chosen, []

    def infer(cond, a, b):
        return a.with_shape(broadcast_shape(cond, a, b))

    def cpu(cond, a, b, y):
        layout = collapse(y.shape, (cond.shape, a.shape, b.shape))
        rank = len(layout.shape)
        return Launch(choose, cond, a, b, y, layout.shape, *layout.strides, rank, units=y.size)

    def cuda(cond, a, b, y):
        values = as_bits(a, b, y)
        return elementwise(chosen, "where", (cond, *values[:2]), values[2]) or where.cpu(
            cond, a, b, y
        )

    def grad(g, operands, results, grads):
        cond, a, b = operands
        (gy,) = grads
        return (
            None,
            onto(g, a, lambda: g.where(cond, gy, 0.0)),
            onto(g, b, lambda: g.where(cond, 0.0, gy)),
        )


class cast(Op):
    """x converted to another element type.

    To a narrower float: rounds to nearest, ties to even. From float to integer: truncates; NaN
    becomes 0, and values out of range the nearest limit. To bool: whether x is not 0. Integers wrap
    around.
    """

    signature = "cast(x: T, *, dtype: dtype)"
    source = "torch.Tensor.to, numpy.astype, ONNX Cast"
    faults = OVERFLOW
    moves = True

    def element(x, *, dtype):
        return same, []

    def infer(x, *, dtype):
        return x.with_dtype(dtype)

    def oracle(x, *, dtype):
        if x.dtype.kind == "f" and dtype.is_integer:
            limits = np.iinfo(dtype.numpy)
            whole = np.clip(np.trunc(np.nan_to_num(x, nan=0.0)), limits.min, limits.max)
            top = x >= limits.max  # may be rounded up in x's type
            return np.where(top, limits.max, np.where(top, 0, whole).astype(dtype.numpy))
        with np.errstate(all="ignore"):
            return x.astype(dtype.numpy)

    def cpu(x, y, *, dtype):
        return conversion(x, y, lambda size: Scratch(f32, size))

    def cuda(x, y, *, dtype):
        return cast_of(x, y)

    def grad(g, operands, results, grads, *, dtype):
        return (onto(g, operands[0], lambda: grads[0]),)


class identity(Op):
    """A copy of x."""

    signature = "identity(x: T)"
    formula = "x"
    source = "torch.clone, torch.Tensor.contiguous and detach, ONNX Identity"
    moves = True
    inplace = (0,)

    def element(x):
        return same, []

    def infer(x):
        return x

    def oracle(x):
        return x.copy()

    def cpu(x, y):
        return Launch(plain, x, y, units=y.size)

    def cuda(x, y):
        x, y = as_bits(x, y)
        return elementwise(same, "identity", (x,), y)

    def grad(g, operands, results, grads):
        return (grads[0],)
