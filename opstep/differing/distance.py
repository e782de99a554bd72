"""How far two results are apart, and whether what an op was given explains it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from opstep.differing.elements import is_float
from opstep.differing.errors import TOLERANCE
from opstep.runtime.ir.types import dtype_of

GROWS, PEAKS = 4, 16  # times what came in: as much as an op makes of it that is right


class Distance(NamedTuple):
    """Of two results, by the root mean square of the second: on average, and at most."""

    norm: float
    peak: float

    def explained_by(self, came: Distance, scale: float) -> bool:
        """Whether rounding by `scale`, or what came in, is as much."""
        average = self.norm <= GROWS * max(came.norm, scale / GROWS)
        return average and self.peak <= PEAKS * max(came.peak, scale)


NEAR = Distance(0.0, 0.0)


def distance_of(a: np.ndarray, b: np.ndarray) -> Distance:
    """In one pass or two, as most results differ by rounding alone."""
    small = np.float32 if is_float(a.dtype) and a.itemsize < 8 else np.float64
    x, y = (v.reshape(-1).astype(small, copy=False) for v in (a, b))
    for _ in range(2):
        with np.errstate(all="ignore"):
            d = x - y
            top = max(float(d.max()), -float(d.min())) if d.size else 0.0
            squares, size = float(np.dot(d, d)), float(np.dot(y, y))
        if top == 0.0:
            return NEAR
        if math.isfinite(squares) and math.isfinite(size) and size:
            return Distance(math.sqrt(squares / size), top / math.sqrt(size / y.size))
        x, y = x.astype(np.float64), y.astype(np.float64)
        odd = ~np.isfinite(x) | ~np.isfinite(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if (odd & ~same).any():
            return Distance(math.inf, math.inf)
        x, y = np.where(odd, 0.0, x), np.where(odd, 0.0, y)
    return Distance(math.inf, math.inf)


def scale_of(dtype: np.dtype, tolerance: float | None) -> float:
    """What rounding is, relative to a result."""
    if not is_float(dtype):
        return 0.0
    return TOLERANCE[dtype_of(dtype).name] if tolerance is None else tolerance
