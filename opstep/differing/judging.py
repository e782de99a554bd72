"""Who is right: a result of a side beside f64 arithmetic on the operands that this side had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opstep.differing.elements import Elements, difference, is_float
from opstep.differing.errors import TOLERANCE, coarser, error_of
from opstep.differing.models import Own
from opstep.runtime.ir.types import DType, dtype_of
from opstep.runtime.nan.silent import SMALLEST

SHAKEN = 2  # runs with moved operands
SLACK = 8  # of what moving the operands by their rounding error changes


def own_error(
    got: np.ndarray, target: np.ndarray, tolerance: float | None, growth: Callable[[], float],
    again: Callable[[np.random.Generator], np.ndarray],
) -> Own:  # fmt: skip
    """What an op adds to floats. `target`: what is exact, in f64; `again`: the same of operands
    that a generator moves by their rounding error; `growth`: how many times a rounding error the
    op may make.
    """
    x, y = got.astype(np.float64), _in_range(target, got)
    scale, floor = _tolerance(y, dtype_of(got.dtype), tolerance)
    bound = scale * np.abs(y) + floor
    most = excess(x, y, bound)
    if most > 1:
        with np.errstate(all="ignore"):
            rngs = [np.random.default_rng(k) for k in range(SHAKEN)]
            moved = np.max([np.abs(again(rng) - target) for rng in rngs], axis=0)
        moved = np.where(np.isfinite(moved), moved, 0.0)
        bound = growth() * (bound + SLACK * np.maximum(moved, rms(moved)))
        most = excess(x, y, bound)
    return Own(error_of(x, y), most)


def apart(a: np.ndarray, b: np.ndarray, tolerance: float | None = None) -> Elements | None:
    """How results of two sides differ where that is more than rounding to the coarser type: for
    each element relative to itself and to the others' root mean square.
    """
    if not (is_float(a.dtype) and is_float(b.dtype)):
        return difference(a, b)
    coarse = coarser(dtype_of(a.dtype), dtype_of(b.dtype))
    return difference(a, b, *_tolerance(b.astype(np.float64), coarse, tolerance), coarse)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def excess(x: np.ndarray, y: np.ndarray, allowed: np.ndarray) -> float:
    """The largest difference as a multiple of what is allowed; infinite where one alone is NaN or
    infinite.
    """
    if not x.size:
        return 0.0
    with np.errstate(all="ignore"):
        ratio = np.abs(x - y) / allowed
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return float(np.where(same, 0.0, np.where(np.isfinite(ratio), ratio, np.inf)).max())


def _tolerance(y: np.ndarray, dtype: DType, tolerance: float | None) -> tuple[float, float]:
    """How far elements may be from y: relative to themselves, and absolutely."""
    scale = TOLERANCE[dtype.name] if tolerance is None else tolerance
    return scale, scale * rms(y[np.isfinite(y)]) + SLACK * SMALLEST[dtype.name]


def _in_range(target: np.ndarray, got: np.ndarray) -> np.ndarray:
    """What is exact, as far as the type of what was got reaches: numbers beyond are infinite, or as
    large as can be.
    """
    import ml_dtypes

    with np.errstate(all="ignore"):
        rounded, held = target.astype(got.dtype).astype(np.float64), got.astype(np.float64)
    largest = np.abs(held) == float(ml_dtypes.finfo(got.dtype).max)
    held_back = largest & (np.sign(held) == np.sign(rounded))
    return np.where(np.isinf(rounded), np.where(held_back, held, rounded), target)
