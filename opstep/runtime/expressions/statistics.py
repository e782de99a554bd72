"""Statistics of an array on the host, as a device takes them of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.device.payload import payload
from opstep.runtime.expressions.values import Evaluation, as_f64, dtype_named
from opstep.runtime.statistics import BINS, LOWEST, Statistics

_SMALLEST = {"f64": 2.0**-1022, "f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}


def statistics_of(env: Evaluation, value: Any) -> Statistics:
    """Of an array, an element or a number."""
    array = np.asarray(value)
    env.charge(array.size * 32)
    own = dtype_named(array)
    number = as_f64(env, array)
    finite = number[np.isfinite(number)]
    low = high = mean = std = l2 = most = None
    if finite.size:
        ends = finite if own.is_float else array
        low, high = ends.min().item(), ends.max().item()
        low, high = (low, high) if own.is_float else (int(low), int(high))
        mean, std, most = float(finite.mean()), float(finite.std()), max(abs(low), abs(high))
        l2 = norm(finite)
    magnitude = np.abs(finite)
    small = int(((magnitude > 0) & (magnitude < _SMALLEST[own.name])).sum()) if own.is_float else 0
    unwritten = None
    if own.is_float:
        mark = payload(own)
        unwritten = int((np.ascontiguousarray(array).view(mark.dtype) == mark).sum())
    return Statistics(
        array.size, low, high, mean, std, l2, most,
        int(np.isnan(number).sum()), int((number == np.inf).sum()), int((number == -np.inf).sum()),
        int((number == 0).sum()), small, unwritten, _histogram(magnitude[magnitude > 0]),
    )  # fmt: skip


def norm(number: np.ndarray) -> float:
    """sqrt of the sum of squares, scaled so that none overflows. Takes f64."""
    most = float(np.abs(number).max(initial=0))
    if not 0 < most < np.inf:
        return most
    exponent = int(np.frexp(most)[1])
    return float(np.ldexp(np.sqrt(np.square(np.ldexp(number, -exponent)).sum()), exponent))


def _histogram(magnitude: np.ndarray) -> tuple[int, ...]:
    exponents = np.frexp(magnitude)[1].astype(np.int64) - 1
    bins = np.clip(exponents - LOWEST, 0, BINS - 1)
    return tuple(np.bincount(bins, minlength=BINS).tolist())
