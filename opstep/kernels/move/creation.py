"""Tensors created without operands: constants, counters, the identity matrix.

As initialisers of params and states they get `shape` and `dtype` from the declaration.
"""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.move.copying import filled
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.rules.axes import around, axis_of, volume
from opstep.kernels.rules.literals import check_value
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32
from opstep.runtime.device.launch import Grid, Launch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType


class Creation(Op):
    """Base: no operands; attributes shape and dtype give the type."""

    grad = None

    def infer(*, shape, dtype, **attrs):
        return shaped(shape, dtype)


def shaped(shape, dtype, at: str = "shape") -> TensorType:
    """The type; raises Mismatch where a dim is negative."""
    for d in shape:
        if isinstance(d, int) and d < 0:
            raise Mismatch(f"a dim cannot be negative: {d}", at)
    return TensorType(dtype, tuple(shape))


class Constant(Creation):
    """Base: every element is `value`, an attribute or the op's own."""

    traits = Traits(moves=True, alike=True)
    value = 0

    @classmethod
    def oracle(cls, *, shape, dtype, value=None):
        kind = np.float64 if dtype.is_float else dtype.numpy
        return np.full(shape, cls.value if value is None else value, kind)

    @classmethod
    def cpu(cls, y, *, shape, dtype, value=None):
        return filled(y, cls.value if value is None else value)


class full(Constant):
    """Every element is `value`."""

    signature = "full(*, shape: dims, value: number, dtype: dtype = f32)"
    formula = "value"
    source = "torch.full, torch.full_like, ONNX ConstantOfShape"

    def infer(*, shape, value, dtype):
        check_value(value, dtype)
        return shaped(shape, dtype)


class zeros(Constant):
    """Every element is 0 (false)."""

    signature = "zeros(*, shape: dims, dtype: dtype = f32)"
    formula = "0"
    source = "torch.zeros, torch.zeros_like"


class ones(Constant):
    """Every element is 1 (true)."""

    signature = "ones(*, shape: dims, dtype: dtype = f32)"
    formula = "1"
    source = "torch.ones, torch.ones_like"
    value = 1


def count_up(y, start, step, n, inner, lo, hi):
    """Runs along the axis where it is the last one, else runs of one value."""
    i = lo
    while i < hi:
        if inner == 1:
            j = i % n
            run = min(n - j, hi - i)
            for k in range(run):
                y[i + k] = start + step * (j + k)
        else:
            j = i // inner % n
            run = min(inner - i % inner, hi - i)
            for k in range(run):
                y[i + k] = start + step * j
        i += run


def count_each(y, start, step, n, inner, size):
    """On CUDA: an element a thread."""
    i = cuda.grid(1)
    if i < size:
        y[i] = start + step * mod32(div32(i, inner), n)


class iota(Creation):
    """Counts along one axis: start, start + step, ..., repeated along all others."""

    signature = (
        "iota(*, shape: dims, axis: int = 0, start: number = 0, step: number = 1, "
        "dtype: dtype = i64)"
    )
    formula = "start + step*index along axis"
    source = "torch.arange, ONNX Range, XLA Iota"

    def infer(*, shape, axis, start, step, dtype):
        axis_of(axis, len(shape))
        check_value(start, dtype, "start")
        check_value(step, dtype, "step")
        if dtype.kind == "b":
            raise Mismatch("bools do not count", "dtype")
        return shaped(shape, dtype)

    def oracle(*, shape, axis, start, step, dtype):
        kind = np.float64 if dtype.is_float else dtype.numpy
        counted = np.asarray(start + step * np.arange(shape[axis])).astype(kind)
        along = [1] * len(shape)
        along[axis] = shape[axis]
        return np.broadcast_to(counted.reshape(along), shape)

    def cpu(y, *, shape, axis, start, step, dtype):
        kind = float if y.dtype.is_float else int
        _, n, inner = around(y.shape, axis % y.rank)
        return Launch(count_up, y, kind(start), kind(step), n, inner, units=y.size)

    def cuda(y, *, shape, axis, start, step, dtype):
        kind = float if y.dtype.is_float else int
        _, n, inner = around(y.shape, axis % y.rank)
        if y.size >= LIMIT:
            return iota.cpu(y, shape=shape, axis=axis, start=start, step=step, dtype=dtype)
        args = (y, kind(start), kind(step), n, inner, y.size)
        return Grid(count_each, *args, grid=-(-y.size // 256), block=256)


def put_diagonal(y, rows, columns, k, lo, hi):
    """Units are rows, of one matrix after the other."""
    for unit in range(lo, hi):
        for j in range(columns):
            y[unit * columns + j] = 0.0
        row = unit % rows
        if 0 <= row + k < columns:
            y[unit * columns + row + k] = 1.0


def diagonal_each(y, rows, columns, k, size):
    """On CUDA: an element a thread."""
    i = cuda.grid(1)
    if i < size:
        row = div32(i, columns)
        y[i] = 1.0 if i - row * columns == mod32(row, rows) + k else 0.0


class eye(Creation):
    """1 on a diagonal of a matrix, 0 elsewhere; `diagonal=0` is the main one, 1 the next above.

    If the shape has more axes, every matrix of the last two is the same.
    """

    signature = "eye(*, shape: dims, diagonal: int = 0, dtype: dtype = f32)"
    formula = "1 where column = row + diagonal, else 0"
    source = "torch.eye, ONNX EyeLike"

    def infer(*, shape, diagonal, dtype):
        if len(shape) < 2:
            raise Mismatch("eye makes matrices: shape needs two dims or more", "shape")
        return shaped(shape, dtype)

    def oracle(*, shape, diagonal, dtype):
        one = np.eye(*shape[-2:], diagonal, np.float64 if dtype.is_float else dtype.numpy)
        return np.broadcast_to(one, shape)

    def cpu(y, *, shape, diagonal, dtype):
        *outer, rows, columns = y.shape
        grain = max(1, 32768 // (columns + 1))
        units = prod(outer) * rows
        return Launch(put_diagonal, y, rows, columns, diagonal, units=units, grain=grain)

    def cuda(y, *, shape, diagonal, dtype):
        *_, rows, columns = y.shape
        if y.size >= LIMIT:
            return eye.cpu(y, shape=shape, diagonal=diagonal, dtype=dtype)
        args = (y, rows, columns, diagonal, y.size)
        return Grid(diagonal_each, *args, grid=-(-y.size // 256), block=256)


class extent(Creation):
    """The product of dims as a scalar, such as the divisor of a mean over a symbolic batch; without
    dims, how many ranks there are along axes of the mesh, or in all.
    """

    signature = "extent(*, of: dims = none, over: axes = none, dtype: dtype = i64)"
    formula = "of[0] * of[1] * ..."
    source = "torch.sym_size, torch.numel, ONNX Size"
    traits = Traits(moves=True)

    def infer(*, of, over, dtype):
        if of is not None and over is not None and not over.is_whole:
            raise Mismatch("extent takes dims or axes of the mesh, not both", "over")
        shaped(of or (), dtype, "of")
        n = _extent(of, over)
        if isinstance(n, int):
            check_value(n, dtype, "of")
            if n >= 2**63:
                raise Mismatch(f"the product of the dims, {n}, does not fit 64 bits", "of")
        return TensorType(dtype, ())

    def oracle(*, of, over, dtype):
        return np.array(_extent(of, over), np.float64 if dtype.is_float else dtype.numpy)

    def cpu(y, *, of, over, dtype):
        return filled(y, _extent(of, over))


def _extent(of, over) -> Dim:
    return over.size if of is None else volume(of)
