"""Extremes of a run of floats with the bits that `max` and `min` give: NaN if there is one, and of
zeros with and without a sign the one without for the largest, the other for the smallest.
"""

from __future__ import annotations

from opstep.kernels.reduce.folds import (
    high_key,
    larger,
    low_key,
    lowest,
    one_nan,
    smaller,
    uppermost,
    value_of_key,
)
from opstep.runtime.device.builtin import fixed_greatest, fixed_least
from opstep.runtime.device.source import vectorised


def _by_high_key(x, n):
    key = lowest()
    for i in range(n):
        key = larger(key, high_key(x[i]))
    return value_of_key(key, 0)


def _by_low_key(x, n):
    key = uppermost()
    for i in range(n):
        key = smaller(key, low_key(x[i]))
    return value_of_key(key, 0)


def _greatest(x, n):
    """Comparisons are quicker than keys, but take zeros for equal."""
    top = fixed_greatest(x, n)
    return _by_high_key(x, n) if top == 0.0 else one_nan(top)


def _least(x, n):
    low = fixed_least(x, n)
    return _by_low_key(x, n) if low == 0.0 else one_nan(low)


@vectorised(f32=_greatest, f64=_greatest)
def greatest(x, n):
    return _by_high_key(x, n)


@vectorised(f32=_least, f64=_least)
def least(x, n):
    return _by_low_key(x, n)
