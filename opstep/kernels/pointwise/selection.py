"""Choosing between elements, changing their type, copying."""

from __future__ import annotations

import numpy as np

from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.pointwise.conversions import as_bits
from opstep.kernels.pointwise.cuda_elementwise import cast_of, elementwise
from opstep.kernels.pointwise.elementwise import onto, same
from opstep.kernels.pointwise.loops import looped
from opstep.kernels.rules.faults import OVERFLOW
from opstep.runtime.device.convert import conversion, plain
from opstep.runtime.device.launch import CARRIERS, Arg, Launch, Scratch
from opstep.runtime.ir.faults import Faults, Rule
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType, f32


def chosen(c, a, b):
    return a if c != 0 else b


class where(Op):
    """a if cond is true, else b, element by element; all three broadcast."""

    signature = "where(cond: B, a: T, b: T)"
    formula = "a if cond else b"
    source = "torch.where, torch.Tensor.masked_fill, ONNX Where"
    traits = Traits(moves=True)
    inplace = (1, 2)
    oracle = np.where

    def element(cond, a, b):
        return chosen, []

    def infer(cond, a, b):
        return a.with_shape(broadcast_shape(cond, a, b))

    def cpu(cond, a, b, y):
        return looped(chosen, "where", (cond, a, b), y, bits=True)

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
    traits = Traits(moves=True)

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


def _same_bytes(site):
    """The elements of x whose bytes an element of the result has."""
    (x,), y = site.operands, site.results[0]
    if x.shape == y.shape:
        return [tuple(slice(i, i + 1) for i in site.index)]
    *outer, last = site.index
    start, stop = (i * x.shape[-1] // y.shape[-1] for i in (last, last + 1))
    return [(*(slice(i, i + 1) for i in outer), slice(start, max(stop, start + 1)))]


class bitcast(Op):
    """The bits of x, taken as numbers of another element type.

    The last axis is as many times shorter as the type is wider, or longer as it is narrower; of a
    number, its lowest bytes come first.
    """

    signature = "bitcast(x: T, *, dtype: dtype)"
    source = "torch.Tensor.view(dtype), numpy.ndarray.view, ONNX BitCast"
    traits = Traits(bits=True)
    grad = None
    faults = Faults(
        _same_bytes,
        Rule("the bits of x say so", lambda x, **_: True),
        value=lambda site, parts: site.results[0][site.index],
    )

    def infer(x, *, dtype):
        if dtype.kind == "b":
            raise Mismatch("bits are no truth values", "dtype", hint="compare x with 0")
        wide, narrow = dtype.itemsize, x.dtype.itemsize
        if wide == narrow:
            return x.with_dtype(dtype)
        last = x.shape[-1] if x.rank else 1
        if type(last) is int and last * narrow % wide:
            raise Mismatch(
                f"the last axis of {x} holds no whole elements of {dtype}, which is wider", 0
            )
        if x.rank == 0:
            raise Mismatch(f"{x} has no axis for the elements of {dtype}, which is narrower", 0)
        size = last * (narrow // wide) if narrow > wide else last // (wide // narrow)
        return TensorType(dtype, (*x.shape[:-1], size))

    def oracle(x, *, dtype):
        if x.dtype.itemsize == dtype.itemsize:
            return x.view(dtype.numpy)
        return np.ascontiguousarray(x).view(dtype.numpy)

    def cpu(x, y, *, dtype):
        x, y = _as_words(x, y)
        return Launch(plain, x, y, units=y.size)

    def cuda(x, y, *, dtype):
        x, y = _as_words(x, y)
        return elementwise(same, "bitcast", (x,), y)


def _as_words(*args: Arg) -> list[Arg]:
    """Tensors of as many bytes, as integers of the widest type."""
    carrier = CARRIERS[max(a.dtype.itemsize for a in args)]
    sizes = {a.size * a.dtype.itemsize for a in args}
    if len(sizes) > 1:
        raise Mismatch(f"{min(sizes)} bytes cannot be seen as {max(sizes)}", 0)
    return [Arg(TensorType(carrier, (max(sizes) // carrier.itemsize,)), a.slot) for a in args]


class identity(Op):
    """A copy of x."""

    signature = "identity(x: T)"
    formula = "x"
    source = "torch.clone, torch.Tensor.contiguous and detach, ONNX Identity"
    traits = Traits(moves=True)
    inplace = (0,)

    def element(x):
        return same, []

    def infer(x):
        return x

    def oracle(x):
        return x.copy()

    def cpu(x, y):
        return Launch(plain, x, y, units=y.size, each=True)

    def cuda(x, y):
        x, y = as_bits(x, y)
        return elementwise(same, "identity", (x,), y)

    def grad(g, operands, results, grads):
        return (grads[0],)
