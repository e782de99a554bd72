"""Convolutions on the CPU in which each filter sees one channel.

Filters of 3 by 3 read the image where it is (`slide_windows`). For others, a lane lays a channel
out with zeros around it. Then all output rows are one run of memory, which is multiplied with each
tap of the filter in turn; between rows lie a few results that nobody needs. Rows and columns that
strides keep apart stand in parts of their own: `table` says where a tap's begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from opstep.kernels.conv.windows import LINE, Window
from opstep.runtime.device.builtin import (
    clear_run,
    copy_run,
    offset,
    outer_tile_1,
    thin_run,
    vector_length,
    window_rows_3,
    window_rows_3_by_2,
)
from opstep.runtime.device.launch import Arg, Launch, Scratch, Tiles

_OVERREAD = 8 * 64  # bytes that a tile may read past its pixels
_MOST = 256 * 1024  # bytes of a channel that is laid out: what second-level caches hold easily
_GRAIN = 1 << 15  # products under which another lane is not woken


def slide_alone(x: Arg, w: Arg, bias: Arg | None, y: Arg, views: Sequence[Window]) -> Launch | None:
    """x [N, C, (H,) W] under filters w [K, 1, (R,) S], K a multiple of C; None where a channel is
    too large.
    """
    rows, columns = (LINE, *views)[-2:]
    height, width = (1, *x.shape[2:])[-2:]
    out_h, out_w = (1, *y.shape[2:])[-2:]
    kind = {(v.kernel, v.dilation, v.stride) for v in views}
    if len(views) == 2 and len(kind) == 1 and kind <= _WINDOWS.keys():
        return _slide_windows(x, w, bias, y, views, _WINDOWS[kind.pop()])
    lines = out_h + (rows.span - 1) // rows.stride  # pyright: ignore[reportOperatorIssue]
    line = out_w + (columns.span - 1) // columns.stride  # pyright: ignore[reportOperatorIssue]
    parts = min(rows.stride, rows.span), min(columns.stride, columns.span)
    size = prod(parts) * lines * line
    if (size + lines * line) * x.dtype.itemsize > _MOST:
        return None
    table = []
    for r in range(0, rows.span, rows.dilation):
        for s in range(0, columns.span, columns.dilation):
            part = r % rows.stride * parts[1] + s % columns.stride
            table.append((part * lines + r // rows.stride) * line + s // columns.stride)
    spare = _OVERREAD // x.dtype.itemsize
    lane = -(-(size + spare + lines * line) // 64) * 64
    return Launch(
        *(slide_filter, x, w, bias or w, y, Scratch(x.dtype, lane, per_lane=True)),
        *(lane, size, size + spare, tuple(table), len(table), bias is not None),
        *(w.shape[0], w.shape[0] // x.shape[1], height, width, out_h, out_w, lines, line),
        *(*parts, rows.stride, columns.stride, rows.before, columns.before),
        units=x.shape[0] * w.shape[0],
        grain=max(1, _GRAIN // (out_h * out_w * len(table))),
        tiles=_planes(y),
    )


def _slide_windows(
    x: Arg, w: Arg, bias: Arg | None, y: Arg, views: Sequence[Window], kernel: Callable
) -> Launch:
    axes = zip(views, y.shape[2:], x.shape[2:], strict=True)
    zeros = Scratch(x.dtype, -(-x.shape[-1] // 64) * 64, per_lane=True)  # a row
    return Launch(
        *(kernel, x, w, bias or w, y, zeros, zeros.size, bias is not None),
        *(w.shape[0], w.shape[0] // x.shape[1]),
        *((v.before, out, size) for v, out, size in axes),
        units=x.shape[0] * w.shape[0],
        grain=max(1, _GRAIN // (9 * prod(y.shape[2:]))),
        tiles=_planes(y),
    )


def _planes(y: Arg) -> Tiles:
    """A unit writes a plane."""
    area = prod(y.shape[2:])
    return Tiles(y, y.size // area, area, 1, area)


def _slider(rows_of):
    def slide_windows(
        x, w, bias, y, zeros, zero_count, biased, filters, each, rows, columns, lo, hi, lane
    ):
        """A unit is a filter on an image."""
        none = offset(zeros, lane * zero_count)
        clear_run(none, x, zero_count)
        for unit in range(lo, hi):
            f = unit % filters
            seen = offset(x, unit // each * rows[2] * columns[2])
            start = bias
            if biased:
                start = offset(bias, f)
            target = offset(y, unit * rows[1] * columns[1])
            rows_of(seen, none, offset(w, 9 * f), start, biased, target, rows, columns)

    return slide_windows


# by kernel, dilation and stride of both axes
_WINDOWS = {(3, 1, 1): _slider(window_rows_3), (3, 1, 2): _slider(window_rows_3_by_2)}


def slide_filter(
    x, w, bias, y, buffers, lane_size, size, held_at, table, taps, biased, filters, each, height,
    width, out_h, out_w, lines, line, parts_h, parts_w, stride_h, stride_w, top, left, lo, hi,
    lane,
):  # fmt: skip
    """A unit is a filter on an image."""
    buffer = offset(buffers, lane * lane_size)
    held = offset(buffer, held_at)
    widest = 8 * vector_length(x)
    run = (out_h - 1) * line + out_w
    clear_run(buffer, x, held_at)  # the zeros around channels stay
    for unit in range(lo, hi):
        channel = unit // each
        if unit == lo or unit % each == 0:
            for part in range(parts_h * parts_w):
                above = part // parts_w - top
                before = part % parts_w - left
                begin = max(0, (stride_w - 1 - before) // stride_w)
                end = min(line, (width - before + stride_w - 1) // stride_w)
                for t in range(max(0, (stride_h - 1 - above) // stride_h), lines):
                    row = t * stride_h + above
                    if row >= height:
                        break
                    to = offset(buffer, (part * lines + t) * line + begin)
                    first = (channel * height + row) * width + begin * stride_w + before
                    source = offset(x, first)
                    if stride_w == 1:
                        copy_run(to, source, end - begin)
                    elif stride_w == 2:
                        thin_run(to, source, end - begin)
                    else:
                        for j in range(end - begin):
                            to[j] = source[stride_w * j]
        f = unit % filters
        for p in range(0, run, widest):
            outer_tile_1(
                taps, offset(w, f * taps), 0, 1, offset(buffer, p), table, offset(held, p), 0,
                2 * biased, offset(bias, f), 0, 1, min(widest, run - p), 0, table,
            )  # fmt: skip
        target = offset(y, unit * out_h * out_w)
        for i in range(out_h):
            copy_run(offset(target, i * out_w), offset(held, i * line), out_w)
