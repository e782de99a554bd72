"""Where a transposed convolution's pixels meet filter places that nothing lies under.

The kernels multiply zeros there, which an infinite or NaN weight makes NaN, though the op's sum has
no such term. So the pixels of such filters that lie at an edge are summed up again, term by term.
"""

from __future__ import annotations

from opstep.kernels.conv.windows import Window
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg


def sizes(gy: Arg, w: Arg, bias: Arg | None, gx: Arg, rows: Window, columns: Window) -> tuple:
    """What `mend` takes behind the operands, but for the channel and the pixel."""
    axes = [
        (v.kernel, v.stride, v.before, v.dilation, seen, whole)
        for v, seen, whole in zip((rows, columns), gy.shape[2:], gx.shape[2:], strict=True)
    ]
    return (*axes, gy.shape[1], gx.shape[1], w.shape[1], bias is not None)


def mend_edges(
    gy, w, bias, gx, odd, phases, rows, columns, filters, channels, own, biased, pixels, lo, hi
):
    """`odd[phase, channel]`: whether weights that the channel receives through are no numbers."""
    for channel in range(lo, hi):
        bad = 0
        for phase in range(phases):
            bad |= odd[phase * channels + channel]
        if bad != 0:
            for q in range(pixels):
                mend(gy, w, bias, gx, rows, columns, filters, channels, own, biased, channel, q)


def mend(gy, w, bias, gx, rows, columns, filters, channels, own, biased, channel, q):
    """Sums pixel q of a channel, counted over all images, up again if it lies at an edge.

    `filters` and `channels` of all groups; `own`: channels of a group. `rows`, `columns`: kernel,
    stride, padding before, dilation, size of gy, size of gx.
    """
    column = q % columns[5]
    row = q // columns[5] % rows[5]
    image = q // columns[5] // rows[5]
    if at_edge(row, rows) or at_edge(column, columns):
        taps, area = rows[0] * columns[0], rows[4] * columns[4]
        first = channel // own * (filters * own // channels)
        total = 0.0
        if biased:
            total += bias[channel]
        for k in range(first, first + filters * own // channels):
            source = offset(gy, (image * filters + k) * area)
            weights = offset(w, (k * own + channel % own) * taps)
            for r in range(rows[0]):
                i = source_index(row, r, rows)
                for s in range(columns[0]):
                    j = source_index(column, s, columns)
                    if i >= 0 and j >= 0:
                        total += source[i * columns[4] + j] * weights[r * columns[0] + s]
        gx[((image * channels + channel) * rows[5] + row) * columns[5] + column] = total


def at_edge(at, axis):
    """Whether a filter place of the pixel's phase has nothing under it."""
    edge = False
    for t in range(axis[0]):
        here = at + axis[2] - t * axis[3]
        edge |= here % axis[1] == 0 and (here < 0 or here >= axis[4] * axis[1])
    return edge


def source_index(at, t, axis):
    """Where in gy a pixel receives from through filter place t; -1: nowhere."""
    here = at + axis[2] - t * axis[3]
    there = here % axis[1] == 0 and here >= 0 and here < axis[4] * axis[1]
    return here // axis[1] if there else -1
