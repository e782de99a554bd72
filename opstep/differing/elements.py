"""Two arrays of one type, element by element."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opstep.differing.errors import TOLERANCE, coarser
from opstep.runtime.ir.types import DType, dtype_of
from opstep.runtime.ulps import bits, ulps

CHUNK = 1 << 20  # elements looked at at a time


class Elements(NamedTuple):
    """How two arrays differ: `differing` of `of` elements; the first of them in row-major order,
    with both values; how far apart they are at most, absolutely, relative to the second, and in
    units in the last place (of floats that are not NaNs; the coarser type's); how many NaNs each
    has; how many of those that differ are a number in one alone, or an infinity.
    """

    differing: int
    of: int
    first: tuple[int, ...]
    a: Any
    b: Any
    most: float
    most_relative: float
    most_ulp: int
    nan: tuple[int, int]
    unlike: int = 0


def difference(
    a: np.ndarray, b: np.ndarray, rtol: float = 0.0, atol: float = 0.0,
    coarse: DType | None = None,
) -> Elements | None:  # fmt: skip
    """How they differ; None where they do not.

    Without tolerances all bits must be the same. With them floats may be ``atol + rtol * abs(b)``
    apart, NaNs are like NaNs and infinities like themselves; integers and bools must be equal.
    Floats of two types are compared as numbers. For them, and where what they come from was
    rounded to a type (`coarse`), the tolerance is that of the coarser type if none is given,
    relative to the largest element as well.
    """
    if (coarse or a.dtype != b.dtype) and is_float(a.dtype) and is_float(b.dtype):
        types = dtype_of(a.dtype), dtype_of(b.dtype)
        return _as_numbers(a, b, rtol, atol, coarser(coarse or types[0], coarser(*types)))
    flat_a, flat_b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    floats, tolerant = is_float(a.dtype), bool(rtol or atol)
    count, first, nans = 0, -1, [0, 0]
    most, relative, ulp, unlike = 0.0, 0.0, 0, 0
    for start in range(0, a.size, CHUNK):
        x, y = flat_a[start : start + CHUNK], flat_b[start : start + CHUNK]
        apart = bits(x) != bits(y)
        if floats:
            nans[0] += int(np.isnan(x).sum())
            nans[1] += int(np.isnan(y).sum())
        if not apart.any():
            continue
        if floats and tolerant:
            apart &= ~_close(x, y, rtol, atol)
        indices = np.flatnonzero(apart)
        if not indices.size:
            continue
        first = start + int(indices[0]) if first < 0 else first
        count += indices.size
        found = _sizes(x[indices], y[indices], floats)
        most, relative, ulp = max(most, found[0]), max(relative, found[1]), max(ulp, found[2])
        unlike += found[3]
    if not count:
        return None
    index = tuple(int(i) for i in np.unravel_index(first, a.shape))
    values = (flat_a[first].item(), flat_b[first].item())
    return Elements(count, a.size, index, *values, most, relative, ulp, (nans[0], nans[1]), unlike)


def _as_numbers(
    a: np.ndarray, b: np.ndarray, rtol: float, atol: float, coarse: DType
) -> Elements | None:
    x, y = _wide(a), _wide(b)
    if not (rtol or atol):
        rtol = TOLERANCE[coarse.name]
        atol = rtol * float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
    found = difference(x, y, rtol, atol or 5e-324)
    if found is None:
        return None
    both = np.isfinite(x) & np.isfinite(y)
    with np.errstate(over="ignore"):
        narrow = [v[both].astype(coarse.numpy) for v in (x, y)]
    return found._replace(most_ulp=_most_ulp(*narrow))


def is_float(dtype: np.dtype | None) -> bool:
    return dtype is not None and (dtype.kind == "f" or dtype.name == "bfloat16")


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _close(x: np.ndarray, y: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        p, q = _wide(x), _wide(y)
        near = np.abs(p - q) <= atol + rtol * np.abs(q)
        return (p == q) | (np.isnan(p) & np.isnan(q)) | (near & np.isfinite(q))


def _sizes(x: np.ndarray, y: np.ndarray, floats: bool) -> tuple[float, float, int, int]:
    """The greatest absolute and relative difference, that in units in the last place, and how many
    elements have none.
    """
    with np.errstate(all="ignore"):
        p, q = _wide(x), _wide(y)
        apart = np.abs(p - q)
        finite = np.isfinite(apart)
        absolute = float(apart[finite].max(initial=0.0))
        scaled = apart / np.abs(q)
        relative = float(scaled[np.isfinite(scaled)].max(initial=0.0))
    if not floats:
        return absolute, relative, 0, 0
    nan = np.isnan(p), np.isnan(q)
    unlike = int((~finite & ~(nan[0] & nan[1])).sum())
    return absolute, relative, _most_ulp(x[finite], y[finite]), unlike


def _most_ulp(x: np.ndarray, y: np.ndarray) -> int:
    return int(ulps(x, y).max(initial=0))
