"""Windows along each axis of a channel: the elements that one of the result is made of.

Tensors are [N, C, …] of up to three axes after the channels; kernels take volumes, other tensors
have axes of one element in front.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.launch import Arg, Scratch
from opstep.runtime.ir.types import i32, i64

Table = tuple[int, ...]
FEW = 8  # elements of a window's row that have a table of their own each
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
        found = []
        for at in range(-before, out * stride - before, stride):
            begin, end = at if at >= 0 else at % step, min(at + step * (taps - 1) + 1, size)
            found.append((begin, max(begin, end)) if begin < size else (0, 0))
        begins, ends = (tuple(part) for part in zip(*found, strict=True)) if found else ((), ())
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
        begins, ends = self.begins, self.ends
        if self.stride:
            starts = [j * self.stride - self.before for j in range(len(begins))]
            begins = [max(0, at) for at in starts]
            ends = [max(0, min(at + self.step * (self.taps - 1) + 1, size)) for at in starts]
        return Terms.ranges(begins, ends, size).transposed(size)


class Terms(NamedTuple):
    """Along one axis, sums: entries ``begins[j] <= e < ends[j]`` are those of element j of the
    result. Entry e is ``weights[e]`` times element ``indices[e]``; the sum is divided by
    ``divisors[j]``. `direct`: ``indices[e]`` is e, and neither begins nor ends fall as j grows.
    """

    begins: Table
    ends: Table
    indices: Sequence[int]
    weights: Sequence[float]
    divisors: Table
    direct: bool = False

    @classmethod
    def of(cls, entries: Sequence[Sequence[tuple[int, float]]]) -> Terms:
        """Of each element of the result: indices with their weights."""
        ends = np.cumsum([0, *map(len, entries)]).tolist()
        flat = [e for each in entries for e in each]
        indices, weights = (tuple(part) for part in zip(*flat, strict=True)) if flat else ((), ())
        return cls(tuple(ends[:-1]), tuple(ends[1:]), indices, weights, (1,) * len(entries))

    @classmethod
    def ranges(
        cls, begins: Iterable[int], ends: Iterable[int], size: int, divisors: int | Table = 1
    ) -> Terms:
        """Sums over neighbours among `size` elements, divided by a number each, or one for all."""
        begins, ends = tuple(begins), tuple(ends)
        if isinstance(divisors, int):
            divisors = (divisors,) * len(ends)
        return cls(begins, ends, range(size), (1.0,) * size, divisors, direct=True)

    def entries(self, j: int) -> list[tuple[int, float]]:
        part = slice(self.begins[j], self.ends[j])
        return list(zip(self.indices[part], self.weights[part], strict=True))

    @property
    def plain(self) -> bool:
        """Whether each entry counts once."""
        return all(w == 1.0 for w in self.weights)

    @property
    def single(self) -> bool:
        """Whether each element of the result is one element, divided or as it is."""
        return self.plain and all(e - b == 1 for b, e in zip(self.begins, self.ends, strict=True))

    @property
    def divided(self) -> bool:
        return any(d != 1 for d in self.divisors)

    @property
    def taps(self) -> int:
        """The most entries that an element has."""
        return max((e - b for b, e in zip(self.begins, self.ends, strict=True)), default=0)

    def transposed(self, size: int) -> Terms:
        """For the derivative: what each of `size` elements gave, to an element once by each sign,
        for infinities by two signs are NaN.
        """
        if self.direct:
            begins = (bisect_right(self.ends, k) for k in range(size))
            ends = (bisect_right(self.begins, k) for k in range(size))
            own, count = {*self.divisors}, len(self.divisors)
            if len(own) == 1:
                return Terms.ranges(begins, ends, count, own.pop())
            shares = tuple(1 / d if d else 0.0 for d in self.divisors)
            return Terms.ranges(begins, ends, count)._replace(weights=shares)
        found: list[dict[tuple[int, bool], float]] = [{} for _ in range(size)]
        for j, divisor in enumerate(self.divisors):
            for k, weight in self.entries(j):
                found[k][j, weight < 0] = found[k].get((j, weight < 0), 0.0) + weight / divisor
        return Terms.of([[(j, weight) for (j, _), weight in own.items()] for own in found])

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
        pairs = zip(self.indices, bits_of(self.weights), strict=True) if whole else ()
        return (*self.begins, *self.ends, *self.divisors, *[n for pair in pairs for n in pair])

    def padded(self, taps: int) -> list[tuple[list[int], list[float]]]:
        """Of each element of the result so many indices and weights; 0 of those that it has not."""
        found = []
        for j in range(len(self.divisors)):
            own = self.entries(j)
            own += [(own[-1][0] if own else 0, 0.0)] * (taps - len(own))
            found.append(([k for k, _ in own], [w for _, w in own]))
        return found


ONE = Terms.ranges((0,), (1,), 1)  # of an axis that is not there
LINE = Span((0,), (1,), 1, 1)


def bits_of(weights: Sequence[float]) -> Table:
    """As kernels take them: the bits of f64."""
    return tuple(np.array(weights, np.float64).view(np.int64).tolist())


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
