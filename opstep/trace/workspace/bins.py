"""Histograms as the table holds them: the exponent of the first bin in use, and JSON."""

from __future__ import annotations

import numpy as np

from opstep.runtime.ir.types import i64
from opstep.runtime.statistics import BINS, LOWEST

_COMMA, _SPACE, _OPEN, _CLOSE, _ZERO = 44, 32, 91, 93, 48


def write_histograms(bins, stride, out, ends, lowest, lo, hi):
    """Rows lo..hi, one behind the other: the texts, where each ends, and its first bin or -1."""
    at = 0
    for row in range(lo, hi):
        first, last = -1, -1
        for k in range(BINS):
            if bins[row * stride + k] != 0:
                last = k
                first = k if first < 0 else first
        lowest[row] = first
        if first >= 0:
            out[at] = np.uint8(_OPEN)
            at += 1
            for k in range(first, last + 1):
                if k > first:
                    out[at] = np.uint8(_COMMA)
                    out[at + 1] = np.uint8(_SPACE)
                    at += 2
                number = bins[row * stride + k]
                size, power = 1, 10
                while size < 19 and number >= power:
                    size += 1
                    power *= 10
                for i in range(size):
                    out[at + size - 1 - i] = np.uint8(_ZERO + number % 10)
                    number = number // 10
                at += size
            out[at] = np.uint8(_CLOSE)
            at += 1
        ends[row] = at


def histograms(bins: np.ndarray) -> tuple[list[int | None], list[str | None]]:
    """Of i64[n, BINS], whose rows may stand apart: exponents of the first bins that are not empty,
    and the bins from there to the last, as JSON; None where all are.
    """
    from opstep.runtime.device.cpu import jit, native

    count = len(bins)
    if not count:
        return [], []
    longest = len(str(bins.max())) + 2
    out = np.empty(count * (BINS * longest + 2), np.uint8)
    ends, lowest = np.empty(count, np.int64), np.empty(count, np.int64)
    words = [bins.ctypes.data, bins.strides[0] // 8, out.ctypes.data, ends.ctypes.data]
    arguments = np.array([*words, lowest.ctypes.data], np.int64)
    entry = jit.address(write_histograms, ("*i64", "i", "*u8", "*i64", "*i64"), i64, True)
    native.call(entry, arguments.ctypes.data, 0, count)
    text = out[: ends[-1]].tobytes().decode()
    stops = ends.tolist()
    texts = [text[a:b] or None for a, b in zip([0, *stops], stops, strict=False)]
    return [None if k < 0 else k + LOWEST for k in lowest.tolist()], texts
