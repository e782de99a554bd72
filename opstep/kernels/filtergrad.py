"""The kernel behind the derivative of convolutions by their filters.

Each number of a filter's gradient is a sum over all output pixels of all images. Pixels are laid
out as for the convolution itself (see `correlation`), so both factors are contiguous along the sum.
"""

from __future__ import annotations

from opstep.kernels.correlation import Geometry, buffer_slots, lay_out_planes, lay_out_rows
from opstep.runtime.device.builtin import inner_tile_4x6, offset
from opstep.runtime.device.launch import Arg, Launch, Scratch

_BUFFER = 48 * 1024  # bytes of image laid out at a time
_UNITS = 16
_GRAIN = 1 << 20


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Launch]:
    """gw [groups*K, C, R, S] from gy [N, groups*K, H', W'] and x [N, groups*C, H, W]."""
    if not gy.size:
        return [Launch(clear, gw, units=gw.size)]
    channels, filters = gw.shape[1], gw.shape[0] // groups
    copies, taps = len(g.columns), len(g.rows) * len(g.columns)
    rows, columns, some = _cut(g, channels, x.dtype.itemsize)
    slots, starts = buffer_slots(g, rows)
    table = tuple(
        ((c * copies) + s) * len(slots) * columns + starts[r] * columns
        for c in range(some)
        for r in range(len(g.rows))
        for s in range(copies)
    )
    pieces = -(-channels // some)
    block = filters
    while groups * pieces * -(-filters // block) < _UNITS and block > 8:
        block = -(-block // 2 // 4) * 4
    laid_out = -(-some * copies * len(slots) * columns // 64) * 64
    units = groups * pieces * -(-filters // block)
    work = 2 * gy.size * channels * taps
    return [
        Launch(
            *(spread_over_filters, gy, x, gw, Scratch(x.dtype, laid_out, per_lane=True), laid_out),
            *(table, g.columns, slots, copies, len(slots), taps),
            g.stride == (1, 1) and columns == g.out[1] == x.shape[3],
            *(x.shape[0], channels, filters, groups, x.shape[2], x.shape[3], *g.out, *g.stride),
            *(rows, columns, block, some),
            units=units,
            grain=max(1, units * _GRAIN // max(work, 1)),
        )
    ]


def _cut(g: Geometry, channels: int, itemsize: int) -> tuple[int, int, int]:
    """Output rows, output columns and channels laid out at a time."""
    budget = _BUFFER // itemsize // len(g.columns)
    columns = g.out[1]
    if columns * len(buffer_slots(g, 1)[0]) > budget:
        columns = max(16, budget // len(buffer_slots(g, 1)[0]))
        return 1, columns, 1
    rows = g.out[0]
    while rows > 1 and columns * len(buffer_slots(g, rows)[0]) > budget:
        rows = -(-rows // 2)
    room = budget // (columns * len(buffer_slots(g, rows)[0]))
    most = max(1, min(room, channels))
    return rows, columns, -(-channels // -(-channels // most))


def clear(y, lo, hi):
    for i in range(lo, hi):
        y[i] = 0


def spread_over_filters(
    gy, x, gw, buffers, lane_size, table, shifts, slots, copies, slot_count, taps, planes, images,
    channels, filters, groups, height, width, out_h, out_w, stride_h, stride_w, row_block,
    column_block, filter_block, channel_block, lo, hi, lane,
):  # fmt: skip
    buffer = offset(buffers, lane * lane_size)
    channel_blocks = (channels + channel_block - 1) // channel_block
    filter_blocks = (filters + filter_block - 1) // filter_block
    pixels = out_h * out_w
    for unit in range(lo, hi):
        c0 = unit % channel_blocks * channel_block
        rest = unit // channel_blocks
        f0 = rest % filter_blocks * filter_block
        group = rest // filter_blocks
        some = min(channel_block, channels - c0)
        mode = 0
        for image in range(images * ((out_h + row_block - 1) // row_block)):
            n = image % images
            i0 = image // images * row_block
            source = offset(x, ((n * groups + group) * channels + c0) * height * width)
            for j0 in range(0, out_w, column_block):
                count = min(column_block, out_w - j0)
                if planes:
                    lay_out_planes(
                        source, buffer, some, height, width, shifts, copies,
                        slots[0] + i0, slot_count,
                    )  # fmt: skip
                else:
                    lay_out_rows(
                        source, buffer, some, height, width, shifts, copies, slots, slot_count,
                        i0 * stride_h, j0 * stride_w, column_block, stride_w,
                    )  # fmt: skip
                if column_block == out_w:
                    count = min(row_block, out_h - i0) * out_w
                add_products(
                    offset(gy, ((n * groups + group) * filters + f0) * pixels + i0 * out_w + j0),
                    buffer, table,
                    offset(gw, ((group * filters + f0) * channels + c0) * taps),
                    count, pixels, min(filter_block, filters - f0), some * taps, channels * taps,
                    mode,
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
