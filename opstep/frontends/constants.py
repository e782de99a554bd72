"""Elements that are known at import, as a text has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Builder, Var


def number(element: Any) -> int | float:
    """An element as a number that stands in a text: the shortest that reads back the same."""
    dtype = np.asarray(element).dtype
    if dtype.kind in "iub":
        return int(element)
    return float(str(np.float32(element))) if dtype.itemsize <= 4 else float(element)


def written_constant(b: Builder, elements: np.ndarray, type: TensorType) -> Var | None:
    """A statement that gives these elements, or the one for all; None where a named tensor has
    to.
    """
    dtype, shape = type.dtype, list(type.shape)
    flat = elements.reshape(-1)
    if not flat.size:
        return b.zeros(shape=shape, dtype=dtype)
    first = flat[0]
    if flat.size == 1 or flat.tobytes() == first.tobytes() * flat.size:
        if dtype.kind == "b":
            return (b.ones if first else b.zeros)(shape=shape, dtype=dtype)
        value = first.item() if dtype.kind in "iu" else float(first)
        return b.full(shape=shape, value=value, dtype=dtype)
    if len(shape) == 1 and dtype.is_integer and len(flat) > 2:
        start, step = int(flat[0]), int(flat[1]) - int(flat[0])
        if (np.diff(flat.astype(np.int64)) == step).all():
            return b.iota(shape=shape, start=start, step=step, dtype=dtype)
    return None
