"""Changing the element type on CUDA, in one launch whatever the types; see `device.convert`."""

from __future__ import annotations

import numpy as np

from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.runtime.device.convert import limits_of, round_to_odd, shortened
from opstep.runtime.device.launch import CARRIERS, Arg, Grid
from opstep.runtime.ir.types import TensorType, f32, i64


def as_bits(*args: Arg) -> tuple[Arg, ...]:
    """Tensors whose elements are only moved: as integers of their width where all agree, else as
    numbers, which are converted as they are read and written.
    """
    if len({a.stored for a in args}) == 1 and all(a.stored is a.dtype for a in args):
        carrier = CARRIERS[args[0].stored.itemsize]
        return tuple(Arg(TensorType(carrier, a.shape), a.slot) for a in args)
    return tuple(as_numbers(a) for a in args)


def as_numbers(a: Arg) -> Arg:
    """A tensor as what is computed with: halves as f32."""
    dtype = f32 if a.dtype.is_half else a.dtype
    return Arg(TensorType(dtype, a.shape), a.slot, a.stored)


def cast_of(x: Arg, y: Arg) -> Grid | None:
    """y = x, converted."""
    a, b = x.dtype, y.dtype
    if a is b:
        x, y = as_bits(x, y)
        return elementwise(itself, "copy", (x,), y)
    x, y = as_numbers(x), as_numbers(y)
    if b.kind == "b":
        return elementwise(truth, "to_bool", (x,), y)
    if a.is_float and b.is_integer:
        return elementwise(to_integer, "to_integer", (x,), y, limits_of(b))
    if b.is_half and a.itemsize >= 4 and a is not f32:
        return elementwise(long_to_odd if a is i64 else to_odd, "to_half", (x,), y)  # rounded once
    return elementwise(itself, "convert", (x,), y)


def itself(v):
    return v


def truth(v):
    return v != 0


def to_odd(v):
    return round_to_odd(v)


def long_to_odd(v):
    return round_to_odd(shortened(v))


def to_integer(v, low, high):
    """`low` and `high` are the limits of y's type."""
    w = np.float64(v)
    if w != w:
        return np.int64(0)
    if w <= np.float64(low):
        return np.int64(low)
    return np.int64(high) if w >= np.float64(high) else np.int64(w)
