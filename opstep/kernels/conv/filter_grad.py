"""The kernel behind the derivative of convolutions by their filters.

Each number of a filter's gradient is a sum over all output pixels of all images. Pixels are laid
out as for the convolution itself (see `correlation`), so both factors are contiguous along the sum.
"""

from __future__ import annotations

from typing import NamedTuple

from opstep.kernels.conv import filter_grad_channels
from opstep.kernels.conv.correlation import (
    Geometry,
    buffer_slots,
    count_slots,
    depth_sizes,
    lay_out_rows,
)
from opstep.kernels.matmul.products import add_parts
from opstep.runtime.device.builtin import inner_tile_4x6, offset
from opstep.runtime.device.launch import Arg, Launch, Scratch

_BUFFER = 48 * 1024  # bytes of image laid out at a time
_UNITS = 16
_MANY = 8  # filters and channels that fill register tiles
_GRAIN = 1 << 20


class _Cut(NamedTuple):
    """What is laid out at a time (output rows, columns, channels); a unit's filters and images."""

    rows: int
    columns: int
    channels: int
    filters: int
    images: int


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Launch]:
    """gw [groups*K, C, R, S] from gy [N, groups*K, H', W'] and x [N, groups*C, H, W]."""
    if not gy.size:
        return [Launch(clear, gw, units=gw.size)]
    if min(gw.shape[0] // groups, gw.shape[1]) >= _MANY:
        return filter_grad_channels.filter_gradients(gy, x, gw, groups, g)
    images, filters = x.shape[0] * g.depth.out, gw.shape[0] // groups
    channels = gw.shape[1] * len(g.depth.places)
    copies, taps = len(g.columns), len(g.rows) * len(g.columns)
    work = 2 * gy.size * channels * taps
    cut = _cut(g, images, channels, filters, groups, work, x.dtype.itemsize)
    slots, starts = buffer_slots(g, cut.rows)
    pitch = len(slots) * cut.columns
    table = tuple(
        (c * copies + s) * pitch + starts[r] * cut.columns
        for c in range(cut.channels)
        for r in range(len(g.rows))
        for s in range(copies)
    )
    parts = -(-images // cut.images)
    sums = Scratch(gw.dtype, parts * gw.size) if parts > 1 else gw
    lane = -(-cut.channels * copies * pitch // 64) * 64
    units = parts * groups * -(-channels // cut.channels) * -(-filters // cut.filters)
    launches = [
        Launch(
            *(spread_over_filters, gy, x, sums, Scratch(x.dtype, lane, per_lane=True), lane),
            *(table, g.columns, slots, copies, len(slots), taps),
            *(images, channels, filters, groups, *x.shape[-2:], *g.out, *g.stride),
            *(*depth_sizes(x, g), *cut),
            units=units,
            grain=max(1, units * _GRAIN // max(work, 1)),
        )
    ]
    if parts > 1:
        units = -(-gw.size // 64)
        launches.append(Launch(add_parts, sums, x, gw, gw.size, parts, False, units=units))
    return launches


def _cut(
    g: Geometry, images: int, channels: int, filters: int, groups: int, work: int, itemsize: int
) -> _Cut:
    budget = _BUFFER // itemsize // len(g.columns)
    rows, columns, some = g.out[0], g.out[1], 1
    if columns * count_slots(g, 1) > budget:
        rows, columns = 1, max(16, budget // count_slots(g, 1))
    else:
        while rows > 1 and columns * count_slots(g, rows) > budget:
            rows = -(-rows // 2)
        room = budget // (columns * count_slots(g, rows))
        some = -(-channels // -(-channels // max(1, min(room, channels))))
    pieces = groups * -(-channels // some)
    block = filters
    while pieces * -(-filters // block) < _UNITS and block > 32:
        block = -(-block // 8) * 4
    # few filters: the images are shared out as well, and what the parts give is added up
    units = pieces * -(-filters // block)
    parts = max(1, min(images, _UNITS // units, 4 * work // _GRAIN))
    return _Cut(rows, columns, some, block, -(-images // parts))


def clear(y, lo, hi):
    for i in range(lo, hi):
        y[i] = 0


def spread_over_filters(
    gy, x, gw, buffers, lane_size, table, shifts, slots, copies, slot_count, taps, images,
    channels, filters, groups, height, width, out_h, out_w, stride_h, stride_w, depths, depth_taps,
    depth, out_d, stride_d, row_block, column_block, channel_block, filter_block, image_block, lo,
    hi, lane,
):  # fmt: skip
    buffer = offset(buffers, lane * lane_size)
    channel_blocks = (channels + channel_block - 1) // channel_block
    filter_blocks = (filters + filter_block - 1) // filter_block
    pixels = out_h * out_w
    for unit in range(lo, hi):
        c0 = unit % channel_blocks * channel_block
        rest = unit // channel_blocks
        f0 = rest % filter_blocks * filter_block
        rest = rest // filter_blocks
        group = rest % groups
        part = rest // groups
        n0 = part * image_block
        image_count = min(image_block, images - n0)
        sums = offset(gw, part * groups * filters * channels * taps)
        some = min(channel_block, channels - c0)
        mode = 0
        for image in range(image_count * ((out_h + row_block - 1) // row_block)):
            n = (n0 + image % image_count) // out_d
            z = (n0 + image % image_count) % out_d
            i0 = image // image_count * row_block
            planes_before = (n * groups + group) * (channels // depth_taps) * depth
            source = offset(x, planes_before * height * width)
            for j0 in range(0, out_w, column_block):
                count = min(column_block, out_w - j0)
                lay_out_rows(
                    source, buffer, c0, c0 + some, depths, depth_taps, depth, z * stride_d,
                    height, width, shifts, copies, slots, slot_count, i0 * stride_h,
                    j0 * stride_w, column_block, stride_w,
                )  # fmt: skip
                if column_block == out_w:
                    count = min(row_block, out_h - i0) * out_w
                plane = ((n * groups + group) * filters + f0) * out_d + z
                add_products(
                    offset(gy, plane * pixels + i0 * out_w + j0), buffer, table,
                    offset(sums, ((group * filters + f0) * channels + c0) * taps),
                    count, out_d * pixels, min(filter_block, filters - f0), some * taps,
                    channels * taps, mode,
                )  # fmt: skip
                mode = 1


def add_products(gy, buffer, table, gw, count, pixels, filters, taps, pitch, mode):
    """gw[f, t] += sum over p < count of gy[f, p] * buffer[table[t] + p]; = instead in mode 0."""
    for t in range(0, taps, 6):
        for f in range(0, filters, 4):
            inner_tile_4x6(
                count, offset(gy, f * pixels), pixels, buffer, offset(table, t),
                offset(gw, f * pitch + t), pitch, 1, mode, gw, filters - f, taps - t,
            )  # fmt: skip
