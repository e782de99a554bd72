"""What a view of a tensor asks for, as JSON, whoever has the tensor: the debugger's server those
of a run, the language server those of a workspace.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.statistics import LOWEST, Statistics

if TYPE_CHECKING:
    from typing import TypeAlias

    Index: TypeAlias = "tuple[int | slice, ...]"

MOST_BYTES = 48 << 20  # of a slice
MOST_BINS = 4096


class Viewed(Protocol):
    """A tensor to be looked at: on a device, in a workspace, or what an expression gave."""

    @property
    def type(self) -> TensorType: ...

    def array(self) -> np.ndarray:
        """All elements, copied for that."""
        ...

    def part(self, index: Index) -> np.ndarray:
        """Some elements; no more are copied."""
        ...

    def statistics(self) -> Statistics: ...


class HostTensor:
    """An array, to be looked at as a tensor of a device is."""

    __slots__ = ("_array", "_figures", "type")

    def __init__(self, array: np.ndarray):
        self._array = array
        self._figures: Statistics | None = None
        self.type = TensorType(dtype_of(array.dtype), array.shape)

    def array(self) -> np.ndarray:
        return self._array

    def part(self, index: Index) -> np.ndarray:
        return np.asarray(self._array[index])

    def statistics(self) -> Statistics:
        from opstep.runtime.device.cpu.device import statistics_of

        if self._figures is None:
            self._figures = statistics_of(self._array)
        return self._figures


def type_json(tensor: Viewed) -> dict[str, Any]:
    """``type``, ``dtype`` and ``shape``; nothing is copied for that."""
    t = tensor.type
    return {"type": str(t), "dtype": t.dtype.name, "shape": list(t.shape)}


def sliced(tensor: Viewed, most: int | None) -> dict[str, Any]:
    """Elements as bytes in base64, little-endian, the last axis fastest; thinned out by strides
    until there are at most `most`. Raises `InputError`, where that is too much for a message.
    """
    shape = cast("tuple[int, ...]", tensor.type.shape)  # what has elements has no symbols
    steps = strides(shape, most)
    sizes = [-(-n // s) for n, s in zip(shape, steps, strict=True)]
    if prod(sizes) * tensor.type.dtype.itemsize > MOST_BYTES:
        text = f"{tensor.type} is more than {MOST_BYTES:,} bytes: take a part, or maxElements"
        raise InputError(text)
    if max(steps, default=1) > 1:
        array = tensor.part(tuple(slice(None, None, s) for s in steps))
    else:
        array = tensor.array()
    return {
        "dtype": tensor.type.dtype.name,
        "shape": sizes,
        "of": list(shape),
        "steps": steps,
        "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii"),
    }


def strides(shape: tuple[int, ...], most: int | None) -> list[int]:
    """Steps along each axis so that at most so many elements are left; the longest axis is thinned
    out first.
    """
    steps, sizes = [1] * len(shape), list(shape)
    while most is not None and prod(sizes) > most:
        k = sizes.index(max(sizes))
        steps[k] *= 2
        sizes[k] = -(-shape[k] // steps[k])
    return steps


def statistics_json(s: Statistics) -> dict[str, Any]:
    """All figures, and the histogram by exponents of 2."""
    return figures_json(asdict(s)) | {"histogram": list(s.histogram), "lowestExponent": LOWEST}


def figures_json(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures as JSON has them, without what is not known."""
    return {name: figure(value) for name, value in figures.items() if value is not None}


def figure(value: Any) -> Any:
    """A figure as JSON has it: infinities, which norms of large elements may be, as texts."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def histogram(
    tensor: Viewed, bins: int, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """`bins` of equal width over the finite elements, from the least to the greatest if nothing
    else is said; ``finite`` counts all of those. Raises `InputError`, where f64 cannot hold the
    range.
    """
    s = tensor.statistics()
    body = {"type": str(tensor.type), "counts": [], "edges": [], "finite": s.finite}
    low, high = (s.min if low is None else low), (s.max if high is None else high)
    if low is None or high is None:
        return body
    if low > high:
        raise InputError("low is above high")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # it raises by itself, later
            counts, edges = _binned(tensor, bins, float(low), float(high))
    except (ValueError, OverflowError) as error:  # f64 cannot hold the width, or that of a bin
        raise InputError(f"no histogram of this range: {error}") from None
    return body | {"counts": counts.tolist(), "edges": edges.tolist()}


def _binned(tensor: Viewed, bins: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges; of a tensor that counts by itself the elements stay where they are."""
    counts = getattr(tensor, "counts", None)
    if counts is None:
        array = tensor.array().reshape(-1).astype(np.float64)
        return np.histogram(array[np.isfinite(array)], bins, (low, high))
    edges = np.histogram_bin_edges(np.zeros(0), bins, (low, high))
    return counts(bins, float(edges[0]), float(edges[-1])), edges
