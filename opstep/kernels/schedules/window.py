"""Windows along each axis of a channel: the elements that one of the result is made of.

Tensors are [N, C, …] of up to three axes after the channels; kernels take volumes, other tensors
have axes of one element in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.launch import Arg, Scratch
from opstep.runtime.ir.types import i32, i64

Table = tuple[int, ...]
# elements of a window's row that have a table of their own each: those of a cubic gradient by half
# the size, and one of weight 0
FEW = 9
_GRAIN = 65536  # elements of windows under which another lane is not woken


class Span(NamedTuple):
    """Along one axis, windows of which the largest element is looked for: ``begins[j]``, and each
    `step` elements on, below ``ends[j]``.

    Where `stride` is not 0, window j has `taps` places from ``j*stride - before`` on, some of them
    in the padding; else neither begins nor ends fall as j grows.
    """

    begins: Table
    ends: Table
    taps: int
    stride: int = 0
    before: int = 0
    step: int = 1

    @classmethod
    def regular(cls, size: int, out: int, taps: int, stride: int, before: int, step=1) -> Span:
        """`out` windows of `taps` places, the first one beginning `before` an axis of `size`."""
        at = np.arange(out) * stride - before
        begins = np.where(at >= 0, at, at % step)
        ends = np.maximum(begins, np.minimum(at + step * (taps - 1) + 1, size))
        begins, ends = (tuple(np.where(begins < size, a, 0).tolist()) for a in (begins, ends))
        return cls(begins, ends, taps, stride, before, step)

    @classmethod
    def even(cls, size: int, out: int) -> Span:
        """Windows that share an axis: i*size//out to the next one's begin, rounded up."""
        if size % out == 0:
            return cls.regular(size, out, size // out, size // out, 0)
        begins = tuple(i * size // out for i in range(out))
        ends = tuple(-(-(i + 1) * size // out) for i in range(out))
        return cls(begins, ends, max(e - b for b, e in zip(begins, ends, strict=True)))

    def met(self, tap: int, size: int) -> tuple[int, int]:
        """Of regular windows those, from one to another, for which a place is an element."""
        at = self.before - tap * self.step
        return max(0, -(-at // self.stride)), min(len(self.begins), -(-(size + at) // self.stride))

    def around(self, size: int) -> Terms:
        """The windows between whose ends each of `size` elements stands."""
        begins, ends = np.array(self.begins), np.array(self.ends)
        if self.stride:
            begins = np.arange(len(begins)) * self.stride - self.before
            ends = np.minimum(begins + self.step * (self.taps - 1) + 1, size)
        begins, ends = np.maximum(begins, 0), np.maximum(ends, 0)
        return Terms.ranges(begins, ends, size).transposed(size)


class Terms(NamedTuple):
    """Along one axis, sums: entries ``begins[j] <= e < ends[j]`` are those of element j of the
    result. Entry e is ``weights[e]`` times element ``indices[e]``; the sum is divided by
    ``divisors[j]``. `direct`: ``indices[e]`` is e, and neither begins nor ends fall as j grows. A
    weight may be 0: as in PyTorch, 0 times infinity is NaN.
    """

    begins: np.ndarray
    ends: np.ndarray
    indices: np.ndarray
    weights: np.ndarray
    divisors: np.ndarray
    direct: bool = False

    @classmethod
    def of(cls, indices: np.ndarray, weights: np.ndarray) -> Terms:
        """Of each element of the result a row of indices and weights."""
        out, taps = indices.shape
        ends, ones = np.arange(1, out + 1) * taps, np.ones(out, np.int64)
        return cls(ends - taps, ends, indices.reshape(-1), weights.reshape(-1), ones)

    @classmethod
    def listed(cls, entries: Sequence[Sequence[int]]) -> Terms:
        """Of each element of the result the indices of what it sums."""
        ends = np.cumsum([len(own) for own in entries])
        flat = np.array([k for own in entries for k in own], np.int64)
        begins, ones = np.append(0, ends[:-1]), np.ones(len(ends), np.int64)
        return cls(begins, ends, flat, np.ones(len(flat)), ones)

    @classmethod
    def ranges(cls, begins, ends, size: int, divisors=1) -> Terms:
        """Sums over neighbours among `size` elements, divided by a number each, or one for all."""
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        divisors = np.broadcast_to(np.asarray(divisors, np.int64), ends.shape)
        return cls(begins, ends, np.arange(size), np.ones(size), divisors, direct=True)

    def entries(self, j: int) -> list[tuple[int, float]]:
        part = slice(self.begins[j], self.ends[j])
        return list(zip(self.indices[part].tolist(), self.weights[part].tolist(), strict=True))

    @property
    def counts(self) -> np.ndarray:
        """Entries of each element."""
        return self.ends - self.begins

    @property
    def plain(self) -> bool:
        """Whether each entry counts once."""
        return bool((self.weights == 1).all())

    @property
    def single(self) -> bool:
        """Whether each element of the result is one element, divided or as it is."""
        return self.plain and bool((self.counts == 1).all())

    @property
    def divided(self) -> bool:
        return bool((self.divisors != 1).any())

    @property
    def taps(self) -> int:
        """The most entries that an element has."""
        return int(self.counts.max(initial=0))

    def transposed(self, size: int) -> Terms:
        """For the derivative: what each of `size` elements gave, to an element once by each sign
        and once by 0: an infinity by two of these is NaN.
        """
        places, count = np.arange(size), len(self.divisors)
        shares = 1 / np.where(self.divisors == 0, np.inf, self.divisors)
        if self.direct:
            begins, ends = (np.searchsorted(a, places, "right") for a in (self.ends, self.begins))
            if (self.divisors == self.divisors[:1]).all():
                return Terms.ranges(begins, ends, count, self.divisors[:1])
            return Terms.ranges(begins, ends, count)._replace(weights=shares)
        j = np.repeat(np.arange(count), self.counts)
        keys = 3 * (self.indices * count + j) + np.sign(self.weights).astype(np.int64) + 1
        keys, found = np.unique(keys, return_inverse=True)
        weights = np.bincount(found, self.weights * shares[j], len(keys))
        k, j = np.divmod(keys // 3, max(count, 1))
        begins, ends = (np.searchsorted(k, places, side) for side in ("left", "right"))
        return Terms(begins, ends, j, weights, np.ones(size, np.int64))

    def apply(self, x: np.ndarray, axis: int) -> np.ndarray:
        """For oracles: x summed along an axis, term by term."""
        x = np.moveaxis(x, axis, 0)
        y = np.zeros((len(self.divisors), *x.shape[1:]), x.dtype)
        for j, divisor in enumerate(self.divisors):
            for k, weight in self.entries(j):
                y[j] += x[k] * weight
            y[j] /= divisor
        return np.moveaxis(y, 0, axis)

    def table(self, whole: bool = True) -> Table:
        """As kernels take it: begins, ends, divisors; `whole`: then of each entry index, weight."""
        pairs = (
            np.stack([self.indices, self.weights.view(np.int64)], 1) if whole else np.zeros(0, int)
        )
        return tuple(np.concatenate([*self[:2], self.divisors, pairs.reshape(-1)]).tolist())

    def padded(self, taps: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each element of the result a row of so many indices and weights; where it has fewer,
        weights are NaN.
        """
        if not len(self.indices):
            return np.zeros((len(self.ends), taps), np.int64), np.full(
                (len(self.ends), taps), np.nan
            )
        tap, counts = np.arange(taps), self.counts[:, None]
        at = np.clip(self.begins[:, None] + np.minimum(tap, counts - 1), 0, len(self.indices) - 1)
        return self.indices[at], np.where(tap < counts, self.weights[at], np.nan)


ONE = Terms.ranges((0,), (1,), 1)  # of an axis that is not there
LINE = Span((0,), (1,), 1, 1)


def bits_of(weights: np.ndarray) -> Table:
    """As kernels take them: the bits of f64."""
    return tuple(np.ascontiguousarray(weights).view(np.int64).reshape(-1).tolist())


def summed(x: np.ndarray, axes: Sequence[Terms]) -> np.ndarray:
    """For oracles: sums over windows of x [N, C, …]."""
    for axis, terms in enumerate(axes, 2):
        x = terms.apply(x, axis)
    return x


def deep(axes: Sequence, none) -> list:
    """As of a volume: `none` stands for axes that are not there."""
    return [*[none] * (3 - len(axes)), *axes]


def sizes_of(a: Arg) -> tuple[int, int, int]:
    """The sizes of a channel, as of a volume."""
    depth, height, width = (1, 1, *a.shape[2:])[-3:]
    return depth, height, width


def positions(x: Arg, count: int, per_lane: bool = False) -> Scratch:
    """Working memory for so many places in a channel of x."""
    return Scratch(i32 if prod(x.shape[2:]) < 1 << 31 else i64, count, per_lane)


def grain_of(units: int, work: int) -> int:
    return max(1, units * _GRAIN // max(work, 1))
