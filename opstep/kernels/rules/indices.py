"""Classes and labels that do not exist, for `outside` of an op: elements of the result that they
were meant for, or one true where they were meant to be summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


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
