"""How far a result is from what it should be, and how far its type lets it be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opstep.runtime.ir.types import DType

# Relative: 8 units in the last place.
TOLERANCE = {"f16": 2.0**-7, "bf16": 2.0**-4, "f32": 2.0**-20, "f64": 2.0**-49}


class Error(NamedTuple):
    """Of a result against what is exact, over elements that are finite in both.

    `relative`: the norm of the difference by that of the exact values; `largest`: the largest
    difference by the largest exact value; `typical`: the median of each element's difference by its
    exact value, less the least number that the type holds. `unlike`: elements that are NaN or
    infinite in one alone, or another infinity; `zeroed`: those that are 0 and should not be.
    `worst`: the one that is farthest away, one that is unlike before all, with both values.
    """

    relative: float
    unlike: int
    zeroed: int
    size: int
    worst: tuple[int, ...]
    got: float
    exact: float
    largest: float = 0.0
    typical: float = 0.0

    @property
    def most(self) -> float:
        """The greatest of `relative`, `typical` and a quarter of `largest`, as the largest of many
        roundings is up to four times their norm's. A few elements that are altogether wrong hide in
        a norm, and so do many small ones beside a large one.
        """
        return max(self.relative, self.typical, self.largest / 4)


def error_of(got: np.ndarray, exact: np.ndarray) -> Error:
    """Of arrays of one shape and any element types."""
    a, b = np.asarray(got, np.float64), np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        unlike = ~same & ~np.isfinite(apart)
        apart = np.where(same, 0.0, np.where(unlike, np.inf, apart))
        fine = np.isfinite(a) & np.isfinite(b)
        off, of = apart[fine], np.abs(b[fine])
        beyond = np.maximum(off - _smallest(np.asarray(got).dtype), 0.0)
        each = np.divide(beyond, of, out=np.where(beyond == 0, 0.0, np.inf), where=of != 0)
    zeroed = int(((a == 0) & (b != 0) & fine).sum())
    if not a.size:
        return Error(0.0, 0, 0, 0, (), 0.0, 0.0)
    at = np.unravel_index(int(np.argmax(apart)), a.shape)
    index, here, wanted = tuple(map(int, at)), float(a[at]), float(b[at])
    largest = _ratio(float(off.max(initial=0.0)), float(of.max(initial=0.0)))
    typical = float(np.median(each)) if each.size else 0.0
    relative = _ratio(_norm(off), _norm(of))
    unalike = int(unlike.sum())
    return Error(relative, unalike, zeroed, a.size, index, here, wanted, largest, typical)


def coarser(a: DType, b: DType) -> DType:
    """Of two float types the one that holds less of a number."""
    return a if TOLERANCE[a.name] >= TOLERANCE[b.name] else b


def _smallest(dtype: np.dtype) -> float:
    """The least number above 0."""
    import ml_dtypes

    if dtype.kind in "iub":
        return 0.0
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def _ratio(difference: float, scale: float) -> float:
    return 0.0 if difference == 0 else difference / scale if scale else float("inf")


def _norm(x: np.ndarray) -> float:
    """Without an overflow on the way."""
    most = float(np.abs(x).max(initial=0.0))
    return most * float(np.sqrt(np.square(x / most).sum())) if most else 0.0
