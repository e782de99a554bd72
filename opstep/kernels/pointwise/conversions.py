"""Elements of one type as numbers of another, in kernels; see `device.convert`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from opstep.runtime.device.convert import as_bf16, as_f16, limits_of, round_to_odd, shortened
from opstep.runtime.device.cuda.compiling.names import through_bf16, through_f16
from opstep.runtime.device.launch import CARRIERS, Arg, Seen
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType, bf16, f32, i32, i64


def computed(dtype: DType) -> DType:
    """What variables of this type are."""
    return f32 if dtype.is_half else dtype


def odd(v):
    return round_to_odd(v)


def long_odd(v):
    return round_to_odd(shortened(v))


def truth(v):
    return np.uint8(v != 0)


@cache
def saturated(name: str, low: int, high: int) -> Callable:
    """A float as an integer of the type with these limits; those of narrow types are numbers of any
    float type, and what lies between them is one of i32: vectors have twice the elements.
    """
    scope = {"np": np, "whole": getattr(np, name)}
    if high < 1 << 24:
        # where v is NaN, comparisons leave a number: these become a maximum and a minimum
        number = "v" if low == 0 else "(v if v == v else np.float32(0))"
        text = f"""def whole_of(v):
    w = {number}
    w = w if w > np.float32({low}) else np.float32({low})
    return whole(np.int32(w if w < np.float32({high}) else np.float32({high})))
"""
    else:
        text = f"""def whole_of(v):
    w = np.float64(v)
    if w != w:
        return whole(0)
    if w <= np.float64({low}):
        return whole({low})
    return whole({high}) if w >= np.float64({high}) else whole(np.int64(w))
"""
    return from_text(text, f"float to {name}", "whole_of", scope)


def number_type(dtype: DType) -> Any:
    return np.uint8 if dtype.kind == "b" else computed(dtype).numpy.type


def conversions(a: DType, b: DType, on_gpu: bool) -> list[Any]:
    """What is to be called, first to last, to make a variable of type b of one of type a; see
    `device.convert`.
    """
    if a is b:
        return []
    if b.kind == "b":
        return [truth]
    if b.is_half:
        last = through_bf16 if b is bf16 else through_f16
        if not on_gpu:
            last = as_bf16 if b is bf16 else as_f16
        if a is i64 and b is bf16:
            return [long_odd, last]
        return [odd, last] if a.itemsize == 8 or a is i32 else [last]
    if a.is_float and b.is_integer:
        return [saturated(number_type(b).__name__, *limits_of(b))]
    return [number_type(b)]


@cache
def converted(a: DType, b: DType) -> Callable:
    """A number of type a as one of type b, for kernels that round to halves as they store them."""
    calls = [c for c in conversions(a, b, on_gpu=True) if c not in (through_bf16, through_f16)]
    word = "x"
    for k in range(len(calls)):
        word = f"c{k}({word})"
    scope = {f"c{k}": call for k, call in enumerate(calls)}
    return from_text(f"def convert(x):\n    return {word}\n", f"{a} to {b}", "convert", scope)


def as_numbers(a: Arg) -> Arg:
    """A tensor as what is computed with: halves as f32."""
    made = Arg(TensorType(computed(a.dtype), a.shape), a.slot, a.stored)
    return Seen(made, a.shape, a.start, a.strides) if isinstance(a, Seen) else made


def as_bits(*args: Arg) -> tuple[Arg, ...]:
    """Tensors whose elements are only moved: as integers of their width where all agree, else as
    numbers, which are converted as they are read and written.
    """
    if len({a.stored for a in args}) == 1 and all(a.stored is a.dtype for a in args):
        carrier = CARRIERS[args[0].stored.itemsize]
        return tuple(Arg(TensorType(carrier, a.shape), a.slot) for a in args)
    return tuple(as_numbers(a) for a in args)
