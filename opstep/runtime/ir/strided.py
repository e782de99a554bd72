"""Elements of a tensor by strides: what ops that only move elements give, before they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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

    def along(self, axis: int, start: int, count: int, step: int = 1) -> Strided:
        """So many of an axis, from one index on."""
        shape, strides = list(self.shape), list(self.strides)
        first = self.start + start * strides[axis]
        shape[axis], strides[axis] = count, step * strides[axis]
        return Strided(first, tuple(shape), tuple(strides))

    def without(self, axis: int) -> Strided:
        """The elements at index 0 of an axis."""
        keep = [a for a in range(len(self.shape)) if a != axis]
        return self.permuted(keep)

    def permuted(self, axes: Sequence[int]) -> Strided:
        shape, strides = (tuple(of[a] for a in axes) for of in (self.shape, self.strides))
        return Strided(self.start, shape, strides)

    def reshaped(self, shape: Sequence[int]) -> Strided | None:
        """The same elements in the same order; None where no strides say which."""
        merged: list[tuple[int, int]] = []  # (extent, stride), each as long as it can be
        for n, step in zip(self.shape, self.strides, strict=True):
            if n == 1:
                continue
            if merged and merged[-1][1] == n * step:
                merged[-1] = (merged[-1][0] * n, step)
            else:
                merged.append((n, step))
        strides, left, step = [], 1, 0
        for n in reversed(shape):
            if n == 1:
                strides.append(0)
                continue
            if left == 1 and merged:
                left, step = merged.pop()
            if n == 0 or left % n:
                return None
            strides.append(step)
            left, step = left // n, step * n
        return Strided(self.start, tuple(shape), tuple(reversed(strides)))
