"""What is known of a tensor without looking at its elements.

A device computes them in one pass (`runtime.device.cpu.statistics`) as `WORDS` words of 64 bits:

    0 count         elements
    1 nan           NaNs of any payload
    2 posinf        +inf
    3 neginf        -inf
    4 zero          0.0 and -0.0
    5 subnormal     finite, not 0, below the dtype's smallest normal number; 0 for integers
    6 unwritten     elements that hold the payload of `fill=nan`; -1 where that cannot be told
    7 min           of the finite elements: f64 bits, or the integer itself for integers and bools
    8 max           likewise
    9 mean          of the finite elements, f64 bits; likewise the next two
   10 m2            sum of squared distances from the mean
   11 sumsq         sum of squares; what follows from these is `std` and `l2`
   12 exponent      `m2` and `sumsq` are of the elements divided by 2**exponent: 0 but for f64
                    elements so large or so small that f64 could not hold their squares
   13..15           0
   16..79           histogram: finite elements other than 0 by floor(log2(abs(x)))

Bin k of the histogram counts those with exponent ``LOWEST + k``; the first bin also takes those
below, the last those above. The first six counts do not overlap with the histogram: count == nan +
posinf + neginf + zero + sum(histogram).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.plan import internal
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    import numpy as np

BINS = 64
LOWEST = -40  # exponent of the first bin: 2**-40 is about 9.1e-13; the last is 2**23, 8.4e6
FIRST_BIN = 16  # word
WORDS = FIRST_BIN + BINS
RECORD = TensorType(i64, (WORDS,))
ENABLED = TensorType(i64, ())  # 0: they are not taken
(COUNT, NAN, POSINF, NEGINF, ZERO, SUBNORMAL, UNWRITTEN) = range(7)
(MIN, MAX, MEAN, M2, SUMSQ, EXPONENT) = range(7, 13)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one tensor. `min`, `max`, `mean`, `std` (of the population), `l2` and `absmax` are those
    of its finite elements; None where it has none. `unwritten` is None where it cannot be told.
    """

    count: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    l2: float | None
    absmax: float | int | None
    nan: int
    posinf: int
    neginf: int
    zero: int
    subnormal: int
    unwritten: int | None
    histogram: tuple[int, ...]  # of `BINS` counts

    @property
    def finite(self) -> int:
        """Elements that are neither NaN nor infinite."""
        return self.count - self.nan - self.posinf - self.neginf


def together(parts: Sequence[Statistics]) -> Statistics:
    """Of a tensor that consists of these, none of which is left out."""

    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    filled = [part for part in parts if part.finite]
    finite = sum(part.finite for part in filled)
    low = high = mean = std = l2 = absmax = None
    if finite:
        low, high = (end(getattr(p, end.__name__) for p in filled) for end in (min, max))
        shares = [part.finite / finite for part in filled]
        means: list[Any] = [part.mean for part in filled]
        mean = sum(share * m for share, m in zip(shares, means, strict=True))
        apart = [math.hypot(p.std or 0.0, m - mean) for p, m in zip(filled, means, strict=True)]
        std = math.hypot(*(math.sqrt(s) * a for s, a in zip(shares, apart, strict=True)))
        l2 = math.hypot(*(part.l2 or 0.0 for part in filled))
        absmax = max(part.absmax or 0 for part in filled)
    unwritten = None if any(part.unwritten is None for part in parts) else total("unwritten")
    return Statistics(
        total("count"), low, high, mean, std, l2, absmax, total("nan"), total("posinf"),
        total("neginf"), total("zero"), total("subnormal"), unwritten,
        tuple(map(sum, zip(*(part.histogram for part in parts), strict=True))),
    )  # fmt: skip


def decode(words: np.ndarray, dtype: DType) -> Statistics:
    """The statistics that a device wrote as `WORDS` words for a tensor of this dtype."""
    integers = words[:FIRST_BIN].tolist()
    real = words[:FIRST_BIN].view("f8").tolist()
    count, nan, posinf, neginf, zero, subnormal, unwritten = integers[: UNWRITTEN + 1]
    finite = count - nan - posinf - neginf
    histogram = tuple(words[FIRST_BIN:].tolist())
    low = high = mean = std = l2 = absmax = None
    if finite:
        ends = real if dtype.is_float else integers
        low, high, mean = ends[MIN], ends[MAX], real[MEAN]
        std = scaled(math.sqrt(real[M2] / finite), integers[EXPONENT])
        l2 = scaled(math.sqrt(real[SUMSQ]), integers[EXPONENT])
        absmax = max(abs(low), abs(high))
    unwritten = None if unwritten < 0 else unwritten
    return Statistics(
        count, low, high, mean, std, l2, absmax, nan, posinf, neginf, zero, subnormal, unwritten,
        histogram,
    )  # fmt: skip


def scaled(number: float, exponent: int) -> float:
    """number * 2**exponent; inf where f64 cannot hold it."""
    try:
        return math.ldexp(number, exponent)
    except OverflowError:
        return math.inf


def step_for(t: TensorType, filled: bool) -> tuple[Step, tuple[TensorType, ...]]:
    """A step, of no plan, that takes the statistics of a tensor of that type; and the types that a
    device needs to prepare it: of its operands (the tensor, `ENABLED`) and of its `RECORD`.

    `filled`: the tensor's memory held the payload of `fill=nan` before it was written.
    """
    op = internal.statistics
    statement = Apply((), Name(op.name, NOWHERE), ())
    step = Step(op, (), (), (t, ENABLED), {"filled": filled}, 0, statement)
    return step, (t, ENABLED, RECORD)
