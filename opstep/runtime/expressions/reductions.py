"""Functions that make less of a tensor: sums, extremes, whether any element is NaN.

Over a whole tensor that is large, most follow from the statistics that a device takes in one pass,
so no element is copied. Statistics speak of finite elements; what NaNs and infinities do to a sum
or an extreme is added here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from math import nan as not_a_number
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.registry import Axes, Lazy, Mask, Number, add, function
from opstep.runtime.expressions.values import (
    NUMBERS,
    SMALL,
    Evaluation,
    array_statistics,
    as_f64,
    elements,
    is_handle,
)
from opstep.runtime.statistics import Statistics

REDUCTIONS = "reductions"
PREDICATES = "predicates"
Axis = int | tuple[int, ...] | None


def _device_statistics(value: Any, axis: Any = None) -> Statistics | None:
    """The statistics of a whole tensor that is too large to be copied for this."""
    if axis is None and is_handle(value) and value.type.size > SMALL:
        return value.statistics()
    return None


def _array(env: Evaluation, value: Any, axis: Axis) -> Any:
    """Elements as an array whose axes are there."""
    array = np.asarray(elements(env, value))
    if axis is None:
        return array
    for one in (axis,) if isinstance(axis, int) else axis or ():
        if not -array.ndim <= one < array.ndim:
            raise ExpressionError(f"there is no axis {one}: the rank is {array.ndim}")
    if isinstance(axis, tuple) and len({a % array.ndim for a in axis}) != len(axis):
        raise ExpressionError("an axis is named twice")
    return array


def _reduced(env: Evaluation, apply: Callable[..., Any], array: Any, axis: Axis, **more) -> Any:
    env.charge_elements(array.size, array.itemsize)
    return apply(array, axis=axis, **more) if axis is not None else apply(array, **more)


def _not_empty(array: Any, axis: Axis) -> Any:
    axes = () if axis is None else (axis,) if isinstance(axis, int) else axis
    if not (array.size if axis is None else prod(array.shape[a] for a in axes)):
        raise ExpressionError("there are no elements")
    return array


@function(REDUCTIONS)
def sum_(env: Evaluation, x: Mask, axis: Axes = None) -> Any:
    """Sum, in f64, or in i64 for integers and bools."""
    s = _device_statistics(x, axis)
    if s is not None and x.type.dtype.is_float:
        odd = _odd(s)
        return np.float64((s.mean or 0.0) * s.finite if odd is None else odd)
    array = _array(env, x, axis)
    integral = array.dtype.kind in "iub"
    return _reduced(env, np.sum, array, axis, dtype=np.int64 if integral else np.float64)


def _odd(s: Statistics) -> float | None:
    """What NaNs and infinities make of a sum; None where all elements are finite."""
    if s.nan or (s.posinf and s.neginf):
        return not_a_number
    return inf if s.posinf else -inf if s.neginf else None


@function(REDUCTIONS)
def mean(env: Evaluation, x: Mask, axis: Axes = None) -> Any:
    """Arithmetic mean, in f64; NaN if there are no elements."""
    s = _device_statistics(x, axis)
    if s is not None:
        odd = _odd(s)
        return np.float64(s.mean if odd is None else odd)
    array = _array(env, x, axis)
    if not array.size:  # of which NumPy would warn
        return np.sum(array, axis, np.float64) * not_a_number
    return _reduced(env, np.mean, array, axis, dtype=np.float64)


@function(REDUCTIONS)
def std(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Population standard deviation, in f64; NaN if there are no elements."""
    return np.sqrt(var(env, x, axis))


