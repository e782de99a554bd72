"""Images sampled at places that a tensor gives, on CUDA.

A place looks at taps, one pixel or four. What images get back is gathered: taps are sorted by the
pixels that they look at.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from opstep.kernels.conv.cuda_direct import cleared
from opstep.kernels.move.cuda_copying import transposed
from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.cuda_keys import itself
from opstep.kernels.pick.cuda_sort import Rows, sorted_pairs
from opstep.kernels.pick.picking import add_elements
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.pool.sampling import looked_at, nothing_at, weight_of
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import i32

THREADS = 256
_OWN = 16  # channels of a thread, at most
_ENOUGH = 1 << 18  # threads: for more, a thread has more channels
_PLACES = 32  # of a block that sums over channels
_NOWHERE = -1
_SUMS = 4 * THREADS


def sampled(x: Arg, grid: Arg, y: Arg, nearest: bool, padding: int, aligned: bool) -> list[Grid]:
    """y [N, C, H', W']; the caller sees to it that there are few enough elements."""
    channels, samples = x.shape[1], y.shape[2] * y.shape[3]
    own = min(max(1, y.size // _ENOUGH), _OWN, channels)
    size = -(-channels // own) * x.shape[0] * samples
    return [
        Grid(
            *(sampling(1 if nearest else 4), x, grid, y, channels, own, *x.shape[2:], samples),
            *(padding, aligned, size),
            grid=-(-size // THREADS),
            block=THREADS,
        )
    ]


def by_grid(gy: Arg, x: Arg, grid: Arg, ggrid: Arg, padding: int, aligned: bool) -> list[Grid]:
    """ggrid of samples of four taps."""
    samples = gy.shape[2] * gy.shape[3]
    blocks = -(-x.shape[0] * samples // _PLACES)
    sizes = (x.shape[1], *x.shape[2:], samples, padding, aligned, x.shape[0] * samples)
    return [Grid(slopes, gy, x, grid, ggrid, *sizes, grid=blocks, block=THREADS)]


def by_images(
    gy: Arg, grid: Arg, gx: Arg, nearest: bool, padding: int, aligned: bool
) -> list[Grid]:
    """gx [N, C, H, W], with channels last at first."""
    images, channels, height, width = gx.shape
    samples, taps = gy.shape[2] * gy.shape[3], 1 if nearest else 4
    count, highest = images * samples * taps, max(images * height * width, 1) - 1
    if not count:
        return [cleared(gx)]
    last, sums = Scratch(gx.dtype, gy.size), Scratch(gx.dtype, gx.size)
    keys, weights = Scratch(i32, count), Scratch(gx.dtype, count)
    find = Grid(
        *(finding(taps), grid, keys, weights, height, width, samples, padding, aligned),
        *(cuda_segments.without_element(highest, i32), images * samples),
        grid=-(-images * samples // THREADS),
        block=THREADS,
    )
    bits = max(1, highest.bit_length())
    rows = Rows(keys, itself, keys.dtype, bits, 1, count, signed=False)
    sorting, in_order, order = sorted_pairs(rows)
    added = cuda_segments.runs(
        *(add_elements, last, in_order, order, sums, channels),
        columns=cuda_segments.walk((channels,), (1,), (1,)),
        entries=cuda_segments.walk((images * samples, taps), (channels, 0), (channels, 0)),
        scale=weights,
    )
    return [
        *(find, *sorting, transposed(gy, last, images, channels, samples), cleared(sums), *added),
        transposed(sums, gx, images, height * width, channels),
    ]


def within_reach(x: Arg, gy: Arg) -> bool:
    """Whether numbers of 32 bits count elements and taps."""
    return max(x.size, gy.size, 4 * x.shape[0] * gy.shape[2] * gy.shape[3]) < LIMIT // 4


# --- kernels --------------------------------------------------------------------------------------


@cache
def looking(taps: int):
    """(grid, unit, height, width, padding, aligned, pixels, weights): writes where in a plane the
    place `unit` looks, `_NOWHERE` outside, and with which weights.
    """
    nowhere = _NOWHERE

    def look(grid, unit, height, width, padding, aligned, pixels, weights):
        top, left, down, right, _, _ = looked_at(
            grid, unit, height, width, taps == 1, padding, aligned
        )
        for t in range(taps):
            h, w = top + t // 2, left + t % 2
            inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            pixels[t] = h * width + w if inside else nowhere
            weights[t] = weight_of(t, down, right) if taps > 1 else 1.0

    return look


@cache
def sampling(taps: int):
    look = looking(taps)

    def sample_places(
        x, grid, y, channels, own, height, width, samples, padding, aligned, size
    ):  # fmt: skip
        """y, `own` channels of a place a thread."""
        k = cuda.grid(1)
        if k < size:
            chunk = div32(k, samples)
            blocks = div32(channels + own - 1, own)
            image = div32(chunk, blocks)
            q = k - chunk * samples
            first = (chunk - image * blocks) * own
            pixels = cuda.local.array(taps, np.int32)
            weights = pointer_to(cuda.local.array(taps, real))
            unit = image * samples + q
            look(grid, unit, height, width, padding, aligned, pixels, weights)
            nothing = 0.0
            if taps > 1:
                nothing += nothing_at(grid[2 * unit], padding)
                nothing += nothing_at(grid[2 * unit + 1], padding)
            for c in range(first, min(first + own, channels)):
                plane = offset(x, (image * channels + c) * height * width)
                total = nothing
                for t in range(taps):
                    v = plane[max(pixels[t], 0)]
                    total += pick(pixels[t] >= 0, v * weights[t], 0.0)
                y[(image * channels + c) * samples + q] = total

    return sample_places


@cache
def finding(taps: int):
    look = looking(taps)

    def find_taps(
        grid, keys, found, height, width, samples, padding, aligned, nowhere, size
    ):  # fmt: skip
        """The pixels of all images that taps look at, and their weights."""
        unit = cuda.grid(1)
        if unit < size:
            pixels = cuda.local.array(taps, np.int32)
            weights = pointer_to(cuda.local.array(taps, real))
            look(grid, unit, height, width, padding, aligned, pixels, weights)
            image = div32(unit, samples)
            for t in range(taps):
                at = image * height * width + pixels[t]
                keys[unit * taps + t] = at if pixels[t] >= 0 else nowhere
                found[unit * taps + t] = weights[t]

    return find_taps


def slopes(
    gy, x, grid, ggrid, channels, height, width, samples, padding, aligned, size
):  # fmt: skip
    """A block has `_PLACES` places, whose channels its warps share."""
    shared = pointer_to(cuda.shared.array(_SUMS, real))
    at, part = cuda.threadIdx.x % _PLACES, cuda.threadIdx.x // _PLACES
    unit = cuda.blockIdx.x * _PLACES + at
    here = min(unit, size - 1)
    image = div32(here, samples)
    q = here - image * samples
    top, left, down, right, along, across = looked_at(
        grid, here, height, width, False, padding, aligned
    )
    pixels = cuda.local.array(4, np.int32)
    sums = pointer_to(cuda.local.array(4, real))
    for t in range(4):
        h, w = top + t // 2, left + t % 2
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        pixels[t] = h * width + w if inside else _NOWHERE
        sums[t] = 0.0
    for c in range(part, channels, THREADS // _PLACES):
        plane = image * channels + c
        seen = offset(x, plane * height * width)
        g = gy[plane * samples + q]
        for t in range(4):
            sums[t] += pick(pixels[t] >= 0, g * seen[max(pixels[t], 0)], 0.0)
    for t in range(4):
        shared[t * THREADS + cuda.threadIdx.x] = sums[t]
    cuda.syncthreads()
    if part == 0 and unit < size:
        by_column, by_row = np.float64(0), np.float64(0)
        by_column += nothing_at(grid[2 * unit + 1], padding)
        by_row += nothing_at(grid[2 * unit], padding)
        for t in range(4):
            products = np.float64(0)
            for p in range(THREADS // _PLACES):
                products += shared[t * THREADS + p * _PLACES + at]
            if pixels[t] >= 0:
                vertical = down if t // 2 else 1 - down
                horizontal = right if t % 2 else 1 - right
                if across != 0:
                    by_column += products * (vertical if t % 2 else -vertical) * across
                if along != 0:
                    by_row += products * (horizontal if t // 2 else -horizontal) * along
        ggrid[2 * unit] = by_column
        ggrid[2 * unit + 1] = by_row
