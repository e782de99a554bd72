"""Numbers, places and counts in few characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.runtime.expressions.text import number_text

_BARS = "▁▂▃▄▅▆▇█"


def rounded_text(value: Any) -> str:
    """A number in a sentence: floats to six digits."""
    if isinstance(value, float | np.float64):
        return f"{float(value):.6g}"
    return number_text(value)


def index_text(index: Sequence[int]) -> str:
    """``[3, 17]``"""
    return f"[{', '.join(map(str, index))}]"


def bars(counts: Any) -> str:
    """Counts as a row of bars, at most 64."""
    counts = np.asarray(counts, np.float64)
    if counts.size > 64:
        edges = np.linspace(0, counts.size, 65).astype(int)
        counts = np.add.reduceat(counts, edges[:-1])
    top = counts.max(initial=0)
    if not top:
        return _BARS[0] * counts.size
    return "".join(_BARS[int(n / top * 7.999)] if n else " " for n in counts)
