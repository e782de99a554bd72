"""Elements of a tensor by strides: what ops that only move elements give, before they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod
from typing import NamedTuple


class Untellable(Exception):
    """No strides say which elements these are."""


class Strided(NamedTuple):
    """A tensor of that shape whose element i is element ``start + sum(i * strides)`` of memory."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Strided:
        """All of a tensor, row by row."""
        strides, step = [], 1
        for n in reversed(shape):
            strides.append(step)
            step *= n
        return cls(0, tuple(shape), tuple(reversed(strides)))


Factors = tuple[tuple[int, int], ...]  # (extent, stride) of each, the slowest first


class Places(NamedTuple):
    """Where the elements of a tensor are: as `Strided` has it, but that an axis may be walked by
    several strides. So a reshape that puts two axes together which do not follow each other in
    memory can be told, and undone by another.
    """

    start: int
    axes: tuple[Factors, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Places:
        """All of a tensor, row by row."""
        return cls.of(Strided.whole(shape))

    @classmethod
    def of(cls, view: Strided) -> Places:
        pairs = zip(view.shape, view.strides, strict=True)
        return cls(view.start, tuple((pair,) for pair in pairs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(n for n, _ in axis) for axis in self.axes)

    def strided(self) -> Strided | None:
        """The same by one stride an axis, where that can be."""
        axes = [_merged(axis) for axis in self.axes]
        if any(len(axis) > 1 for axis in axes):
            return None
        strides = tuple(axis[0][1] if axis else 0 for axis in axes)
        return Strided(self.start, self.shape, strides)

    def along(self, axis: int, start: int, count: int, step: int = 1) -> Places:
        """So many of an axis, from one index on. Raises `Untellable`."""
        factors = self.axes[axis]
        if (start, count, step) == (0, self.shape[axis], 1):
            return self
        (_, stride), *others = factors
        inner = prod(n for n, _ in others)
        if others and (step != 1 or start % inner or count % inner):
            raise Untellable
        first = (count // inner, step * stride)
        axes = (*self.axes[:axis], (first, *others), *self.axes[axis + 1 :])
        return Places(self.start + start // inner * stride, axes)

    def without(self, axis: int) -> Places:
        """The elements at index 0 of an axis."""
        return self.permuted([a for a in range(len(self.axes)) if a != axis])

    def permuted(self, axes: Sequence[int]) -> Places:
        return Places(self.start, tuple(self.axes[a] for a in axes))

    def diagonal(self, a: int, b: int, first: int, second: int) -> Places:
        """Where axes a and b have indices that grow together, from these on; the new axis is the
        last. Raises `Untellable`.
        """
        one, other = _merged(self.axes[a]), _merged(self.axes[b])
        if len(one) > 1 or len(other) > 1:
            raise Untellable
        steps = [axis[0][1] if axis else 0 for axis in (one, other)]
        count = max(0, min(self.shape[a] - first, self.shape[b] - second))
        start = self.start + first * steps[0] + second * steps[1]
        rest = (axis for k, axis in enumerate(self.axes) if k not in (a, b))
        return Places(start, (*rest, ((count, sum(steps)),)))

    def reshaped(self, shape: Sequence[int]) -> Places:
        """The same elements in the same order. Raises `Untellable`."""
        left = _merged(pair for axis in self.axes for pair in axis)
        axes: list[Factors] = []
        for n in reversed(shape):
            taken: list[tuple[int, int]] = []
            while n != 1:
                size, step = left.pop() if left else (1, 0)
                part = gcd(size, n)
                if part in (0, 1):
                    raise Untellable
                taken.append((part, step))
                if size != part:
                    left.append((size // part, step * part))
                n //= part
            axes.append(tuple(reversed(taken)) or ((1, 0),))
        return Places(self.start, tuple(reversed(axes)))


def _merged(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Factors, each as long as it can be."""
    merged: list[tuple[int, int]] = []
    for n, step in pairs:
        if n == 1:
            continue
        if merged and merged[-1][1] == n * step:
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    return merged
