"""Interpolations, means and their derivatives on CUDA: see `kernels.pool.resample`.

A thread has a place of the result in some planes: it looks up once which elements it sums there,
and with which weights, and has them in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.pool.resample import ONE, Mix, bits_of, resample
from opstep.runtime.device.builtin import bits_to_float, offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real
from opstep.runtime.device.launch import Arg, Grid, Launch

THREADS = 256
_MOST_ACROSS = 8  # elements of a row that registers have weights for
_MOST_ROWS = 16  # rows of them
_OWN = 16  # planes of a thread, at most
_ENOUGH = 1 << 18  # threads: for more, a thread has more planes


def resampled_on_cuda(
    x: Arg, y: Arg, mixes: Sequence[Mix], skips: bool = True
) -> list[Grid | Launch]:
    """y [N, C, …] from x; `skips`: an element with a weight of 0 is no term of a sum."""
    if not y.size:
        return []
    deep = (ONE,) * (3 - len(mixes)) + tuple(mixes)
    sizes, out = ((1, 1, *a.shape[2:])[-3:] for a in (x, y))
    entries = [[_merged(mix, j, skips) for j in range(n)] for mix, n in zip(deep, out, strict=True)]
    taps = tuple(max(map(len, axis)) for axis in entries)
    planes, area = prod(y.shape[:2]), prod(out)
    few = 0 < taps[0] * taps[1] <= _MOST_ROWS and 0 < taps[2] <= _MOST_ACROSS
    divided = all(divisor for mix in deep for divisor in mix.divisors)
    if not (few and divided and max(area, prod(sizes)) < LIMIT // 2):
        return [*resample(x, y, mixes, each=True)]
    own = min(max(1, planes * area // _ENOUGH), _OWN, planes)
    own = max(own, -(-planes * area // (LIMIT // 2)))
    size = -(-planes // own) * area
    tables = [table for axis, n in zip(entries, taps, strict=True) for table in _tables(axis, n)]
    return [
        Grid(
            *(mixing(*taps, skips), x, y, planes, own, prod(sizes), *sizes[1:], *out, *tables),
            size,
            grid=-(-size // THREADS),
            block=THREADS,
        )
    ]


def _merged(mix: Mix, j: int, merges: bool) -> list[tuple[int, float]]:
    """The terms of element j of the result; of several weights for an element, the sum of those of
    one sign: infinities by two signs are NaN.
    """
    divisor, found = mix.divisors[j] or 1, mix.entries(j)
    if merges:
        weights: dict[tuple[int, bool], float] = {}
        for k, weight in found:
            weights[k, weight < 0] = weights.get((k, weight < 0), 0.0) + weight
        found = [(k, weight) for (k, _), weight in weights.items()]
    return [(k, weight / divisor) for k, weight in found]


def _tables(
    entries: Sequence[Sequence[tuple[int, float]]], taps: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each element of the result so many indices, and the bits of as many weights: 0 of those
    that it has not.
    """
    padded = [[*own, *[(own[-1][0] if own else 0, 0.0)] * (taps - len(own))] for own in entries]
    flat = [entry for own in padded for entry in own]
    return tuple(k for k, _ in flat), bits_of([weight for _, weight in flat])


@cache
def mixing(in_depth: int, in_height: int, in_width: int, skips: bool):
    """The kernel for sums of so many elements along each axis."""
    rows = in_depth * in_height

    def mix_taps(
        x, y, planes, own, volume, height, width, out_d, out_h, out_w, d_indices, d_weights,
        h_indices, h_weights, w_indices, w_weights, size,
    ):  # fmt: skip
        """y, `own` planes a thread."""
        k = cuda.grid(1)
        if k < size:
            line = div32(k, out_w)
            j = k - line * out_w
            above = div32(line, out_h)
            i = line - above * out_h
            first = div32(above, out_d)
            z = above - first * out_d
            columns = cuda.local.array(in_width, np.int32)
            across = pointer_to(cuda.local.array(in_width, real))
            starts = cuda.local.array(rows, np.int32)
            down = pointer_to(cuda.local.array(rows, real))
            for t in range(in_width):
                columns[t] = w_indices[j * in_width + t]
                across[t] = bits_to_float(w_weights[j * in_width + t])
            for t in range(rows):
                d = z * in_depth + t // in_height
                h = i * in_height + t % in_height
                starts[t] = (d_indices[d] * height + h_indices[h]) * width
                down[t] = bits_to_float(d_weights[d]) * bits_to_float(h_weights[h])
            area = out_d * out_h * out_w
            for p in range(first * own, min(first * own + own, planes)):
                source = offset(x, p * volume)
                total = 0.0
                for t in range(rows):
                    row = offset(source, starts[t])
                    part = 0.0
                    for s in range(in_width):
                        v = row[columns[s]]
                        part += (pick(across[s] != 0.0, v, 0.0) if skips else v) * across[s]
                    total += (pick(down[t] != 0.0, part, 0.0) if skips else part) * down[t]
                y[p * area + k - first * area] = total

    return mix_taps
