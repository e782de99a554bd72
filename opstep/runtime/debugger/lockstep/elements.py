"""Two arrays of one type, element by element."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

CHUNK = 1 << 20  # elements looked at at a time


class Elements(NamedTuple):
    """How two arrays differ: `differing` of `of` elements; the first of them in row-major order,
    with both values; how far apart they are at most, absolutely, relative to the second, and in
    units in the last place (of floats that are no NaNs); how many NaNs each has.
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


def difference(
    a: np.ndarray, b: np.ndarray, rtol: float = 0.0, atol: float = 0.0
) -> Elements | None:
    """How they differ; None where they do not.

    Without tolerances all bits must be the same. With them floats may be ``atol + rtol * abs(b)``
    apart, NaNs are like NaNs and infinities like themselves; integers and bools must be equal.
    """
    flat_a, flat_b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    floats, tolerant = _is_float(a.dtype), bool(rtol or atol)
    count, first, nans = 0, -1, [0, 0]
    most, relative, ulp = 0.0, 0.0, 0
    for start in range(0, a.size, CHUNK):
        x, y = flat_a[start : start + CHUNK], flat_b[start : start + CHUNK]
        apart = _bits(x) != _bits(y)
        if floats:
            nans[0] += int(np.isnan(x).sum())
            nans[1] += int(np.isnan(y).sum())
        if not apart.any():
            continue
        if floats and tolerant:
            apart &= ~_close(x, y, rtol, atol)
        places = np.flatnonzero(apart)
        if not places.size:
            continue
        first = start + int(places[0]) if first < 0 else first
        count += places.size
        found = _sizes(x[places], y[places], floats)
        most, relative, ulp = max(most, found[0]), max(relative, found[1]), max(ulp, found[2])
    if not count:
        return None
    index = tuple(int(i) for i in np.unravel_index(first, a.shape))
    values = (flat_a[first].item(), flat_b[first].item())
    return Elements(count, a.size, index, *values, most, relative, ulp, (nans[0], nans[1]))


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _close(x: np.ndarray, y: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        p, q = _wide(x), _wide(y)
        near = np.abs(p - q) <= atol + rtol * np.abs(q)
        return (p == q) | (np.isnan(p) & np.isnan(q)) | (near & np.isfinite(q))


def _sizes(x: np.ndarray, y: np.ndarray, floats: bool) -> tuple[float, float, int]:
    """The greatest absolute and relative difference, and that in units in the last place."""
    with np.errstate(all="ignore"):
        p, q = _wide(x), _wide(y)
        apart = np.abs(p - q)
        there = np.isfinite(apart)
        absolute = float(apart[there].max(initial=0.0))
        scaled = apart / np.abs(q)
        relative = float(scaled[np.isfinite(scaled)].max(initial=0.0))
    if not floats:
        return absolute, relative, 0
    numbers = ~(np.isnan(p) | np.isnan(q))
    return absolute, relative, _ulps(x[numbers], y[numbers])


def _ulps(x: np.ndarray, y: np.ndarray) -> int:
    """Floats in order are integers in order, once those of negative ones are turned round."""
    top = 1 << (8 * x.dtype.itemsize - 1)
    p, q = (_places(_bits(v), top) for v in (x, y))
    return int((np.maximum(p, q) - np.minimum(p, q)).max(initial=0))


def _places(bits: np.ndarray, top: int) -> np.ndarray:
    wide = bits.astype(np.uint64)
    size = wide & np.uint64(top - 1)  # both zeros are in one place
    return np.where(wide & np.uint64(top), np.uint64(top) - size, np.uint64(top) + size)
