"""Maxima of the spans of adaptive pooling on CUDA: a few neighbouring threads a span, which read
its elements side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.runtime.device.cuda.compiling.names import cuda, div32, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid

THREADS = 128  # of a block
LANES = 32  # threads of a span, at most
EACH = 8  # elements of a span that are worth a thread


def highest_of_spans(
    x: Arg, y: Arg, indices: Arg, sizes: Sequence[int], out: Sequence[int], tables: Sequence
) -> Grid:
    """`sizes`, `out`: of a channel of x and y, three each; `tables`: where spans begin and end."""
    lanes = 1
    while lanes < LANES and lanes * EACH * y.size < x.size:
        lanes *= 2
    kind: Any = np.int64
    if x.dtype.is_float:
        kind = np.float64 if x.dtype.itemsize == 8 else np.float32
    kernel = highest_kernel(lanes, kind, floor_quotient if x.size >= LIMIT else div32)
    args = (x, y, indices, y.size, *sizes, *out, *tables)
    return Grid(kernel, *args, grid=-(-y.size * lanes // THREADS), block=THREADS)


@cache
def highest_kernel(lanes: int, kind: Any, quotient: Callable) -> Callable:
    def highest_of_spans(
        x, y, indices, n, depth, height, width, out_d, out_h, out_w, d_begins, d_ends, h_begins,
        h_ends, w_begins, w_ends,
    ):  # fmt: skip
        unit = cuda.grid(1) // lanes
        lane = np.int64(cuda.threadIdx.x % lanes)
        there = min(unit, n - 1)
        above = quotient(there, out_w)
        j = there - above * out_w
        volume = quotient(above, out_h)
        i = above - volume * out_h
        channel = quotient(volume, out_d)
        z = volume - channel * out_d
        base = channel * depth * height * width
        across, down = w_ends[j] - w_begins[j], h_ends[i] - h_begins[i]
        found = (d_begins[z] * height + h_begins[i]) * width + w_begins[j]
        highest = kind(x[base + found])
        for k in range(lane, (d_ends[z] - d_begins[z]) * down * across, lanes):
            line = quotient(k, across)
            d = quotient(line, down)
            h = h_begins[i] + line - d * down
            at = ((d_begins[z] + d) * height + h) * width + w_begins[j] + k - line * across
            v = kind(x[base + at])
            if v > highest or v != v:
                found = at
                highest = v
        step = lanes // 2
        while step > 0:  # the first of the largest, or the last NaN
            v, at = shuffle_xor(highest, step), shuffle_xor(found, step)
            if (
                v > highest
                or (v == highest and at < found)
                or (v != v and (highest == highest or at > found))
            ):
                found = at
                highest = v
            step //= 2
        if unit < n and lane == 0:
            y[unit] = highest
            indices[unit] = found

    return highest_of_spans
