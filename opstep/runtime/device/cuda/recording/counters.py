"""How the statistics kernels see one element of each dtype: where it is counted, its key, its size.

Counters lie in shared memory, a row for each exponent and for what else is counted, a column for
each lane of a warp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.device.builtin import float_to_bits
from opstep.runtime.device.cpu.blocks import SINGLES, order
from opstep.runtime.device.cuda.compiling.names import fmax, fmin, saturated_product
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DType, f16, f64
from opstep.runtime.statistics import BINS, LOWEST

LANES = 32
HIGHEST = 0x7FFFFFFFFFFFFFFF

# One row for each exponent from -104 to 23, the first and the last ones for those beyond as well,
# then these. Dust: what is not 0, yet stands in the first row.
EXPONENTS = 128
NANS, ABOVE, BELOW, DUST, SUBNORMALS, UNWRITTEN_ROW = range(EXPONENTS, EXPONENTS + 6)
COUNTED = EXPONENTS + 6
NEAR = EXPONENTS - BINS  # the row of the first bin
DUST_BELOW = 2.0 ** (LOWEST - NEAR + 1)


def counter_of_single(v, lane):
    """The place of a number's counter, that of its exponent; that of NaN is in the first row."""
    size = saturated_product(abs(np.float32(v)), _SCALE)
    return ((float_to_bits(size) >> 18) & 0xFE0) | lane  # 32 times the exponent


_SCALE = np.float32(2.0 ** -(LOWEST + BINS - 1))  # brings the last bin to 1.0


def counter_of_double(v, lane):
    """Likewise; that of NaN is in the last row."""
    k = ((float_to_bits(v) >> 52) & 0x7FF) - (1023 + LOWEST - NEAR)
    return min(max(k, 0), EXPONENTS - 1) * LANES + lane


def extra(row, lane):
    """The place of the counter of a row behind those of exponents."""
    return row * LANES + lane


def key_of_float(v):
    """An integer of the order of numbers, in which -0.0 is below 0.0."""
    return order(float_to_bits(np.float64(v)))


def key_of_integer(v):
    return np.int64(v)


def size_of_single(v):
    """An integer of the order of sizes; that of 0 is the largest."""
    return np.uint32((np.int64(float_to_bits(np.float32(v))) * 2 - 1) & 0xFFFFFFFF)


def size_of_double(v):
    return np.uint64(float_to_bits(abs(v)) - 1) if v != 0.0 else np.uint64(HIGHEST)


class Kind:
    """How the kernels see elements of a dtype."""

    def __init__(self, dtype: DType):
        self.floating = dtype.is_float
        self.width = 16 // dtype.itemsize  # elements of 16 bytes
        self.load = Intrinsic("load", self.width)
        self.key = key_of_float if dtype.is_float else key_of_integer
        self.counter = counter_of_double if dtype is f64 else counter_of_single
        self.size = size_of_double if dtype is f64 else size_of_single
        single = dtype in SINGLES  # f32 holds them, small integers too
        self.value: Any = np.float32 if single else getattr(np, dtype.numpy.name)
        self.finite = is_finite if dtype.is_float else is_whole
        small = 2.0**-1022 if dtype is f64 else 2.0**-14 if dtype is f16 else 2.0**-126
        self.normal: Any = self.value(small) if dtype.is_float else 0  # the smallest one
        # below this size, an element may be subnormal, or dust
        tiny = np.array(max(float(self.normal), DUST_BELOW), np.float64 if dtype is f64 else "f4")
        bits = int(tiny.view(f"i{tiny.itemsize}"))
        self.tiny: Any = np.uint64(bits - 1) if dtype is f64 else np.uint32(2 * bits - 1)
        ends = (-np.inf, np.inf) if single or dtype is f64 else _ends(dtype)
        self.low, self.high = (self.value(end) for end in ends)
        self.smaller = fmin if single or dtype is f64 else smaller
        self.larger = fmax if single or dtype is f64 else larger
        self.raw = _raw_half if dtype.is_half else _raw_float


def _ends(dtype: DType) -> tuple[int, int]:
    info: Any = np.iinfo(str(dtype.numpy))
    return info.min, info.max


def is_finite(v):
    return abs(v) < np.inf


def is_whole(v):
    return True


def smaller(a, b):
    return a if a < b else b


def larger(a, b):
    return a if a > b else b


def _raw_half(raw, i):
    return np.int64(raw[i])


def _raw_float(raw, i):
    return np.int64(float_to_bits(raw[i]))
