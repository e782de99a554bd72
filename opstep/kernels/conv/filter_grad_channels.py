"""The derivative of convolutions by their filters, where channels are many enough for vectors.

Each lane lays out what some output pixels see of a panel of channels: pixel by pixel, the channels
of each behind each other. A tap (a place of the filter) then is an offset, and its part of the
gradient is a matrix product, filters by channels, whose sum runs over pixels. To keep its rounding
small a sum over many pixels is cut into parts, which are added up in order.
"""

from __future__ import annotations

from opstep.kernels.conv.correlation import (
    Geometry,
    buffer_slots,
    count_slots,
    depth_sizes,
    plane_of,
)
from opstep.kernels.matmul.products import OVERREAD, PANEL, clear_ends, transpose
from opstep.runtime.device.builtin import clear_run, offset, outer_tile_8, vector_length
from opstep.runtime.device.launch import Arg, Launch, Scratch

_BUFFER = 512 * 1024  # bytes of image laid out at a time: of the second-level cache
_PIXELS = 128  # summed at a time: what they see of a panel stays in the first-level cache
_TERMS = 8192  # of one sum
_UNITS = 16
_BLOCK = 64
_GRAIN = 1 << 20  # floating-point operations under which another lane is not woken


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Launch]:
    """gw [groups*K, C, R, S] from gy [N, groups*K, H', W'] and x [N, groups*C, H, W]."""
    filters, channels = gw.shape[0] // groups, gw.shape[1] * len(g.depth.places)
    panel = PANEL // gw.dtype.itemsize
    taps, (out_h, out_w) = len(g.rows) * len(g.columns), g.out
    images = x.shape[0] * g.depth.out
    span = max(g.columns) - min(g.columns) + 1
    columns = min(out_w, 4 * _PIXELS)
    line = (columns - 1) * g.stride[1] + span
    rows = 1
    if columns == out_w:
        room = _BUFFER // (line * PANEL)
        rows = out_h
        while rows > 1 and count_slots(g, rows) > room:
            rows = -(-rows // 2)
    at_once = max(1, min(rows, _PIXELS // columns))
    slots, starts = buffer_slots(g, rows)
    offsets = tuple(
        (start * line + column - min(g.columns)) * panel for start in starts for column in g.columns
    )
    places = tuple(
        (i * line + j * g.stride[1]) * panel for i in range(at_once) for j in range(columns)
    )
    chunks = images * -(-out_h // rows) * -(-out_w // columns)
    panels = groups * -(-channels // panel)
    block = filters
    while panels * -(-filters // block) < _UNITS and block > 64:
        block = -(-block // 16) * 8
    units = panels * -(-filters // block)
    room = max(1, max(x.size, gy.size) // gw.size)
    wanted = max(-(-_UNITS // units), -(-images * out_h * out_w // _TERMS))
    some = -(-chunks // min(chunks, wanted, room))
    parts = -(-chunks // some)
    units *= parts
    straight = parts == taps == 1
    sums = gw if straight else Scratch(gw.dtype, parts * gw.size)
    lane = -(-(len(slots) * line * PANEL + OVERREAD) // (64 * gw.dtype.itemsize)) * 64
    work = 2 * gy.size * (gw.size // gw.shape[0])
    launches = [
        Launch(
            *(spread_over_channels, gy, x, sums),
            *(Scratch(gw.dtype, lane, per_lane=True), lane),
            *(offsets, places, slots, taps, len(slots), chunks, some, panel, block),
            *(filters, channels, groups, *x.shape[-2:], out_h, out_w, *g.stride),
            *(min(g.columns), line, *depth_sizes(x, g), rows, at_once, columns),
            units=units,
            grain=max(1, units * _GRAIN // max(work, 1)),
        )
    ]
    if not straight:
        width = gw.size // taps
        units = -(-width // _BLOCK)
        launches.append(Launch(collect, sums, gw, parts, taps, width, units=units, grain=16))
    return launches


def spread_over_channels(
    left, image, sums, buffers, lane_size, offsets, places, slots, taps, slot_count, chunks, some,
    panel, block, filters, channels, groups, height, width, out_h, out_w, stride_h, stride_w, first,
    line, depths, depth_taps, depth, out_d, stride_d, row_block, at_once, column_block, lo, hi,
    lane,
):  # fmt: skip
    """sums [part, tap, filter, channel]; a unit is a panel of channels and a block of filters, in
    `some` chunks of pixels.
    """
    buffer = offset(buffers, lane * lane_size)
    panels = (channels + panel - 1) // panel
    blocks = (filters + block - 1) // block
    row_blocks = (out_h + row_block - 1) // row_block
    column_blocks = (out_w + column_block - 1) // column_block
    pitch = out_d * out_h * out_w
    widest = 3 * vector_length(image)
    for unit in range(lo, hi):
        c0 = unit % panels * panel
        rest = unit // panels
        f0 = rest % blocks * block
        group = rest // blocks % groups
        part = rest // blocks // groups
        wide = min(panel, channels - c0)
        high = min(block, filters - f0)
        mode = 0
        for chunk in range(part * some, min(chunks, (part + 1) * some)):
            j0 = chunk % column_blocks * column_block
            i0 = chunk // column_blocks % row_blocks * row_block
            n = chunk // column_blocks // row_blocks // out_d * groups + group
            z = chunk // column_blocks // row_blocks % out_d
            columns = min(column_block, out_w - j0)
            rows = min(row_block, out_h - i0)
            lay_out_pixels(
                offset(image, n * (channels // depth_taps) * depth * height * width), buffer, c0,
                wide, panel, depths, depth_taps, depth, z * stride_d, height, width, slots,
                slot_count, i0 * stride_h, first + j0 * stride_w, line,
            )  # fmt: skip
            source = offset(left, (n * filters + f0) * pitch + (z * out_h + i0) * out_w + j0)
            for i in range(0, rows, at_once):
                count = min(at_once, rows - i) * columns
                for tap in range(taps):
                    seen = offset(buffer, i * line * panel + offsets[tap])
                    first_filter = ((part * taps + tap) * groups + group) * filters + f0
                    target = offset(sums, first_filter * channels + c0)
                    for c in range(0, wide, widest):
                        for f in range(0, high, 8):
                            place = offset(target, f * channels + c)
                            outer_tile_8(
                                count, offset(source, f * pitch + i * out_w), pitch, 1,
                                offset(seen, c), places, place, channels, mode, place, channels,
                                high - f, min(widest, wide - c), 0, places,
                            )  # fmt: skip
                mode = 1


def lay_out_pixels(
    image, buffer, channel, channels, panel, depths, depth_taps, depth, front, height, width, slots,
    slot_count, top, left, line,
):  # fmt: skip
    """Rows of the image, pixel by pixel, zeros around them."""
    begin = min(line, max(0, -left))
    end = max(begin, min(line, width - left))
    plane = plane_of(channel, depths, depth_taps, depth, front)
    for t in range(slot_count):
        row = slots[t] + top
        to = offset(buffer, t * line * panel)
        inside = 0 <= row < height
        if not inside or depth_taps > 1 or plane < 0:
            clear_run(to, image, line * panel)
        else:
            clear_run(to, image, begin * panel)
            clear_run(offset(to, end * panel), image, (line - end) * panel)
        if inside and depth_taps == 1 and plane >= 0:
            source = offset(image, (plane * height + row) * width + left + begin)
            clear_ends(offset(to, begin * panel), panel, end - begin, channels)
            transpose(
                source, depth * height * width, offset(to, begin * panel), panel, channels,
                end - begin,
            )  # fmt: skip
        elif inside and depth_taps > 1:
            for c in range(channels):
                here = plane_of(channel + c, depths, depth_taps, depth, front)
                source = offset(image, (here * height + row) * width + left)
                for j in range(begin, end if here >= 0 else begin):
                    to[j * panel + c] = source[j]


def collect(sums, y, parts, rows, columns, lo, hi):
    """y[j, i] = sum over parts of sums[part, i, j]; a unit is `_BLOCK` columns."""
    for unit in range(lo, hi):
        j0 = unit * _BLOCK
        some = min(_BLOCK, columns - j0)
        first = offset(sums, j0)
        for i in range(rows):
            for part in range(1, parts):
                source = offset(first, (part * rows + i) * columns)
                for j in range(some):
                    first[i * columns + j] += source[j]
        transpose(first, columns, offset(y, j0 * rows), rows, rows, some)
