"""Elementwise primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.registry import add, rule
from opstep.frontends.jax.types import UNSIGNED, dtype_of, is_key
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.types import DTYPES, DType, boolean, f32, i64

UNARY = {
    "neg": "neg", "abs": "abs", "floor": "floor", "ceil": "ceil", "exp": "exp", "exp2": "exp2",
    "log": "log", "expm1": "expm1", "log1p": "log1p", "tanh": "tanh", "logistic": "sigmoid",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan",
    "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "square": "square", "erf": "erf", "erfc": "erfc",
    "erf_inv": "erfinv", "lgamma": "lgamma", "digamma": "digamma", "is_finite": "isfinite",
    "stop_gradient": "stop_gradient",
}  # fmt: skip
BINARY = {
    "add": "add", "add_any": "add", "sub": "sub", "atan2": "atan2", "shift_left": "shift_left",
}  # fmt: skip
BY_VALUE = {"min": "minimum", "pow": "pow"}
RELATIONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
OF_BITS = {"and": "and", "or": "or", "xor": "xor"}


def ordered(b: Body, x: Var) -> Var:
    """Integers in the order of the bits of floats, which has a place for -0 and each NaN."""
    bits = DTYPES[f"i{x.dtype.bits}"]
    x = b.bitcast(x, dtype=bits)
    return b.bitwise_xor(x, b.bitwise_and(b.shift_right(x, bits.bits - 1), limits(bits)[1]))


def _total(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Any, y: Any) -> Var:
        dtype = next(v.dtype for v in (x, y) if isinstance(v, Var))
        if dtype.is_float:
            x, y = (ordered(b, b.of_dtype(v, dtype)) for v in (x, y))
        return b.op(op, x, y)

    return made


def _unary(op: str) -> Callable[..., Any]:
    return lambda b, x: b.op(op, x)


def _binary(op: str) -> Callable[..., Any]:
    return lambda b, x, y: b.op(op, x, y)


def _of_bits(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Any, y: Any) -> Var:
        return b.op(f"{'logical' if b.out.dtype is boolean else 'bitwise'}_{op}", x, y)

    return made


for _name, _op in UNARY.items():
    add(_name, _unary(_op), spreads=True)
add("sign", _unary("sign"), spreads=True, values=True)
for _name, _op in BINARY.items():
    add(_name, _binary(_op), numbers=True, spreads=True)
for _name, _op in BY_VALUE.items():
    add(_name, _binary(_op), numbers=True, spreads=True, values=True)
for _name, _op in RELATIONS.items():
    add(_name, _binary(_op), numbers=True, spreads=True, values=True)
add("lt_to", _total("less"), numbers=True, spreads=True, values=True)
add("le_to", _total("less_equal"), numbers=True, spreads=True, values=True)
for _name, _op in OF_BITS.items():
    add(_name, _of_bits(_op), numbers=True, spreads=True)


@rule("mul", numbers=True, spreads=True)
def mul(b: Body, x: Any, y: Any) -> Any:
    if type(x) is float and x == 1.0:
        return y
    return x if type(y) is float and y == 1.0 else b.mul(x, y)


@rule("max", numbers=True, spreads=True, values=True)
def max_(b: Body, x: Any, y: Any) -> Any:
    if -math.inf in (x, y):  # it is larger than nothing
        return y if x == -math.inf else x
    return b.maximum(x, y)


@rule("copy", "copy_p", "optimization_barrier")
def identity(b: Body, *xs: Var) -> Any:
    return xs


@rule("not", spreads=True)
def not_(b: Body, x: Var) -> Var:
    return b.logical_not(x) if b.out.dtype is boolean else b.bitwise_not(x)


@rule("div", numbers=True, spreads=True, values=True)
def div(b: Body, x: Any, y: Any) -> Var:
    if b.out.dtype.is_float:
        return b.div(x, y)
    # to zero; by 0 it is -1
    quotient = b.floor_div(x, y)
    if b.out.dtype.kind == "u":
        return b.where(b.equal(y, 0), 255, quotient)
    rest = b.sub(x, b.mul(quotient, y))
    turned = b.logical_and(b.not_equal(rest, 0), b.less(b.bitwise_xor(x, y), 0))
    return b.where(b.equal(y, 0), -1, b.where(turned, b.add(quotient, 1), quotient))


@rule("rem", numbers=True, spreads=True, values=True)
def rem(b: Body, x: Any, y: Any) -> Var:
    found = b.fmod(x, y)
    return found if b.out.dtype.is_float else b.where(b.equal(y, 0), x, found)


@rule("round", spreads=True)
def round_(b: Body, x: Var, *, rounding_method: Any) -> Var:
    if int(rounding_method) == 1:
        return b.round(x)
    # away from zero
    whole = b.trunc(x)
    far = b.greater_equal(b.abs(b.sub(x, whole)), 0.5)
    return b.where(far, b.add(whole, b.sign(x)), whole)


@rule("cbrt", spreads=True)
def cbrt(b: Body, x: Var) -> Var:
    return b.mul(b.sign(x), b.pow(b.abs(x), 1 / 3))


@rule("integer_pow", spreads=True)
def integer_pow(b: Body, x: Var, *, y: int) -> Var:
    if y == 2:
        return b.square(x)
    if y == -1:
        return b.reciprocal(x)
    return b.pow(x, y)


@rule("clamp", numbers=True, spreads=True, values=True)
def clamp(b: Body, low: Any, x: Any, high: Any) -> Var:
    if isinstance(low, Var) or isinstance(high, Var) or not isinstance(x, Var):
        return b.minimum(b.maximum(x, low), high)
    return b.clip(x, low=low, high=high)


@rule("select_n", numbers=True, spreads=True)
def select_n(b: Body, which: Any, *cases: Any) -> Any:
    dtype = b.out.dtype
    if len(cases) == 1:
        return cases[0]
    values = list(cases)
    if not any(isinstance(c, Var) for c in values):
        values[0] = b.of_dtype(values[0], dtype)
    if not isinstance(which, Var):
        which = b.of_dtype(which, boolean)
    if which.dtype is boolean:
        return b.where(which, values[1], values[0])
    found = values[-1]
    for k in range(len(values) - 2, -1, -1):
        found = b.where(b.less_equal(which, k), values[k], found)
    return found


# --- bits -----------------------------------------------------------------------------------------


@rule("shift_right_arithmetic", numbers=True, spreads=True)
def shift_right_arithmetic(b: Body, x: Any, n: Any) -> Var:
    dtype = b.out.dtype
    if dtype.kind != "u":
        return b.shift_right(x, n)
    x, n = (b.bitcast(b.of_dtype(v, dtype), dtype=DTYPES["i8"]) for v in (x, n))
    return b.bitcast(b.shift_right(x, n), dtype=dtype)


@rule("shift_right_logical", numbers=True, spreads=True)
def shift_right_logical(b: Body, x: Any, n: Any) -> Var:
    bits = b.out.dtype.bits
    if b.out.dtype.kind == "u":
        return b.shift_right(x, n)
    if isinstance(n, int):
        if not 0 <= n < bits:
            return b.mul(x, 0)
        return b.bitwise_and(b.shift_right(x, n), (1 << (bits - n)) - 1) if n else x
    # the sign's copies are cut off; a shift by all bits leaves nothing
    kept = b.bitwise_not(b.shift_left(b.of_dtype(-1, b.out.dtype), b.sub(bits, n)))
    kept = b.where(b.equal(n, 0), -1, kept)
    inside = b.logical_and(b.greater_equal(n, 0), b.less(n, bits))
    return b.where(inside, b.bitwise_and(b.shift_right(x, n), kept), 0)


@rule("population_count", spreads=True)
def population_count(b: Body, x: Var) -> Var:
    found: Any = None
    for k in range(x.dtype.bits):
        bit = b.bitwise_and(b.shift_right(x, k), 1)
        found = bit if found is None else b.add(found, bit)
    return found


@rule("clz", spreads=True)
def clz(b: Body, x: Var) -> Var:
    bits, found = x.dtype.bits, None
    for k in range(1, bits + 1):  # how many of the first bits are all 0
        first = b.equal(shift_right_logical_by(b, x, bits - k), 0)
        one = b.to(first, x.dtype)
        found = one if found is None else b.add(found, one)
    assert found is not None
    return found


def shift_right_logical_by(b: Body, x: Var, n: int) -> Var:
    if not n:
        return x
    return b.bitwise_and(b.shift_right(x, n), (1 << (x.dtype.bits - n)) - 1)


@rule("bitcast_convert_type")
def bitcast(b: Body, x: Var, *, new_dtype: Any) -> Var:
    dtype = dtype_of(new_dtype)
    if boolean in (dtype, x.dtype):
        raise Untranslatable("the bits of bools")
    if dtype is x.dtype:
        return x
    if dtype.itemsize > x.dtype.itemsize:
        return b.reshaped(b.bitcast(x, dtype=dtype), b.out.shape)
    if dtype.itemsize < x.dtype.itemsize:
        x = b.reshape(x, shape=[*x.shape, 1])
    return b.bitcast(x, dtype=dtype)


@rule("convert_element_type", spreads=True)
def convert_element_type(b: Body, x: Var, *, new_dtype: Any) -> Var:
    (aval,) = b.ins
    if is_key(aval.dtype):
        raise Untranslatable("keys as numbers")
    dtype, target = dtype_of(new_dtype), UNSIGNED.get(str(new_dtype))
    if target and x.dtype.is_float:
        if target == 64:
            raise Untranslatable("floating as uint64")
        return b.to(b.clip(b.to(x, i64), low=0, high=(1 << target) - 1), dtype)
    return converted(b, x, aval, dtype)


def converted(b: Body, x: Var, aval: Any, dtype: DType) -> Var:
    """x as another type; unsigned integers by their value."""
    bits = UNSIGNED.get(str(aval.dtype))
    if bits == 64 and dtype.is_float:
        raise Untranslatable("uint64 as floating")
    if bits and (dtype.is_float or dtype.bits > bits):
        x = widened(b, x, bits)
    return b.to(x, dtype)


def widened(b: Body, x: Any, bits: int) -> Any:
    """What is held as signed, as the number that it stands for."""
    mask = (1 << bits) - 1
    return b.bitwise_and(b.to(x, i64), mask) if isinstance(x, Var) else int(x) & mask


@rule("reduce_precision", spreads=True)
def reduce_precision(b: Body, x: Var, *, exponent_bits: int, mantissa_bits: int) -> Var:
    known = {(5, 10): "f16", (8, 7): "bf16", (8, 23): "f32", (11, 52): "f64"}
    dtype = DTYPES.get(known.get((exponent_bits, mantissa_bits), ""))
    if dtype is None:
        raise Untranslatable(f"{exponent_bits} bits of exponent and {mantissa_bits} of mantissa")
    if dtype is x.dtype or dtype.itemsize > x.dtype.itemsize:
        return x
    return b.to(b.to(x, dtype), x.dtype)


@rule("nextafter", numbers=True, spreads=True)
def nextafter(b: Body, x: Any, y: Any) -> Var:
    dtype = b.out.dtype
    if dtype is not f32:
        raise Untranslatable(f"the next number of {dtype}")
    x, y = b.of_dtype(x, dtype), b.of_dtype(y, dtype)
    i32 = DTYPES["i32"]
    bits = b.bitcast(x, dtype=i32)
    outwards = b.equal(b.greater(y, x), b.greater(x, 0.0))
    moved = b.add(bits, b.where(outwards, b.of_dtype(1, i32), b.of_dtype(-1, i32)))
    tiny = b.of_dtype(1, i32)
    least = b.where(b.greater(y, 0.0), tiny, b.bitwise_or(tiny, -(2**31)))
    found = b.bitcast(b.where(b.equal(x, 0.0), least, moved), dtype=dtype)
    found = b.where(b.equal(x, y), y, found)
    either = b.logical_or(b.isnan(x), b.isnan(y))
    return b.where(either, math.nan, found)
