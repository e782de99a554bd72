"""Tensors made from nothing but attributes: constants, counts, the identity."""

from __future__ import annotations

import numpy as np

from opstep.kernels.axes import axis_of
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import DType, TensorType


def write_value(y, value, lo, hi):
    for i in range(lo, hi):
        y[i] = value


def count_along_axis(y, start, step, extent, inner, lo, hi):
    """Units are runs of `inner` elements with one value."""
    for run in range(lo, hi):
        value = start + (run % extent) * step
        for i in range(run * inner, (run + 1) * inner):
            y[i] = value


def write_diagonal(y, rows, columns, diagonal, lo, hi):
    """Units are rows of all matrices."""
    for run in range(lo, hi):
        row = run % rows
        for column in range(columns):
            y[run * columns + column] = 1.0 if column - row == diagonal else 0.0


def shaped(shape, dtype: DType) -> TensorType:
    """The type of a new tensor; Mismatch where a dim is negative."""
    for d in shape:
        if type(d) is int and d < 0:
            raise Mismatch(f"a dim is {d}; sizes are 0 or more", "shape")
    return TensorType(dtype, tuple(shape))


def fitting(value: int | float, dtype: DType, name: str) -> int | float:
    """`value` as a kernel of that dtype takes it; Mismatch where an integer type cannot hold it."""
    if dtype.is_float:
        return float(value)
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise Mismatch(f"{name} is {value}, which {dtype} cannot hold", name)
    most = {"i": (1 << dtype.bits - 1) - 1, "u": (1 << dtype.bits) - 1, "b": 1}[dtype.kind]
    least = -most - 1 if dtype.kind == "i" else 0
    if not least <= value <= most:
        raise Mismatch(f"{name} is {value}; {dtype} goes from {least} to {most}", name)
    return int(value)


class full(Op):
    """`value` everywhere."""

    signature = "full(*, shape: dims, value: number, dtype: dtype = f32)"
    source = "torch.full, ONNX ConstantOfShape"
    grad = None

    def infer(*, shape, value, dtype):
        fitting(value, dtype, "value")
        return shaped(shape, dtype)

    def oracle(*, shape, value, dtype):
        return np.full(shape, value)

    def cpu(y, *, shape, value, dtype):
        return Launch(write_value, y, fitting(value, dtype, "value"), units=y.size)


class _Constant(Op):
    grad = None

    def infer(*, shape, dtype):
        return shaped(shape, dtype)


class zeros(_Constant):
    """0 everywhere."""

    signature = "zeros(*, shape: dims, dtype: dtype = f32)"
    source = "torch.zeros"

    def oracle(*, shape, dtype):
        return np.zeros(shape)

    def cpu(y, *, shape, dtype):
        return Launch(write_value, y, fitting(0, dtype, "value"), units=y.size)


class ones(_Constant):
    """1 everywhere."""

    signature = "ones(*, shape: dims, dtype: dtype = f32)"
    source = "torch.ones"

    def oracle(*, shape, dtype):
        return np.ones(shape)

    def cpu(y, *, shape, dtype):
        return Launch(write_value, y, fitting(1, dtype, "value"), units=y.size)


class iota(Op):
    """start, start + step, start + 2*step, … along `axis`, the same for all other indices."""

    signature = (
        "iota(*, shape: dims, axis: int = 0, start: number = 0, step: number = 1, "
        "dtype: dtype = i64)"
    )
    formula = "start + index[axis]*step"
    source = "torch.arange (shape=[n]), ONNX Range"
    grad = None

    def infer(*, shape, axis, start, step, dtype):
        t = shaped(shape, dtype)
        if not t.rank:
            raise Mismatch("iota counts along an axis: it has none", "shape", "shape=[n]")
        if dtype.kind == "b":
            raise Mismatch("iota gives numbers, not bools", "dtype")
        axis_of(axis, t.rank)
        fitting(start, dtype, "start")
        fitting(step, dtype, "step")
        return t

    def oracle(*, shape, axis, start, step, dtype):
        axis %= len(shape)
        counts = start + np.arange(shape[axis]) * step
        along = [shape[axis] if k == axis else 1 for k in range(len(shape))]
        return np.broadcast_to(counts.reshape(along), shape)

    def cpu(y, *, shape, axis, start, step, dtype):
        axis %= y.rank
        inner = int(np.prod(y.shape[axis + 1 :], dtype=np.int64))
        first, by = fitting(start, dtype, "start"), fitting(step, dtype, "step")
        runs = y.size // inner if inner else 0
        grain = max(1, 32768 // max(inner, 1))
        return Launch(count_along_axis, y, first, by, y.shape[axis], inner, units=runs, grain=grain)

    def flops(*, shape, axis, start, step, dtype):
        return 2 * shaped(shape, dtype).size


class eye(Op):
    """1 on a diagonal of the last two axes, 0 elsewhere; `diagonal` counts up to the right."""

    signature = "eye(*, shape: dims, diagonal: int = 0, dtype: dtype = f32)"
    formula = "1 where column - row == diagonal, else 0"
    source = "torch.eye, ONNX EyeLike (k)"
    grad = None

    def infer(*, shape, diagonal, dtype):
        if len(shape) < 2:
            raise Mismatch("eye makes matrices: it needs two dims or more", "shape")
        return shaped(shape, dtype)

    def oracle(*, shape, diagonal, dtype):
        return np.broadcast_to(np.eye(*shape[-2:], k=diagonal), shape)

    def cpu(y, *, shape, diagonal, dtype):
        rows, columns = y.shape[-2:]
        runs = y.size // columns if columns else 0
        grain = max(1, 32768 // max(columns, 1))
        return Launch(write_diagonal, y, rows, columns, diagonal, units=runs, grain=grain)
