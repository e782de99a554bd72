"""Sums over windows on CUDA.

Where windows are small, a thread has a place of the result, or a few side by side, in some
channels: it looks up once which elements it sums there, and with which weights, and has them in
registers. Else a thread has an element of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.kernels.schedules.window import FEW, ONE, Terms, bits_of, deep, sizes_of
from opstep.runtime.device.builtin import bits_to_float, offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real, store4
from opstep.runtime.device.launch import Arg, Grid, Scratch

THREADS = 256
_MOST_ROWS = (
    25  # of a small window: those of a trilinear gradient by half the size, some of weight 0
)
_MOST = 27  # elements of one without weights
_OWN = 16  # channels of a thread, at most
_ENOUGH = 1 << 18  # threads: for more, a thread has more channels
_RUN = 4  # neighbours of a thread where rows of windows have one or two elements


def sums(x: Arg, y: Arg, axes: Sequence[Terms]) -> list[Grid]:
    """y, weighted sums over windows of x, divided."""
    if not y.size:
        return []
    axes, sizes, out = deep(axes, ONE), sizes_of(x), sizes_of(y)
    taps, area, channels = tuple(a.taps for a in axes), prod(out), prod(y.shape[:2])
    few = 0 < taps[0] * taps[1] <= _MOST_ROWS and 0 < taps[2] <= FEW
    few = few and (prod(taps) <= _MOST or not all(a.direct and a.plain for a in axes))
    divided = all(a.divisors.all() for a in axes)
    if not (few and divided and max(area, prod(sizes)) < LIMIT // 2):
        return sums_of_entries(x, y, axes)
    run = _RUN if taps[2] <= 2 and out[2] % _RUN == 0 else 1
    own = min(max(1, channels * area // (_ENOUGH * run)), _OWN, channels)
    own = max(own, -(-channels * area // (LIMIT // 2)))
    size = -(-channels // own) * area // run
    even = all((a.counts == n).all() for a, n in zip(axes, taps, strict=True))
    kernel = sum_of_few(*taps, run, even, all(a.single and not a.divided for a in axes))
    tables = [table for a, n in zip(axes, taps, strict=True) for table in _padded(a, n)]
    args = (x, y, channels, own, prod(sizes), *sizes[1:], *out, *tables, size)
    return [Grid(kernel, *args, grid=-(-size // THREADS), block=THREADS)]


def _padded(terms: Terms, taps: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices and the bits of weights of each element of the result."""
    indices, weights = terms.padded(taps)
    return tuple(indices.reshape(-1).tolist()), bits_of(weights / terms.divisors[:, None])


def sums_of_entries(
    x: Arg, y: Arg, axes: Sequence[Terms], places: Scratch | None = None
) -> list[Grid]:
    """The same of any windows. With `places` an element of x counts where its place is that of the
    sum in its channel.
    """
    if not y.size:
        return []
    axes, sizes = deep(axes, ONE), sizes_of(x)
    quotient = div32 if max(x.size, y.size) < LIMIT else floor_quotient
    runs = all(a.direct and a.plain for a in axes)
    kernel = sum_of_entries(quotient, runs, places is not None)
    args = (x, places or Scratch(x.dtype, 1), y, y.size, *sizes, *sizes_of(y))
    tables = (a.table(not runs) for a in axes)
    return [Grid(kernel, *args, *tables, grid=-(-y.size // THREADS), block=THREADS)]


@cache
def sum_of_few(
    in_depth: int, in_height: int, in_width: int, run: int, even: bool, single: bool
) -> Callable:
    """The kernel for sums of so many elements along each axis; `even`: none has fewer, for which
    weights are NaN; `single`: of one, as it is.
    """
    rows = in_depth * in_height
    held = in_width * run

    def sum_of_few(
        x, y, channels, own, volume, height, width, out_d, out_h, out_w, d_indices, d_weights,
        h_indices, h_weights, w_indices, w_weights, size,
    ):  # fmt: skip
        k = cuda.grid(1)
        if k < size:
            line = div32(k * run, out_w)
            j = k * run - line * out_w
            above = div32(line, out_h)
            i = line - above * out_h
            first = div32(above, out_d)
            z = above - first * out_d
            columns = cuda.local.array(held, np.int32)
            across = pointer_to(cuda.local.array(held, real))
            starts = cuda.local.array(rows, np.int32)
            down = pointer_to(cuda.local.array(rows, real))
            sums = pointer_to(cuda.local.array(run, real))
            for t in range(held):
                columns[t] = w_indices[j * in_width + t]
                across[t] = bits_to_float(w_weights[j * in_width + t])
            for t in range(rows):
                d = z * in_depth + t // in_height
                h = i * in_height + t % in_height
                starts[t] = (d_indices[d] * height + h_indices[h]) * width
                down[t] = bits_to_float(d_weights[d]) * bits_to_float(h_weights[h])
            area = out_d * out_h * out_w
            for p in range(first * own, min(first * own + own, channels)):
                source = offset(x, p * volume)
                for q in range(run):
                    total = 0.0
                    for t in range(rows):
                        row = offset(source, starts[t])
                        part = 0.0
                        for s in range(q * in_width, q * in_width + in_width):
                            more = part + row[columns[s]] * across[s]
                            part = more if even else pick(across[s] == across[s], more, part)
                        more = total + part * down[t]
                        total = more if even else pick(down[t] == down[t], more, total)
                    if single:
                        total = source[starts[0] + columns[q]]
                    sums[q] = total
                at = p * area + k * run - first * area
                if run == 1:
                    y[at] = sums[0]
                else:
                    store4(y, at, (sums[0], sums[1], sums[2], sums[3]))

    return sum_of_few


@cache
def sum_of_entries(quotient: Callable, runs: bool, picks: bool) -> Callable:
    """The kernel for any sums; `runs`: of neighbours, each of which counts once."""

    def entry(table, count, e):
        if runs:
            return e, 1.0
        return table[3 * count + 2 * e], bits_to_float(table[3 * count + 2 * e + 1])

    def sum_of_entries(
        x, places, y, size, depth, height, width, out_d, out_h, out_w, deep, high, wide
    ):  # fmt: skip
        k = cuda.grid(1)
        if k < size:
            line = quotient(k, out_w)
            above = quotient(line, out_h)
            channel = quotient(above, out_d)
            j, i, z = k - line * out_w, line - above * out_h, above - channel * out_d
            here = k - channel * out_d * out_h * out_w
            total = 0.0
            for d in range(deep[z], deep[out_d + z]):
                at_d, by_d = entry(deep, out_d, d)
                for h in range(high[i], high[out_h + i]):
                    at_h, by_h = entry(high, out_h, h)
                    row = ((channel * depth + at_d) * height + at_h) * width
                    part = 0.0
                    for w in range(wide[j], wide[out_w + j]):
                        at_w, weight = entry(wide, out_w, w)
                        v = x[row + at_w]
                        if picks:
                            v = pick(places[row + at_w] == here, v, 0.0)
                        part += v * weight
                    total += part * (by_d * by_h)
            count = deep[2 * out_d + z] * high[2 * out_h + i] * wide[2 * out_w + j]
            y[k] = total / real(count)

    return sum_of_entries
