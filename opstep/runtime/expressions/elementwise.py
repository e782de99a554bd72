"""Functions that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.device.payload import payload
from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.operators import mismatch
from opstep.runtime.expressions.registry import Dtype, Elements, Lazy, Mask, add, function
from opstep.runtime.expressions.values import (
    NUMBERS,
    Evaluation,
    as_float,
    combined,
    converted,
    dtype_named,
    elements,
)
from opstep.runtime.ir.types import dtype

ELEMENTWISE = "element by element"


def _sigmoid(x: Any) -> Any:
    # exp of what is not positive never overflows
    e = np.exp(-np.abs(x))
    return np.where(np.greater_equal(x, 0), 1 / (1 + e), e / (1 + e)).astype(x.dtype)[()]


_REAL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sqrt": (np.sqrt, "Square root; NaN below 0."),
    "rsqrt": (lambda x: np.reciprocal(np.sqrt(x)), "1 / sqrt(x)."),
    "cbrt": (np.cbrt, "Cube root."),
    "exp": (np.exp, "e to the power of x."),
    "expm1": (np.expm1, "exp(x) - 1, exact near 0."),
    "log": (np.log, "Natural logarithm; -inf at 0, NaN below."),
    "log2": (np.log2, "Logarithm to base 2."),
    "log10": (np.log10, "Logarithm to base 10."),
    "log1p": (np.log1p, "log(1 + x), exact near 0."),
    "sin": (np.sin, "Sine of radians."),
    "cos": (np.cos, "Cosine of radians."),
    "tan": (np.tan, "Tangent of radians."),
    "asin": (np.arcsin, "Inverse sine, in radians."),
    "acos": (np.arccos, "Inverse cosine, in radians."),
    "atan": (np.arctan, "Inverse tangent, in radians."),
    "sinh": (np.sinh, "Hyperbolic sine."),
    "cosh": (np.cosh, "Hyperbolic cosine."),
    "tanh": (np.tanh, "Hyperbolic tangent."),
    "reciprocal": (np.reciprocal, "1 / x."),
    "sigmoid": (_sigmoid, "1 / (1 + exp(-x))."),
}
_SAME: dict[str, tuple[Callable[[Any], Any], str]] = {
    "floor": (np.floor, "The largest integer not above x, in x's dtype."),
    "ceil": (np.ceil, "The smallest integer not below x, in x's dtype."),
    "round": (np.rint, "The nearest integer, ties to even, in x's dtype."),
    "trunc": (np.trunc, "x without its fraction, in x's dtype."),
}

_PLAIN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "abs": (np.abs, "Magnitude."),
    "sign": (np.sign, "-1, 0 or 1; NaN stays NaN."),
    "square": (np.square, "x * x."),
}


def _real(apply: Callable[[Any], Any]) -> Any:
    """Integers and bools are taken in f64, floats stay in their dtype."""

    def call(env: Evaluation, x: Elements) -> Any:
        value = as_float(env, x)
        if isinstance(value, float):
            return apply(np.float64(value)).item()
        env.charge_elements(value.size, value.itemsize)
        return apply(value)

    return call


def _rounding(apply: Callable[[Any], Any]) -> Any:
    def call(env: Evaluation, x: Elements) -> Any:
        if isinstance(x, NUMBERS):
            return apply(np.float64(x)).item() if isinstance(x, float) else int(x)
        if x.dtype.kind in "iub":
            return x
        env.charge_elements(x.size, x.itemsize)
        return apply(x)

    return call


def _plain(apply: Callable[[Any], Any]) -> Any:
    def call(env: Evaluation, x: Elements) -> Any:
        if isinstance(x, NUMBERS):
            value = apply(np.float64(x)).item()
            return value if isinstance(x, float) or abs(value) >= 2**53 else int(value)
        if x.dtype == np.bool_:
            x = converted(env, x, np.int64)
        else:
            env.charge_elements(x.size, x.itemsize)
        return apply(x)

    return call


for _functions, _kind in ((_REAL, _real), (_SAME, _rounding), (_PLAIN, _plain)):
    for _name, (_apply, _doc) in _functions.items():
        add(_name, ELEMENTWISE, _kind(_apply), _doc)


@function(ELEMENTWISE)
def relu(env: Evaluation, x: Elements) -> Any:
    """x if x > 0, else 0; NaN stays NaN."""
    return maximum(env, x, 0)


# --- of two ---


@function(ELEMENTWISE)
def maximum(env: Evaluation, a: Elements, b: Elements) -> Any:
    """The larger of two; NaN if either is."""
    return _pair(env, np.maximum, a, b)


@function(ELEMENTWISE)
def minimum(env: Evaluation, a: Elements, b: Elements) -> Any:
    """The smaller of two; NaN if either is."""
    return _pair(env, np.minimum, a, b)


@function(ELEMENTWISE)
def clip(env: Evaluation, x: Elements, low: Elements, high: Elements) -> Any:
    """x, limited to the range from `low` to `high`."""
    return minimum(env, maximum(env, x, low), high)


@function(ELEMENTWISE)
def atan2(env: Evaluation, y: Elements, x: Elements) -> Any:
    """The angle of the point (x, y), in radians."""
    y, x = as_float(env, y), as_float(env, x)
    return _pair(env, np.arctan2, y, x)


@function(ELEMENTWISE)
def hypot(env: Evaluation, a: Elements, b: Elements) -> Any:
    """sqrt(a*a + b*b), without intermediate overflow."""
    a, b = as_float(env, a), as_float(env, b)
    return _pair(env, np.hypot, a, b)


def _pair(env: Evaluation, apply: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    a, b = combined(env, a, b)
    if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        return apply(a, b).item()
    try:
        return apply(a, b)
    except ValueError:
        raise mismatch(a, b) from None


# --- what elements are ---


def _test(test: Callable[[Any], Any], otherwise: bool) -> Any:
    """A question about floats, whose answer is known for integers."""

    def call(env: Evaluation, x: Elements) -> Any:
        if isinstance(x, NUMBERS):
            return bool(test(np.float64(x)))
        env.charge_elements(x.size, 1)
        if x.dtype.kind in "fV":
            return test(x)
        return np.full(x.shape, otherwise)[()]

    return call


add("isnan", ELEMENTWISE, _test(np.isnan, False), "Whether an element is NaN.")
add("isinf", ELEMENTWISE, _test(np.isinf, False), "Whether an element is inf or -inf.")
add("isfinite", ELEMENTWISE, _test(np.isfinite, True), "Whether an element is finite.")


@function(ELEMENTWISE)
def isunwritten(env: Evaluation, x: Elements) -> Any:
    """Whether an element still holds the fill value (`fill=nan`): no op has written it.

    An integer may well hold the largest number of its type because it was computed so.
    """
    if isinstance(x, NUMBERS):
        return False
    env.charge_elements(x.size, 1)
    mark = payload(dtype_named(x))
    return (np.ascontiguousarray(x).view(mark.dtype) == mark).reshape(x.shape)[()]


@function(ELEMENTWISE)
def bits(env: Evaluation, x: Elements) -> Any:
    """The bits of an element as an integer of the same size."""
    if isinstance(x, NUMBERS):
        x = np.float64(x) if isinstance(x, float) else np.int64(x)
    env.charge_elements(x.size, x.itemsize)
    if x.dtype.kind in "iub":
        return x
    return np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)[()]


@function(ELEMENTWISE)
def cast(env: Evaluation, x: Elements, to: Dtype) -> Any:
    """x converted to another element type: cast(x, f16).

    As ops convert: floats become integers by truncation, NaN becomes 0, what is out of range the
    nearest limit.
    """
    target = dtype(to)
    if isinstance(x, NUMBERS):
        x = np.float64(x) if isinstance(x, float) else np.int64(x)
    env.charge_elements(x.size, target.itemsize + 8)
    if target.is_integer and x.dtype.kind in "fV":
        return _saturated(x, target.numpy)
    if target.name == "bool":
        return np.not_equal(x, 0)
    if target.is_half and x.dtype.kind in "iu":
        x = x.astype(np.float64)
    return x.astype(target.numpy)


def _saturated(x: Any, dtype: np.dtype) -> Any:
    limits, number = np.iinfo(dtype), np.trunc(x.astype(np.float64))
    # 2**63 - 1 is no f64: what reaches the float above it is set apart
    inside = np.where((number >= limits.min) & (number < float(limits.max) + 1), number, 0)
    found = np.asarray(inside).astype(dtype)
    found = np.where(number >= float(limits.max) + 1, limits.max, found)
    return np.where(number < limits.min, limits.min, found).astype(dtype)[()]


@function("choosing and ordering")
def where(env: Evaluation, c: Mask, a: Lazy | None = None, b: Lazy | None = None) -> Any:
    """where(c): the indices at which c is true, one per row (numbers if c has rank 1). where(c, a,
    b): a where c is true, else b.
    """
    if a is None and b is None:
        places = np.asarray(elements(env, c))
        if not places.ndim:
            raise ExpressionError("where(c) looks for places in a tensor, c is one element")
        env.charge(int(np.count_nonzero(places)) * places.ndim * 8)
        found = np.argwhere(places)
        return found[:, 0] if places.ndim == 1 else found
    if a is None or b is None:
        raise ExpressionError("where takes one argument or three: where(c), where(c, a, b)")
    a, b = combined(env, elements(env, a), elements(env, b))
    if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        common = np.result_type(np.asarray(a), np.asarray(b))
        a, b = np.asarray(a, common), np.asarray(b, common)
    elif isinstance(a, NUMBERS):
        a = np.asarray(a, np.result_type(b, a))
    elif isinstance(b, NUMBERS):
        b = np.asarray(b, np.result_type(a, b))
    condition: Any = np.not_equal(elements(env, c), 0)
    first, second = np.asarray(a), np.asarray(b)
    try:
        size = prod(np.broadcast_shapes(np.shape(condition), first.shape, second.shape))
    except ValueError:
        raise ExpressionError("c, a and b do not broadcast") from None
    env.charge_elements(size, 8)
    return np.where(condition, first, second)
