"""Values that are set: literals and expressions as tensors of a given type."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.expressions.compiler import compile_tree
from opstep.runtime.expressions.errors import LIMITS, RAISED, ExpressionError, Limits, located
from opstep.runtime.expressions.expression import parse
from opstep.runtime.expressions.indexing import check_index, index_of
from opstep.runtime.expressions.parser import parse_tree
from opstep.runtime.expressions.protocols import Scope
from opstep.runtime.expressions.text import number_text
from opstep.runtime.expressions.tree import Index, Name
from opstep.runtime.expressions.values import Evaluation, ValueTable, is_handle
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.types import DType, TensorType, boolean, dtype_of


class Assignment(NamedTuple):
    """A tensor's name, its whole new value, and which elements were given; None for all."""

    name: str
    array: np.ndarray
    part: np.ndarray | None = None


def assign(scope: Scope, target: str, value: str, limits: Limits = LIMITS) -> Assignment:
    """What ``target = value`` makes of a tensor.

    `target` is a name or a part of one: ``x``, ``x[3]``, ``x[0, :3]``, ``x[x > 9]``; `value` any
    expression. A number is spread over what it is given to. Raises `ExpressionError`, about
    `target` or `value`.
    """
    try:
        return _assignment(scope, target, value, limits)
    except ExpressionError as error:
        error.of(target)  # one about `value` says so already
        raise


def _assignment(scope: Scope, target: str, value: str, limits: Limits) -> Assignment:
    tree = parse_tree(target)
    named = tree.operand if isinstance(tree, Index) else tree
    if not isinstance(named, Name):
        hint = "values are given to x, x[3], x[0, :3]"
        raise ExpressionError("this is neither a tensor nor a part of one", tree.at, hint)
    handle = scope.lookup(named.text)
    if handle is None:
        hint = did_you_mean(named.text, scope.names())
        raise ExpressionError(f"there is no {named.text[:80]} here", named.at, hint)
    result = parse(value).evaluate(scope, limits)
    if not isinstance(tree, Index):
        return Assignment(named.text, as_tensor(result, handle.type))
    env = Evaluation(scope, limits, tree)
    dtype = handle.type.dtype
    try:
        index = index_of(tree, compile_tree)(env)
        env.at = tree
        index = check_index(env, handle.type.shape, dtype.itemsize, index)
        nbytes: Any = handle.type.nbytes
        env.charge(nbytes * 2)
        full = np.array(handle.array(), dtype.numpy)
        full[index] = as_tensor(result, TensorType(dtype, np.shape(full[index])))
        part = np.zeros(full.shape, bool)
        part[index] = True
    except (ExpressionError, *RAISED) as error:
        raise located(error, env.at) from None
    return Assignment(named.text, full, part)


def as_tensor(value: Any, t: TensorType) -> np.ndarray:
    """A `Value` as a tensor of this type. Raises `ExpressionError` where it is of another shape, or
    where its elements cannot be held: 300 as u8, 0.5 as i32. Floats are rounded.
    """
    if isinstance(value, ValueTable | str):
        raise ExpressionError(
            "a table is no tensor" if isinstance(value, ValueTable) else "no tensor"
        )
    array = np.asarray(value.array() if is_handle(value) else value)
    if array.dtype == object or array.dtype.kind in "OSU":
        raise ExpressionError("the integer does not fit 64 bits")
    with np.errstate(all="ignore"):
        array = _as_dtype(array, t.dtype)
    if array.shape == t.shape:
        return np.array(array, t.dtype.numpy)
    if array.size == 1 and not array.ndim:
        shape: Any = t.shape
        return np.full(shape, array[()], t.dtype.numpy)
    array_type = TensorType(t.dtype, array.shape)
    raise ExpressionError(f"{array_type} is given where {t} is wanted")


def _as_dtype(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements in another type; what it cannot hold is refused."""
    try:
        own = dtype_of(array.dtype)
    except KeyError:
        raise ExpressionError(f"{array.dtype} is no element type") from None
    if own is dtype:
        return array
    if dtype is boolean:
        bad = (array != 0) & (array != 1)
        found = array != 0
    elif dtype.is_integer:
        numpy: Any = dtype.numpy
        limits = np.iinfo(numpy)
        if own.is_float:
            number = array.astype(np.float64)
            inside = (number >= limits.min) & (number < float(limits.max) + 1)
            bad = ~inside | (np.trunc(number) != number)
        else:
            number = array.astype(np.int64)
            bad = (number < limits.min) | (number > limits.max)
        found = np.where(bad, 0, number).astype(dtype.numpy)
    else:
        number = array.astype(np.float64)
        found = number.astype(dtype.numpy)
        bad = np.isinf(found) & np.isfinite(number)
    if np.any(bad):
        first = np.asarray(array)[bad].reshape(-1)[0]
        raise ExpressionError(f"{dtype.name} cannot hold {number_text(first)}")
    return found
