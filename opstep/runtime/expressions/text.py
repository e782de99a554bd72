"""How values are written: a tensor in one line, its elements a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.diagnostics import visible
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.statistics import Statistics

FEW = 8  # elements of a vector that are written one by one
PAGE = 100  # children of one range
_LONGEST = 1000  # characters of a text
_COLUMNS = 6  # rows and fields of a table in a line


def value_text(value: Any) -> str:
    """Any result of an expression in one line; of a tensor on a device no more is read than that
    takes.
    """
    if isinstance(value, str):
        shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
        return visible(shown)
    if isinstance(value, (bool, int, float, np.generic)):
        return number_text(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(value_text, value))}]"
    if value is None:
        return "nothing"
    text = getattr(value, "text", None)
    if isinstance(text, str):
        return text
    if isinstance(value, np.ndarray):
        return _array_text(value)
    return _handle_text(value)


def type_text(handle: Any) -> str:
    """``f32[8, 6] over model`` for the whole of what ranks have parts of."""
    return f"{handle.type}{getattr(handle, 'whose', '')}"


def number_text(value: Any) -> str:
    """One element, with as many digits as tell it from its neighbours in its own type."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    return str(value)


def tensor_text(type: TensorType, s: Statistics) -> str:
    """``f32[8, 128]  mean 0.01  std 1.2  min -3.1  max 4.2``; what is not finite comes first,
    ``f32[9]  3 NaN of 9, mean of the rest 0.01  …``; a scalar as its number.
    """
    return f"{type}  {figures_text(type, s)}" if type.shape else _scalar_text(type, s)


def figures_text(type: TensorType, s: Statistics) -> str:
    """``3 NaN of 9, mean of the rest 0.01  …``: the same without the type, of one with dims."""
    if not s.count:
        return "no elements"
    figures = "  ".join(_figures(type, s))
    parts = [", ".join(part for part in (_not_finite(s), figures) if part)]
    if s.unwritten:
        parts.append(f"{s.unwritten:,} unwritten")
    return "  ".join(parts)


def _not_finite(s: Statistics) -> str:
    """``3 NaN, 1 inf of 20``; "" where all is finite."""
    counts = {"NaN": s.nan, "inf": s.posinf, "-inf": s.neginf}
    for name, count in counts.items():
        if count == s.count:
            return f"all {name}"
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{found} of {s.count:,}" if found else ""


def _figures(type: TensorType, s: Statistics) -> list[str]:
    """Mean and others of what is finite."""
    if s.min is None or s.max is None:
        return []
    assert s.mean is not None and s.std is not None
    whole = s.finite == s.count
    if type.dtype.kind == "b":
        return [f"{round(s.mean * s.finite):,} true"]
    if s.min == s.max:
        return [f"{'all' if whole else 'the rest'} {_short_number(s.min)}"]
    of = "" if whole else " of the rest"
    mean, std = f"mean{of} {_short_number(s.mean)}", f"std {_short_number(s.std)}"
    return [mean, std, f"min {_short_number(s.min)}", f"max {_short_number(s.max)}"]


def _scalar_text(type: TensorType, s: Statistics) -> str:
    text = "nan" if s.nan else "inf" if s.posinf else "-inf" if s.neginf else ""
    if not text:
        value = type.dtype.numpy.type(s.min if s.min is not None else 0)
        text = number_text(value)
    return f"{text}  unwritten" if s.unwritten else text


def _short_number(number: float) -> str:
    """Four digits; integers whole."""
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _array_text(array: np.ndarray) -> str:
    if array.ndim == 0:
        return number_text(array[()])
    if array.size <= FEW and 0 not in array.shape:
        return _nested(array)
    from opstep.runtime.device.cpu.device import statistics_of

    type = TensorType(dtype_of(array.dtype), array.shape)
    return tensor_text(type, statistics_of(np.ascontiguousarray(array)))


def _handle_text(handle: Any) -> str:
    type: TensorType = handle.type
    size: Any = prod(type.shape)
    if size and size <= FEW:
        text = _array_text(np.asarray(handle.array()))
        unwritten = handle.statistics().unwritten
        return f"{text}  {unwritten} unwritten" if unwritten else text
    return tensor_text(type, handle.statistics())


def _nested(array: np.ndarray) -> str:
    if array.ndim == 1:
        return f"[{', '.join(map(number_text, array))}]"
    return f"[{', '.join(map(_nested, array))}]"


class Row(NamedTuple):
    """A child of a tensor: `index` along the first axis; `value` an array, or an element."""

    index: int
    value: Any

    @property
    def name(self) -> str:
        return f"[{self.index}]"

    @property
    def text(self) -> str:
        return value_text(self.value)


class Rows:
    """The children of a tensor along its first axis. Of a handle no more is copied than a page."""

    def __init__(self, value: Any):
        self.value = value
        shape = value.shape if isinstance(value, np.ndarray) else value.type.shape
        self.count: int = shape[0] if shape else 0

    def page(self, start: int = 0, count: int = PAGE) -> list[Row]:
        """Children from `start` on, as many as there are."""
        start = max(start, 0)
        stop = min(start + max(count, 0), self.count)
        if stop <= start:
            return []
        places = (slice(start, stop),)
        is_array = isinstance(self.value, np.ndarray)
        array = self.value[places] if is_array else self.value.part(places)
        return [Row(start + k, child) for k, child in enumerate(array)]

    def ranges(self) -> list[tuple[int, int]]:
        """First and last child of each range, no more than `PAGE` in each; ranges of ranges are
        left to who shows them.
        """
        return [(k, min(k + PAGE, self.count) - 1) for k in range(0, self.count, PAGE)]


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
