"""Differences of floats in units in the last place."""

from __future__ import annotations

import numpy as np


def bits(x: np.ndarray) -> np.ndarray:
    """Its elements as unsigned integers of the same size; of what is not contiguous a copy."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def ulps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many floats of their type lie between elements of `x` and `y`, as u64. Both zeros are
    one place; NaNs count as what follows the infinities.
    """
    a, b = (_ordered(v) for v in (x, y))
    return np.maximum(a, b) - np.minimum(a, b)


def _ordered(x: np.ndarray) -> np.ndarray:
    """Floats in order are integers in order, once those of negative ones are turned round."""
    top = np.uint64(1 << (8 * x.dtype.itemsize - 1))
    wide = bits(x).astype(np.uint64)
    size = wide & (top - np.uint64(1))
    return np.where(wide & top, top - size, top + size)
