"""Element by element: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import add, rule
from opstep.frontends.onnx.types import DTYPES, name_of
from opstep.frontends.onnx.values import known, number
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.types import DType, boolean, f64

# ONNX's name and ours.
UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish",
    "IsNaN": "isnan", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "logical_not",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
BINARY = {
    "Add": "add", "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Equal": "equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal", "Mul": "mul",
    "Or": "logical_or", "PRelu": "prelu", "Sub": "sub", "Xor": "logical_xor",
}  # fmt: skip


def _unary(op: str):
    return lambda b, x: getattr(b, op)(x)


def _binary(op: str):
    return lambda b, x, y: getattr(b, op)(x, y)


def aligned(b: Body, x: Any, y: Any, broadcast: int, axis: int | None) -> Any:
    """y as it is broadcast before opset 7: from an axis of x on."""
    if broadcast and axis is not None and isinstance(y, Var):
        behind = x.type.rank - axis_of(axis, x.type.rank) - y.type.rank
        return b.reshaped(y, [*y.shape, *[1] * behind])
    return y


def _legacy(op: str):
    def translated(b: Body, x, y, *, broadcast=0, axis=None):
        y = aligned(b, x, y, broadcast, axis)
        return div(b, x, y) if op == "div" else getattr(b, op)(x, y)

    return translated


for _name, _op in UNARY.items():
    add([_name], _unary(_op))
for _name, _op in BINARY.items():
    add([_name], _binary(_op), since=7, numbers=True)
    if _name != "PRelu":
        add([_name], _legacy(_op), numbers=True)


@rule("Identity")
def identity(b: Body, x):
    return x


def div(b: Body, x, y):
    """Of integers it rounds to zero."""
    dtype = (x if isinstance(x, Var) else y).dtype
    if dtype.is_float:
        return b.div(x, y)
    if dtype.kind == "u":
        return b.floor_div(x, y)
    return b.floor_div(b.sub(x, b.fmod(x, y)), y)


add(["Div"], div, since=7, numbers=True)
add(["Div"], _legacy("div"), numbers=True)


@rule("Mod", numbers=True)
def mod(b: Body, x, y, *, fmod=0):
    return b.fmod(x, y) if fmod else b.rem(x, y)


@rule("Pow", numbers=True)
def power(b: Body, x, y, *, broadcast=0, axis=None):
    """The result has the type of x."""
    y = aligned(b, x, y, broadcast, axis)
    if not isinstance(y, Var):
        if y == 2:
            return b.square(x)
        if y == 3:
            return b.mul(b.square(x), x)
        if x.dtype.is_float and (y.dtype is x.dtype or _has(x.dtype, float(y))):
            return b.pow(x, float(y))
        if x.dtype.is_integer and float(y).is_integer():
            return b.pow(x, int(y))
    elif x.dtype is y.dtype:
        return b.pow(x, y)
    elif _holds(x.dtype, y.dtype):
        return b.pow(x, b.to(y, x.dtype))
    x_wide, y_wide = (b.to(v, f64) if isinstance(v, Var) else float(v) for v in (x, y))
    return b.to(b.pow(x_wide, y_wide), x.dtype)


def _has(dtype: DType, number: float) -> bool:
    with np.errstate(all="ignore"):
        return float(dtype.numpy.type(number)) == number


def _holds(x: DType, y: DType) -> bool:
    """Whether x has all numbers of y, of integers."""
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(x.name, x.bits - (x.kind == "i"))
    return y.is_integer and y.bits - (y.kind == "i") <= digits and (y.kind, x.kind) != ("i", "u")


@rule("BitShift", numbers=True)
def bit_shift(b: Body, x, y, *, direction):
    return (b.shift_left if direction == "LEFT" else b.shift_right)(x, y)


def _variadic(op: str):
    return lambda b, *xs: reduce(lambda x, y: getattr(b, op)(x, y), xs)


for _name, _op in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    add([_name], _variadic(_op))


@rule("Mean")
def mean(b: Body, *xs):
    return b.div(_variadic("add")(b, *xs), float(len(xs)))


@rule("Clip", since=11, numbers=True, before=["min", "max"])
def clip(b: Body, x, low=None, high=None):
    x = b.tensor(x)
    if x.dtype.is_integer:  # a bound may be that of the type
        least, most = limits(x.dtype)
        low = None if not isinstance(low, Var) and low is not None and low <= least else low
        high = None if not isinstance(high, Var) and high is not None and high >= most else high
    given = {k: v for k, v in (("low", low), ("high", high)) if v is not None}
    numbers = {k: v for k, v in given.items() if not isinstance(v, Var)}
    both = len(numbers) == 2 and numbers["low"] > numbers["high"]
    if len(numbers) == len(given) and numbers and not both:
        return b.clip(x, **numbers)
    if low is not None:
        x = b.maximum(x, low)
    return x if high is None else b.minimum(x, high)


def dtype_of(number: int) -> DType:
    if number not in DTYPES:
        raise Untranslatable(f"{name_of(number)} has no counterpart")
    return DTYPES[number]


@rule("Where", numbers=True)
def where(b: Body, condition, x, y):
    if not isinstance(condition, Var):
        condition = b.filled([], int(condition), boolean)
    return b.where(condition, x, y)


CASTS = {
    "Cast": lambda b, x, *, to, saturate=1, round_mode="up": b.to(x, dtype_of(to)),
    "CastLike": lambda b, x, like, *, saturate=1, round_mode="up": b.to(x, like.dtype),
    "BitCast": lambda b, x, *, to: b.bitcast(x, dtype=dtype_of(to)),
}
ACTIVATIONS = {
    "Elu": lambda b, x, *, alpha=1.0: b.elu(x, alpha=alpha),
    "Selu": lambda b, x, *, alpha=1.6732632, gamma=1.0507010: b.mul(b.elu(x, alpha=alpha), gamma),
    "Celu": lambda b, x, *, alpha=1.0: b.mul(b.elu(b.div(x, alpha)), alpha),
    "LeakyRelu": lambda b, x, *, alpha=0.01: b.leaky_relu(x, slope=alpha),
    "ThresholdedRelu": lambda b, x, *, alpha=1.0: b.where(b.greater(x, alpha), x, 0.0),
    "HardSigmoid": lambda b, x, *, alpha=0.2, beta=0.5: b.hard_sigmoid(x, alpha=alpha, beta=beta),
    "Softsign": lambda b, x: b.div(x, b.add(b.abs(x), 1.0)),
    "Gelu": lambda b, x, *, approximate="none": b.gelu(x, approximate=approximate),
    "Swish": lambda b, x, *, alpha=1.0: b.silu(x) if alpha == 1 else scaled_swish(b, x, alpha),
}


def scaled_swish(b: Body, x: Var, alpha: float) -> Var:
    return b.mul(x, b.sigmoid(b.mul(x, alpha)))


for _name, _rule in (CASTS | ACTIVATIONS).items():
    add([_name], _rule)


@rule("Shrink")
def shrink(b: Body, x, *, lambd=0.5, bias=0.0):
    if not x.dtype.is_float:
        raise Untranslatable("Shrink of integers")
    inner = b.where(b.greater(x, lambd), b.sub(x, bias), 0.0)
    return b.where(b.less(x, -lambd), b.add(x, bias), inner)


@rule("IsInf")
def isinf(b: Body, x, *, detect_negative=1, detect_positive=1):
    if detect_negative and detect_positive:
        return b.isinf(x)
    if not detect_negative and not detect_positive:
        return b.zeros(shape=list(x.shape), dtype=boolean)
    return b.equal(x, float("inf") if detect_positive else float("-inf"))


# --- softmax ---


def _rows(op: str):
    def translated(b: Body, x, *, axis=-1):
        return _along(b, op, x, axis_of(axis, x.type.rank))

    return translated


def _flat_rows(op: str):
    """Before opset 13: over all axes from one on, taken as one."""

    def translated(b: Body, x, *, axis=1):
        axis = axis_of(axis, x.type.rank)
        if axis == x.type.rank - 1:
            return _along(b, op, x, axis)
        flat = b.flatten(x, start=axis, end=x.type.rank - 1)
        return b.reshape(_along(b, op, flat, axis), shape=list(x.shape))

    return translated


def _along(b: Body, op: str, x: Var, axis: int) -> Var:
    if op != "hardmax":
        return getattr(b, op)(x, axis=axis if axis != x.type.rank - 1 else -1)
    return b.one_hot(b.argmax(x, axis=axis), classes=x.shape[axis], axis=axis, dtype=x.dtype)


for _name, _op in {
    "Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax",
}.items():  # fmt: skip
    add([_name], _rows(_op), since=13)
    add([_name], _flat_rows(_op))


@rule("Dropout", since=12, known=[1, 2])
def dropout(b: Body, x, ratio=None, training=None, *, seed=None):
    p = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not training.any() or not p:
        return (x, b.ones(shape=list(x.shape), dtype=boolean)) if b.wants(1) else x
    drawn = b.uniform(shape=list(x.shape), seed=seed or len(b.statements) + 1)
    kept = b.greater_equal(drawn, number(np.float32(p)))
    return b.where(kept, b.div(x, number(np.float32(1 - p))), 0.0), kept


@rule("Dropout")
def dropout_before(b: Body, x, *, ratio=0.5, is_test=1, seed=None):
    if not is_test:
        raise Untranslatable("dropout of a model in training")
    return dropout(b, x)


@rule("OptionalHasElement")
def has_element(b: Body, x=None):
    return known(np.array(x is not None))


rule("OptionalGetElement")(identity)


@rule("PRelu")
def prelu(b: Body, x, slope):
    """Before opset 7, slopes are those of channels."""
    if (slope.type.rank == 1 and slope.shape[0] not in (1, x.shape[-1])) or slope.shape == x.shape[
        1:2
    ]:
        slope = b.reshaped(slope, [slope.shape[0], *[1] * (x.type.rank - 2)])
    return b.prelu(x, slope)
