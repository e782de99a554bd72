"""Indices that do not exist, for `outside` of an op: elements of the result that they were meant
for, or one true where they were meant to be written, or to be summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def _beyond(index: np.ndarray, size: Any) -> np.ndarray:
    """Neither from the front nor from the end."""
    return (index < -size) | (index >= size)


def picked(operands: Sequence[Any], shape, *, axis: int = 0, **_: Any) -> np.ndarray:
    """Of gather: index's axes stand where x has `axis`."""
    x, index = operands[:2]
    a = axis % x.ndim
    beyond = _beyond(index, x.shape[a])
    return np.broadcast_to(beyond.reshape((*index.shape, *[1] * (x.ndim - a - 1))), shape)


def elements(operands: Sequence[Any], shape, *, axis: int, missing: Any, **_: Any) -> np.ndarray:
    """Of gather_elements; with `missing` it is said what they give."""
    x, index = operands[:2]
    return _beyond(index, x.shape[axis]) & (missing is None)


def parts(operands: Sequence[Any], shape, *, batch: int, missing: Any) -> np.ndarray:
    """Of gather_nd."""
    places = _outside(*operands[:2], batch) & (missing is None)
    return np.broadcast_to(
        places.reshape((*places.shape, *[1] * (len(shape) - places.ndim))), shape
    )


def classes(operands: Sequence[Any], shape, *, classes: int, axis: int, **_: Any) -> np.ndarray:
    """Of one_hot."""
    (index,) = operands[:1]
    beyond = (index < 0) | (index >= classes)
    return np.broadcast_to(np.expand_dims(beyond, axis), shape)


def labels(operands: Sequence[Any], shape, *, axis: int, ignore_index: int, **_: Any) -> np.ndarray:
    """Of losses of labels, and of their gradients by x."""
    x, label = operands[:2]
    beyond = no_class(x, label, axis, ignore_index)
    if shape == x.shape:
        return np.broadcast_to(np.expand_dims(beyond, axis), shape)
    return beyond if shape == label.shape else np.asarray(beyond.any())


def no_class(x: np.ndarray, label: np.ndarray, axis: int, ignore_index: int) -> np.ndarray:
    """Labels that are neither a class nor left out."""
    return ((label < 0) | (label >= x.shape[axis])) & (label != ignore_index)


def summed(operands: Sequence[Any], shape, *, size: int, **_: Any) -> np.ndarray:
    """Of gather_grad."""
    return np.asarray(_beyond(operands[1], size).any())


def scattered(operands: Sequence[Any], shape, *, axis: int, **_: Any) -> np.ndarray:
    """Of scatter and its kin."""
    x, index = operands[:2]
    return np.asarray(_beyond(index, x.shape[axis]).any())


def scattered_parts(operands: Sequence[Any], shape, *, batch: int, **_: Any) -> np.ndarray:
    return np.asarray(_outside(*operands[:2], batch).any())


def _outside(x: np.ndarray, index: np.ndarray, batch: int) -> np.ndarray:
    sizes = np.array(x.shape[batch : batch + index.shape[-1]])
    return np.asarray(_beyond(index, sizes).any(axis=-1))


def indexed(operands: Sequence[Any], shape, *, axes: Any, missing: Any) -> np.ndarray:
    """Of index: the indices stand at the first of their axes, or in front."""
    x, *indices = operands
    chosen = [a % x.ndim for a in (axes or range(len(indices)))]
    beyond = np.asarray(_beyond_any(x, indices, chosen) & (missing is None))
    first, last = min(chosen), max(chosen)
    behind = x.ndim - last - 1 if last - first == len(chosen) - 1 else x.ndim - len(chosen)
    return np.broadcast_to(beyond.reshape((*beyond.shape, *[1] * behind)), shape)


def index_written(operands: Sequence[Any], shape, *, axes: Any) -> np.ndarray:
    x, _, *indices = operands
    chosen = [a % x.ndim for a in (axes or range(len(indices)))]
    return np.asarray(np.any(_beyond_any(x, indices, chosen)))


def _beyond_any(x: np.ndarray, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    beyond: Any = False
    for index, axis in zip(indices, axes, strict=True):
        beyond = beyond | _beyond(np.asarray(index), x.shape[axis])
    return beyond


def bagged(operands: Sequence[Any], shape, **_: Any) -> np.ndarray:
    """Of embedding_bag."""
    weight, index = operands[:2]
    return np.asarray(_beyond(index, weight.shape[0]).any())
