"""The bits of debug memory before it is written."""

from __future__ import annotations

import numpy as np

from opstep.runtime.ir.types import DType


def payload(dtype: DType) -> np.generic:
    """The bits of debug memory before it is written, as an unsigned integer of the type's width: a
    NaN with a payload of its own, or the largest integer.
    """
    patterns = {"f64": 0x7FF8_DEAD_0B5E_55ED, "f32": 0x7FC0_5EED, "f16": 0x7E5D, "bf16": 0x7FDE}
    width = np.dtype(f"u{dtype.itemsize}")
    if dtype.name in patterns:
        return width.type(patterns[dtype.name])
    return width.type(
        {"i": (1 << dtype.bits - 1) - 1, "u": (1 << dtype.bits) - 1, "b": 1}[dtype.kind]
    )
