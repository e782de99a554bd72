"""How convolutions by `cuda_warpgroups` have their operands laid out: images with channels last,
filters in the order in which terms are summed up.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.matmul.cuda_tile import LINE
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    pointer_to,
    store4,
    store8,
    stored_bits,
)
from opstep.runtime.device.source import Intrinsic

THREADS = 256
gather8 = Intrinsic("gather", 8)
_BITS = np.dtype(np.uint16)
_PITCH = LINE + 2  # halves from channel to channel of a tile that is turned: against bank conflicts
_TILE = LINE * _PITCH
_APART = THREADS // LINE  # channels of a pixel that are read together
_HELD = LINE // _APART
gather4 = Intrinsic("gather", 4)


def arrange_filters(
    w, arranged, starts, counts, places, rows, inner, blocks, group_step, row_step, inner_step,
    taps, size,
):  # fmt: skip
    """Lines of blocks of 64 channels, a line for each row of the product, in each block one place
    under the filter after the other: a thread has eight channels of one place, zeros behind the
    last. Place t is number places[t] of the counts[t] in its own array, from starts[t] on; where
    these are none, nobody sees anything through it.
    """
    i = cuda.grid(1)
    if i < size:
        rest = div32(i, taps)
        t = i - rest * taps
        lines = div32(rest, rows)
        row = rest - lines * rows
        group = div32(lines, blocks * 8)
        chunk = lines - group * (blocks * 8)
        seen = stored_bits(offset(w, group * group_step + row * row_step + t))
        held = pointer_to(cuda.local.array(8, _BITS))
        for e in range(8):  # all are on the way before one is waited for
            held[e] = seen[min(chunk * 8 + e, inner - 1) * inner_step]
        for e in range(8):
            held[e] = pick(chunk * 8 + e < inner, held[e], np.uint16(0))
        line = ((group * rows + row) * blocks + chunk // 8) * counts[t] + places[t]
        if counts[t]:
            store8(arranged, starts[t] + line * LINE + chunk % 8 * 8, gather8(held))


def channels_last(
    x, turned, channels, height, width, out_h, out_w, stride_h, stride_w, first_h, first_w, across,
    down,
):  # fmt: skip
    """turned[n, i, j, c] = x[n, c, first + i*stride, ...], or zero outside of the image: a block
    has 64 pixels of 64 channels, which are a multiple of 8.
    """
    tile = pointer_to(cuda.shared.array(_TILE, _BITS))
    held = pointer_to(cuda.local.array(_HELD, _BITS))
    thread = cuda.threadIdx.x
    rest = div32(cuda.blockIdx.x, across)
    pixel0 = (cuda.blockIdx.x - rest * across) * LINE
    image = div32(rest, down)
    channel0 = (rest - image * down) * LINE
    area, plane = out_h * out_w, height * width
    pixel = pixel0 + thread % LINE
    i = div32(pixel, out_w)
    row, column = first_h + i * stride_h, first_w + (pixel - i * out_w) * stride_w
    inside = (pixel < area) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = image * channels * plane + pick(inside, row * width + column, 0)
    seen, first = stored_bits(offset(x, at)), channel0 + thread // LINE
    for c in range(_HELD):  # all are on the way before one is waited for
        held[c] = seen[min(first + c * _APART, channels - 1) * plane]
    for c in range(_HELD):
        bits = pick(inside, held[c], np.uint16(0))
        tile[(thread // LINE + c * _APART) * _PITCH + thread % LINE] = bits
    cuda.syncthreads()
    chunk = thread % 8 * 8
    if channel0 + chunk < channels:
        to = offset(turned, (image * area + pixel0) * channels + channel0 + chunk)
        for p in range(thread // 8, min(LINE, area - pixel0), THREADS // 8):
            for e in range(8):
                held[e] = tile[(chunk + e) * _PITCH + p]
            store8(to, p * channels, gather8(held))


def in_fours_last(w, arranged, channels, taps, places, size):
    """arranged[f, place, c] = w[f, c, place], of filters or of images, with zeros for up to four
    channels and behind the last of `taps` places: a thread a place.
    """
    i = cuda.grid(1)
    if i < size:
        f = div32(i, places)
        place = i - f * places
        seen = stored_bits(offset(w, f * channels * taps + min(place, taps - 1)))
        held = pointer_to(cuda.local.array(4, _BITS))
        for c in range(4):
            held[c] = seen[min(c, channels - 1) * taps]
        for c in range(4):
            held[c] = pick((c < channels) & (place < taps), held[c], np.uint16(0))
        store4(arranged, i * 4, gather4(held))
