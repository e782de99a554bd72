"""Tensors without operands."""

from __future__ import annotations

import numpy as np

from opstep.frontends.onnx.export_rules import rule
from opstep.kernels.rules.axes import axis_of, volume
from opstep.runtime.ir.types import TensorType, boolean, f32, i64


@rule("extent")
def _extent(b, t, of, dtype, over):
    """A run of ONNX's is one of a single rank."""
    return b.cast(b.reshape(b.vector([1 if of is None else volume(of)]), shape=[]), dtype=dtype)


@rule("full")
def _full(b, t, shape, value, dtype):
    if not t.rank:
        return b.value(value, t.dtype)
    kind = boolean if t.dtype is boolean else t.dtype
    array = np.asarray([value]).astype(kind.numpy)
    return b.onnx("ConstantOfShape", b.vector(t.shape), out=t, value=b.tensor(array))


rule("zeros")(lambda b, t, shape, dtype: _full(b, t, shape, 0, dtype))
rule("ones")(lambda b, t, shape, dtype: _full(b, t, shape, 1, dtype))


@rule("eye")
def _eye(b, t, shape, diagonal, dtype):
    rows, columns = t.shape[-2:]
    row = b.reshape(b.iota(shape=[rows], start=diagonal), shape=[rows, 1])
    on = b.cast(b.equal(b.iota(shape=[columns]), row), dtype=dtype)
    return b.broadcast(on, shape=t.shape)


@rule("iota")
def _iota(b, t, shape, axis, start, step, dtype):
    at = axis_of(axis, t.rank)
    size = t.shape[at]
    exact = i64
    if t.dtype.is_float:
        exact = f32 if t.dtype.is_half else t.dtype
    counted = TensorType(i64, (size,))
    limit = b.value(size) if type(size) is int else b.reshape(b.vector([size]), shape=[])
    found = b.onnx("Range", b.value(0), limit, b.value(1), out=counted)
    if (start, step) != (0, 1):
        found = b.to(found, exact)
        found = b.add(b.mul(found, b.value(step, exact)), b.value(start, exact))
    found = b.to(found, t.dtype)
    wide = b.shaped(found, [size, *[1] * (t.rank - at - 1)])
    return b.broadcast(wide, shape=t.shape)
