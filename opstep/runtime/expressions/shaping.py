"""Functions for shapes, sorting and cumulative sums."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.registry import Axes, Elements, Integer, Lazy, function
from opstep.runtime.expressions.values import Evaluation, as_f64, as_float, type_of

SHAPES = "shapes"
ORDER = "choosing and ordering"


@function(SHAPES)
def shape(env: Evaluation, x: Lazy) -> Any:
    """Its dims: shape(x) == [8, 128] compares all of them, shape(x)[0] is the first."""
    return tuple(type_of(x).shape)


@function(SHAPES)
def dtype(env: Evaluation, x: Lazy) -> Any:
    """Its element type as a string: dtype(x) == "f32"."""
    return type_of(x).dtype.name


@function(SHAPES)
def size(env: Evaluation, x: Lazy) -> Any:
    """Number of elements."""
    return type_of(x).size


@function(SHAPES)
def rank(env: Evaluation, x: Lazy) -> Any:
    """Number of dims."""
    return len(type_of(x).shape)


@function(SHAPES)
def reshape(env: Evaluation, x: Elements, shape: Axes) -> Any:
    """The same elements in another shape: reshape(x, [8, -1]). One may be -1: it is inferred."""
    array = np.asarray(x)
    dims = (shape,) if isinstance(shape, int) else tuple(shape or ())
    if sum(d < 0 for d in dims) > 1 or any(d < -1 for d in dims):
        raise ExpressionError("dims are 0 or more, but for one -1")
    rest = prod(d for d in dims if d >= 0)
    unfit = (not rest or array.size % rest) if -1 in dims else rest != array.size
    if unfit:
        raise ExpressionError(f"{array.size} elements do not make {list(dims)}")
    return array.reshape(dims)


@function(SHAPES)
def flatten(env: Evaluation, x: Elements) -> Any:
    """All elements in one dim, row-major."""
    return np.asarray(x).reshape(-1)


@function(SHAPES)
def transpose(env: Evaluation, x: Elements, axes: Axes = None) -> Any:
    """Its axes in another order, by default reversed: transpose(x, [0, 2, 1])."""
    array = np.asarray(x)
    order = (axes,) if isinstance(axes, int) else axes
    if order is not None and sorted(a % max(array.ndim, 1) for a in order) != [*range(array.ndim)]:
        raise ExpressionError(f"axes name each of the {array.ndim} axes once")
    return np.transpose(array, order)


@function(SHAPES)
def squeeze(env: Evaluation, x: Elements) -> Any:
    """x without its dims of size 1."""
    return np.squeeze(np.asarray(x))


# --- order ---


def _axis(array: np.ndarray, axis: int) -> int:
    if not -array.ndim <= axis < array.ndim:
        raise ExpressionError(f"there is no axis {axis}: the rank is {array.ndim}")
    return axis


@function(ORDER)
def sort(env: Evaluation, x: Elements, axis: Integer = -1) -> Any:
    """Sorted in ascending order along an axis; NaNs come last."""
    array = np.asarray(x)
    env.charge_elements(array.size, 64)  # for its time
    return np.sort(array, axis=_axis(array, axis))


@function(ORDER)
def argsort(env: Evaluation, x: Elements, axis: Integer = -1) -> Any:
    """The indices that sort x along an axis: argsort(x)[0] is the index of the smallest element."""
    array = np.asarray(x)
    env.charge_elements(array.size, 64)
    return np.argsort(array, axis=_axis(array, axis), kind="stable")


@function(ORDER)
def unique(env: Evaluation, x: Elements) -> Any:
    """The distinct elements, in ascending order."""
    array = as_f64(env, x) if np.asarray(x).dtype.kind == "V" else np.asarray(x)
    env.charge_elements(array.size, 64)
    return np.unique(array).astype(np.asarray(x).dtype)


@function(ORDER)
def cumsum(env: Evaluation, x: Elements, axis: Integer = -1) -> Any:
    """Cumulative sum along an axis, in f64, or in i64 for integers and bools."""
    array = np.asarray(x)
    env.charge_elements(array.size, 8)
    integral = array.dtype.kind in "iub"
    return np.cumsum(array, _axis(array, axis), np.int64 if integral else np.float64)


@function(ORDER)
def softmax(env: Evaluation, x: Elements, axis: Integer = -1) -> Any:
    """exp(x) / sum(exp(x)) along an axis, in f64."""
    array = as_f64(env, as_float(env, x))
    env.charge_elements(array.size, array.itemsize * 3)
    _axis(array, axis)
    if not array.size:
        return array
    e = np.exp(array - array.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)
