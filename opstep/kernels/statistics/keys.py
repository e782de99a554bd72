"""Elements as integers of the same order: see `kernels.statistics.details`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.runtime.device.launch import CARRIERS, Arg
from opstep.runtime.ir.types import DType, TensorType


def as_sort_keys(x: Arg) -> Arg:
    """Floats as the integers that their bits are."""
    if not x.dtype.is_float:
        return x
    return Arg(TensorType(CARRIERS[x.stored.itemsize], x.shape), x.slot)


@cache
def key_of(dtype: DType) -> Callable:
    """The key of an element, as `as_sort_keys` shows it."""
    floating, magnitude = dtype.is_float, (1 << dtype.bits - 1) - 1

    def key(v):
        k = np.int64(v)
        if floating and k < 0:
            k = -(k & magnitude)
        return k

    return key
