"""``x[0, -3:, mask]``: of a handle no more is copied than an index asks for."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.expressions.arguments import as_mask
from opstep.runtime.expressions.errors import LIMITS, ExpressionError, located
from opstep.runtime.expressions.tree import Index, Number, Rest, Slice, Tree, Unary
from opstep.runtime.expressions.values import (
    Evaluation,
    ValueTable,
    as_integer,
    elements,
    is_handle,
    type_of,
    unwrap_scalar,
)

Code = Callable[[Evaluation], Any]
_FAR = 1 << 62  # an index beyond this is beyond any tensor, and NumPy takes none of more bits


def compile_index(tree: Index, compiled: Callable[[Tree], Code]) -> Code:
    """A closure that takes a part of its operand."""
    operand = compiled(tree.operand)
    items = index_of(tree, compiled)
    fixed = _fixed(tree, items) if _constant(tree) else None

    def run(env: Evaluation) -> Any:
        value = operand(env)
        index = fixed if fixed is not None else items(env)
        env.at = tree
        return subscript(env, value, index)

    return run


def index_of(tree: Index, compiled: Callable[[Tree], Code]) -> Callable[[Any], tuple]:
    """What gives the index: ints, slices, arrays, `Ellipsis`."""
    codes = [_item(item, compiled) for item in tree.items]
    return lambda env: tuple([code(env) for code in codes])


def subscript(env: Evaluation, value: Any, index: tuple) -> Any:
    """``value[index]``"""
    if isinstance(value, tuple):
        return _of_shape(value, index)
    if isinstance(value, ValueTable | str):
        raise ExpressionError(
            "only tensors have elements", hint="take a field of it: topk(x).values"
        )
    if not is_handle(value):
        if not isinstance(value, np.ndarray):
            raise ExpressionError("a number has no elements")
        return unwrap_scalar(value[check_index(env, value.shape, value.dtype.itemsize, index)])
    t = value.type
    index = check_index(env, t.shape, t.dtype.itemsize, index)
    if any(isinstance(i, np.ndarray) for i in index):
        return unwrap_scalar(elements(env, value)[index])
    return unwrap_scalar(value.part(index))


def check_index(env: Evaluation, shape: tuple, itemsize: int, index: tuple) -> tuple:
    """An index that fits, without `Ellipsis`; what it takes is counted. Raises
    `ExpressionError`.
    """
    if len(index) > len(shape) or Ellipsis in [i for i in index if not isinstance(i, np.ndarray)]:
        index = _spread(index, shape)
    axis, picked, parts = 0, [], []
    for item in index:
        size = shape[axis]
        if type(item) is int:
            if not -size <= item < size:
                raise ExpressionError(f"index {item} is out of range: axis {axis} has {size}")
        elif isinstance(item, slice):
            parts.append(len(range(*item.indices(size))))
        elif item.dtype == np.bool_:
            if item.shape != shape[axis : axis + item.ndim]:
                there = list(shape[axis : axis + item.ndim])
                raise ExpressionError(f"the mask is {list(item.shape)} where the shape is {there}")
            picked.append((int(np.count_nonzero(item)),))
            axis += item.ndim - 1
        else:
            picked.append(item.shape)
        axis += 1
    count = prod(parts) * prod(shape[axis:])
    if picked:
        count *= prod(np.broadcast_shapes(*picked))
    env.charge_elements(count, itemsize)
    return index


def _spread(index: tuple, shape: tuple) -> tuple:
    """``...`` as the slices that it stands for."""
    plain = [i for i in index if i is not Ellipsis]
    used = sum(i.ndim if isinstance(i, np.ndarray) and i.dtype == np.bool_ else 1 for i in plain)
    if used > len(shape):
        raise ExpressionError(f"{used} indices for a tensor of rank {len(shape)}")
    if len(plain) == len(index):
        return index
    at = next(k for k, i in enumerate(index) if i is Ellipsis)
    return index[:at] + (slice(None),) * (len(shape) - used) + index[at + 1 :]


def _of_shape(value: tuple, index: tuple) -> Any:
    if len(index) != 1 or not isinstance(index[0], int | slice):
        raise ExpressionError("a shape takes one index")
    item = index[0]
    if isinstance(item, int) and not -len(value) <= item < len(value):
        raise ExpressionError(f"index {item} is out of range: the rank is {len(value)}")
    return value[item]


def _item(item: Tree | Slice | Rest, compiled: Callable[[Tree], Code]) -> Code:
    if isinstance(item, Rest):
        return lambda env: Ellipsis
    if isinstance(item, Slice):
        bounds = [None if b is None else _integer(b, compiled) for b in item[:3]]
        at = item.at

        def cut(env: Evaluation) -> slice:
            numbers = (None if b is None else as_integer(b(env), "a bound") for b in bounds)
            start, stop, step = (n if n is None else max(-_FAR, min(n, _FAR)) for n in numbers)
            if step == 0:
                raise ExpressionError("the step of a slice is not 0", at)
            return slice(start, stop, step)

        return cut
    code = _integer(as_mask(item), compiled)

    def one(env: Evaluation) -> Any:
        value = code(env)
        if not isinstance(value, np.ndarray):
            number = as_integer(value, "an index")
            if abs(number) > _FAR:
                raise ExpressionError(f"index {number} is out of range")
            return number
        if value.dtype.kind not in "iub":
            raise ExpressionError(f"{type_of(value)} is no index", hint="integers or bools are")
        return value

    return one


def _integer(tree: Tree, compiled: Callable[[Tree], Code]) -> Code:
    """Its elements, which are to be integers; what is wrong with them is said of it."""
    code = compiled(tree)

    def run(env: Evaluation) -> Any:
        value = code(env)
        env.at = tree
        return elements(env, value)

    return run


def _fixed(tree: Index, items: Callable[[Any], tuple]) -> tuple:
    """An index that needs no scope."""
    env = Evaluation(None, LIMITS, tree)
    try:
        return items(env)
    except ExpressionError as error:
        raise located(error, env.at) from None


def _constant(tree: Index) -> bool:
    """Whether an index is the same wherever it is evaluated."""

    def plain(item: Any) -> bool:
        if item is None or isinstance(item, Rest):
            return True
        if isinstance(item, Unary):
            return item.sign in "+-" and isinstance(item.operand, Number)
        return isinstance(item, Number)

    return all(
        all(plain(b) for b in item[:3]) if isinstance(item, Slice) else plain(item)
        for item in tree.items
    )
