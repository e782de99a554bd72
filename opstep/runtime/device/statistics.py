"""Statistics of a tensor on the CPU: one pass, exact counts, the same bits on any lanes."""

from __future__ import annotations

import math

import numpy as np

from opstep.runtime.device.builtin import float_to_bits
from opstep.runtime.device.jit import pinned
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.statistics import BINS, FIRST_BIN, LOWEST, WORDS


@pinned("f64")
def take_figures(x, enabled, out, size, lo, hi):
    if enabled[0] == 0:
        return
    for k in range(WORDS):
        out[k] = 0
    out[0] = size
    low, high, total, squares = math.inf, -math.inf, 0.0, 0.0
    for i in range(size):
        v = np.float64(x[i])
        if v != v:
            out[1] += 1
        elif v == math.inf:
            out[2] += 1
        elif v == -math.inf:
            out[3] += 1
        else:
            low, high = min(low, v), max(high, v)
            total += v
            squares += v * v
            if v == 0.0:
                out[4] += 1
            else:
                e = ((float_to_bits(v) >> 52) & 2047) - 1023 - LOWEST
                out[FIRST_BIN + min(max(e, 0), BINS - 1)] += 1
    finite = max(size - out[1] - out[2] - out[3], 1)
    out[6] = -1
    out[7], out[8] = float_to_bits(low), float_to_bits(high)
    out[9] = float_to_bits(total / finite)
    out[10] = float_to_bits(squares - total * total / finite)
    out[11] = float_to_bits(squares)


def launches(x: Arg, enabled: Arg, out: Arg, *, filled: bool) -> list[Launch]:
    """The launches that write the record `out` (see `runtime.statistics`) of `x`, unless
    ``enabled[0]`` is 0; ``filled``: whether elements never written hold the NaN payload.
    """
    return [Launch(take_figures, x, enabled, out, x.size, units=1)]
