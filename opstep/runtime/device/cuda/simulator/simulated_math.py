"""Python's `math` as kernels have it: in the type of the argument, NaN and infinities instead of
errors. For the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

inf, nan, pi, e, tau = math.inf, math.nan, math.pi, math.e, math.tau


def _silent(function: Callable) -> Callable:
    def compute(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return compute


def _scalar(function: Callable) -> Callable:
    """A function of one number that NumPy lacks and that has no poles."""

    def compute(x: Any) -> Any:
        return np.asarray(x).dtype.type(function(x)) if isinstance(x, np.generic) else function(x)

    return compute


def _gamma_log(x: Any) -> Any:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return inf


acos, asin, atan = _silent(np.arccos), _silent(np.arcsin), _silent(np.arctan)
acosh, asinh, atanh = _silent(np.arccosh), _silent(np.arcsinh), _silent(np.arctanh)
atan2, ceil, copysign = _silent(np.arctan2), _silent(np.ceil), _silent(np.copysign)
cos, cosh, sin, sinh = _silent(np.cos), _silent(np.cosh), _silent(np.sin), _silent(np.sinh)
exp, exp2, expm1 = _silent(np.exp), _silent(np.exp2), _silent(np.expm1)
fabs, floor, fmod = _silent(np.fabs), _silent(np.floor), _silent(np.fmod)
isfinite, isinf, isnan = np.isfinite, np.isinf, np.isnan
log, log10, log1p, log2 = _silent(np.log), _silent(np.log10), _silent(np.log1p), _silent(np.log2)
pow, sqrt, tan, tanh = _silent(np.power), _silent(np.sqrt), _silent(np.tan), _silent(np.tanh)
trunc, ldexp, hypot = _silent(np.trunc), _silent(np.ldexp), _silent(np.hypot)
erf, erfc, lgamma = _scalar(math.erf), _scalar(math.erfc), _scalar(_gamma_log)
