"""Sums of what elements of each axis have weights for: means and interpolations of any kind, and
their derivatives, which have the same weights the other way round.

An element of the result is the sum of those of x, with the product of the weights that the axes
have for them. Kernels take volumes; other tensors have axes of one element in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.builtin import bits_to_float, offset
from opstep.runtime.device.launch import Arg, Launch, Scratch, thread_a_unit

_GRAIN = 65536  # products under which another lane is not woken


class Mix(NamedTuple):
    """Along one axis: entries ``starts[j] <= e < starts[j + 1]`` say for element j of the result
    which elements it sums, with which weights; what the sum is divided by.
    """

    starts: tuple[int, ...]
    indices: tuple[int, ...]
    weights: tuple[float, ...]
    divisors: tuple[int, ...]

    @classmethod
    def of(cls, entries: Sequence[Sequence[tuple[int, float]]], divisors=None) -> Mix:
        """Of each element of the result: the indices with their weights."""
        starts = np.cumsum([0, *map(len, entries)]).tolist()
        flat = [e for each in entries for e in each]
        indices, weights = (tuple(part) for part in zip(*flat, strict=True)) if flat else ((), ())
        return cls(tuple(starts), indices, weights, tuple(divisors or [1] * len(entries)))

    def entries(self, j: int) -> list[tuple[int, float]]:
        part = slice(self.starts[j], self.starts[j + 1])
        return list(zip(self.indices[part], self.weights[part], strict=True))

    def transposed(self, size: int) -> Mix:
        """For the derivative: what each of `size` elements gave."""
        entries: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for j, divisor in enumerate(self.divisors):
            for k, weight in self.entries(j):
                entries[k].append((j, weight / divisor))
        return Mix.of(entries)

    def apply(self, x: np.ndarray, axis: int) -> np.ndarray:
        """For oracles: x summed along an axis, term by term."""
        x = np.moveaxis(x, axis, 0)
        y = np.zeros((len(self.divisors), *x.shape[1:]), x.dtype)
        for j, divisor in enumerate(self.divisors):
            for k, weight in self.entries(j):
                y[j] += x[k] * weight
            y[j] /= divisor
        return np.moveaxis(y, 0, axis)


def bits_of(weights: Sequence[float]) -> tuple[int, ...]:
    """As kernels take them: the bits of f64."""
    return tuple(np.array(weights, np.float64).view(np.int64).tolist())


ONE = Mix.of([[(0, 1.0)]])


def resampled(x: np.ndarray, mixes: Sequence[Mix]) -> np.ndarray:
    """For oracles: x [N, C, …] with its axes mixed."""
    for axis, mix in enumerate(mixes, 2):
        x = mix.apply(x, axis)
    return x


def resample(x: Arg, y: Arg, mixes: Sequence[Mix], each: bool = False) -> list[Launch]:
    """y [N, C, …] from x; `each`: an element a unit, as a GPU wants it, not a row."""
    if not y.size:
        return []
    missing = 3 - len(mixes)
    mixes = (ONE,) * missing + tuple(mixes)
    weights = [w for mix in mixes for w in mix.weights]
    held = Scratch(x.dtype, len(weights))
    sizes = ((1,) * missing + x.shape[2:], (1,) * missing + y.shape[2:])
    tables = [table for mix in mixes for table in (mix.starts, mix.indices, mix.divisors)]
    args = (held, *(len(mix.weights) for mix in mixes[:2]), *sizes[0], *sizes[1], *tables)
    unpack = Launch(unpack_weights, bits_of(weights), held, units=len(weights), cuda=thread_a_unit)
    if each:
        return [unpack, Launch(mix_each, x, y, *args, units=y.size, cuda=thread_a_unit)]
    line = sizes[0][2]
    units = y.size // sizes[1][2]
    work = len(mixes[2].weights) + line * prod(
        -(-len(mix.weights) // n) for mix, n in zip(mixes[:2], sizes[1][:2], strict=True)
    )
    lines = Scratch(x.dtype, line, per_lane=True)
    grain = max(1, _GRAIN // max(1, work))
    return [unpack, Launch(mix_rows, x, y, lines, lines.size, *args, units=units, grain=grain)]


def unpack_weights(bits, weights, lo, hi):
    for k in range(lo, hi):
        weights[k] = bits_to_float(bits[k])


def mix_rows(
    x, y, lines, apart, weights, of_depth, of_height, depth, height, width, out_d, out_h, out_w,
    d_starts, d_indices, d_divisors, h_starts, h_indices, h_divisors, w_starts, w_indices,
    w_divisors, lo, hi, lane,
):  # fmt: skip
    """A unit is a row of y."""
    mixed = offset(lines, lane * apart)
    h_weights = offset(weights, of_depth)
    w_weights = offset(weights, of_depth + of_height)
    for unit in range(lo, hi):
        i = unit % out_h
        z = unit // out_h % out_d
        source = offset(x, unit // out_h // out_d * depth * height * width)
        for w in range(width):
            mixed[w] = 0
        for d in range(d_starts[z], d_starts[z + 1]):
            for h in range(h_starts[i], h_starts[i + 1]):
                row = offset(source, (d_indices[d] * height + h_indices[h]) * width)
                weight = weights[d] * h_weights[h]
                for w in range(width):
                    mixed[w] += row[w] * weight
        for j in range(out_w):
            total = 0.0
            for w in range(w_starts[j], w_starts[j + 1]):
                total += mixed[w_indices[w]] * w_weights[w]
            y[unit * out_w + j] = total / (d_divisors[z] * h_divisors[i] * w_divisors[j])


def mix_each(
    x, y, weights, of_depth, of_height, depth, height, width, out_d, out_h, out_w, d_starts,
    d_indices, d_divisors, h_starts, h_indices, h_divisors, w_starts, w_indices, w_divisors, lo, hi,
):  # fmt: skip
    """A unit is an element of y."""
    h_weights = offset(weights, of_depth)
    w_weights = offset(weights, of_depth + of_height)
    for unit in range(lo, hi):
        j = unit % out_w
        i = unit // out_w % out_h
        z = unit // out_w // out_h % out_d
        source = offset(x, unit // out_w // out_h // out_d * depth * height * width)
        total = 0.0
        for d in range(d_starts[z], d_starts[z + 1]):
            for h in range(h_starts[i], h_starts[i + 1]):
                row = offset(source, (d_indices[d] * height + h_indices[h]) * width)
                weight = weights[d] * h_weights[h]
                for w in range(w_starts[j], w_starts[j + 1]):
                    total += row[w_indices[w]] * (weight * w_weights[w])
        y[unit] = total / (d_divisors[z] * h_divisors[i] * w_divisors[j])