@function(REDUCTIONS)
def var(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Population variance, in f64; NaN if there are no elements."""
    s = _device_statistics(x, axis)
    if s is not None:
        return np.float64(not_a_number if s.finite < s.count else (s.std or 0.0) ** 2)
    array = _array(env, x, axis)
    if not array.size:
        return np.sum(array, axis, np.float64) * not_a_number
    return _reduced(env, np.var, as_f64(env, array), axis)


@function(REDUCTIONS)
def min_(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Smallest element; NaN if there is one."""
    return _extreme(env, x, axis, np.ndarray.min, least=True)


@function(REDUCTIONS)
def max_(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Largest element; NaN if there is one. max(abs(x)) of a large tensor copies nothing."""
    return _extreme(env, x, axis, np.ndarray.max, least=False)


def _extreme(env: Evaluation, x: Any, axis: Axis, apply: Callable[..., Any], least: bool) -> Any:
    s = _device_statistics(x, axis)
    if s is None:
        return _reduced(env, apply, _not_empty(_array(env, x, axis), axis), axis)
    first, last, end = (s.neginf, s.posinf, s.min) if least else (s.posinf, s.neginf, s.max)
    sign = -inf if least else inf
    value = not_a_number if s.nan else sign if first else end if s.finite else -sign if last else 0
    return x.type.dtype.numpy.type(value)


@function(REDUCTIONS)
def absmax(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Largest magnitude; NaN if there is one."""
    s = _device_statistics(x, axis)
    if s is None:
        array = _not_empty(_array(env, x, axis), axis)
        env.charge_elements(array.size, array.itemsize)
        if array.dtype.kind in "iu":  # the magnitude of the smallest one is out of its own range
            array = array.astype(np.int64)
        return np.asarray(np.abs(array)).max(axis)
    value = not_a_number if s.nan else inf if s.posinf or s.neginf else s.absmax
    dtype = x.type.dtype.numpy
    return dtype.type(value) if dtype.kind in "fV" else np.int64(value or 0)


@function(REDUCTIONS)
def l2(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Euclidean norm, sqrt(sum(x*x)), in f64."""
    if axis is None:
        s = x.statistics() if is_handle(x) else array_statistics(env, elements(env, x))
        return np.float64(not_a_number if s.nan else inf if s.finite < s.count else s.l2 or 0.0)
    array = as_f64(env, _array(env, x, axis))
    env.charge_elements(array.size, array.itemsize)
    return np.sqrt(np.square(array).sum(axis=axis))


@function(REDUCTIONS)
def count(env: Evaluation, x: Mask, axis: Axes = None) -> Any:
    """Number of elements that are true (not 0): count(x > 3), count(nan(x))."""
    s = _device_statistics(x, axis)
    if s is not None:
        return np.int64(s.count - s.zero)
    return _reduced(env, np.count_nonzero, _array(env, x, axis), axis)


def _truth(name: str, word: str, told: Callable[[Statistics], bool], apply: Any) -> None:
    def call(env: Evaluation, x: Mask, axis: Axes = None) -> Any:
        s = _device_statistics(x, axis)
        if s is not None:
            return told(s)
        return _reduced(env, apply, _true(_array(env, x, axis)), axis)

    add(name, REDUCTIONS, call, f"Whether {word} true (not 0).")


_truth("any", "any element is", lambda s: s.count > s.zero, np.ndarray.any)
_truth("all", "all elements are", lambda s: s.zero == 0, np.ndarray.all)


def _true(array: np.ndarray) -> np.ndarray:
    return array if array.dtype == np.bool_ else np.asarray(np.not_equal(array, 0))


def _arg(name: str, which: str, apply: Callable[..., Any]) -> None:
    def call(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
        if isinstance(axis, tuple):
            raise ExpressionError("one axis, not a list of them")
        return _reduced(env, apply, _not_empty(_array(env, x, axis), axis), axis)

    doc = f"Index of the {which} element along an axis, or in the flattened tensor. A NaN counts "
    add(name, REDUCTIONS, call, f"{doc}as the {which}. topk gives the index per axis.")


_arg("argmin", "smallest", np.argmin)
_arg("argmax", "largest", np.argmax)


@function(REDUCTIONS)
def median(env: Evaluation, x: Lazy, axis: Axes = None) -> Any:
    """Median, in f64; NaN if there is one."""
    return quantile(env, x, 0.5, axis)


@function(REDUCTIONS)
def quantile(env: Evaluation, x: Lazy, q: Number, axis: Axes = None) -> Any:
    """The q-quantile (q from 0 to 1), in f64, interpolated linearly between elements."""
    if not 0 <= q <= 1:
        raise ExpressionError("q is between 0 and 1")
    array = as_f64(env, _not_empty(_array(env, x, axis), axis))
    env.charge(array.nbytes * 2)
    return np.quantile(array, q, axis=axis)


# --- predicates ---


_MASK = "In where, count, sum, mean, any and all: a mask."


def _odd_elements(
    name: str, counted: str, words: tuple[str, str], figure: Callable[[Statistics], int], test: Any
) -> None:
    """Whether there is such an element, and how many there are."""

    def some(env: Evaluation, x: Lazy) -> Any:
        return _some(env, x, lambda s: figure(s) > 0, test)

    def amount(env: Evaluation, x: Lazy) -> Any:
        s = _device_statistics(x)
        if s is not None:
            return figure(s)
        array = np.asarray(elements(env, x))
        env.charge_elements(array.size, 1)
        return int(np.count_nonzero(test(array))) if array.dtype.kind in "fV" else 0

    doc = f"Whether any element is {words[0]}. {_MASK}"
    add(name, PREDICATES, some, doc, masked=f"is{name}")
    add(counted, REDUCTIONS, amount, f"Number of {words[1]}, the same as count({name}(x)).")


_odd_elements("nan", "nans", ("NaN", "NaNs"), lambda s: s.nan, np.isnan)
_odd_elements("inf", "infs", ("inf or -inf", "infinities"), lambda s: s.posinf + s.neginf, np.isinf)


@function(PREDICATES, masked="isfinite")
def finite(env: Evaluation, x: Lazy) -> Any:
    """Whether all elements are finite. In where, count, sum, mean, any and all: a mask."""
    return not _some(env, x, lambda s: s.finite < s.count, lambda a: ~np.isfinite(a))


def _some(env: Evaluation, x: Any, figure: Callable[[Statistics], bool], test: Any) -> bool:
    if is_handle(x):
        t = x.type
        if not t.dtype.is_float:
            return False
        if t.size > SMALL:
            return figure(x.statistics())
    array = elements(env, x)
    if not isinstance(array, NUMBERS) and array.dtype.kind not in "fV":
        return False
    if not isinstance(array, np.ndarray):
        return bool(test(np.float64(array)))
    env.charge_elements(array.size, 1)
    return bool(test(array).any())


@function(PREDICATES, masked="isunwritten")
def unwritten(env: Evaluation, x: Lazy) -> Any:
    """Whether any element still holds the fill value (`fill=nan`): no op has written it."""
    if is_handle(x):
        unwritten = x.statistics().unwritten
        if unwritten is not None:
            return unwritten > 0
        if getattr(getattr(x, "node", None), "producer", x) is None:
            return False  # it came from outside
    raise ExpressionError(
        "whether it was written cannot be told", hint="run with fill=nan, and ask of a whole tensor"
    )
