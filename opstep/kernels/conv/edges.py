"""Where a transposed convolution's pixels meet filter places that nothing lies under.

The kernels multiply zeros there, which an infinite or NaN weight makes NaN, though the op's sum has
no such term. So the pixels of such filters that lie at an edge are summed up again, term by term.
"""

from __future__ import annotations

from math import prod

from opstep.kernels.conv.windows import Window
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, thread_a_unit


def sizes(gy: Arg, w: Arg, bias: Arg | None, gx: Arg, views: tuple[Window, ...]) -> tuple:
    """What `mend` takes behind the operands, but for the channel and the pixel."""
    axes = [(1, 1, 0, 1, 1, 1)] * (3 - len(views))
    axes += [
        (v.kernel, v.stride, v.before, v.dilation, seen, whole)
        for v, seen, whole in zip(views, gy.shape[2:], gx.shape[2:], strict=True)
    ]
    return (*axes, gy.shape[1], gx.shape[1], w.shape[1], bias is not None)


def only_bias(bias: Arg | None, y: Arg) -> Launch:
    """y [N, C, …] before anything is added to it."""
    area = prod(y.shape[2:])
    args = (bias or y, bias is not None, y, y.shape[1], area)
    return Launch(put_bias, *args, units=y.size, cuda=thread_a_unit)


def put_bias(bias, biased, y, channels, area, lo, hi):
    for i in range(lo, hi):
        y[i] = bias[i // area % channels] if biased else 0


def mend_edges(
    gy, w, bias, gx, odd, phases, planes, rows, columns, filters, channels, own, biased, pixels, lo,
    hi,
):  # fmt: skip
    """`odd[phase, channel]`: whether weights that the channel receives through are no numbers."""
    for channel in range(lo, hi):
        bad = 0
        for phase in range(phases):
            bad |= odd[phase * channels + channel]
        if bad != 0:
            for q in range(pixels):
                mend(
                    gy, w, bias, gx, planes, rows, columns, filters, channels, own, biased, channel,
                    q,
                )  # fmt: skip


def mend(gy, w, bias, gx, planes, rows, columns, filters, channels, own, biased, channel, q):
    """Sums pixel q of a channel, counted over all images, up again if it lies at an edge.

    `filters` and `channels` of all groups; `own`: channels of a group. `planes`, `rows`, `columns`:
    kernel, stride, padding before, dilation, size of gy, size of gx.
    """
    column = q % columns[5]
    row = q // columns[5] % rows[5]
    plane = q // columns[5] // rows[5] % planes[5]
    if at_edge(plane, planes) or at_edge(row, rows) or at_edge(column, columns):
        image = q // columns[5] // rows[5] // planes[5]
        area = planes[5] * rows[5] * columns[5]
        at = (image * channels + channel) * area + q % area
        gx[at] = received(
            gy, w, bias, planes, rows, columns, filters, channels, own, biased, image, channel,
            plane, row, column,
        )  # fmt: skip


def received(
    gy, w, bias, planes, rows, columns, filters, channels, own, biased, image, channel, plane, row,
    column,
):  # fmt: skip
    """What a pixel receives, term by term."""
    taps = planes[0] * rows[0] * columns[0]
    first = channel // own * (filters * own // channels)
    total = 0.0
    if biased:
        total += bias[channel]
    for k in range(first, first + filters * own // channels):
        weights = offset(w, (k * own + channel % own) * taps)
        for t in range(planes[0]):
            z = source_index(plane, t, planes)
            source = offset(gy, ((image * filters + k) * planes[4] + z) * rows[4] * columns[4])
            for r in range(rows[0]):
                i = source_index(row, r, rows)
                for s in range(columns[0]):
                    j = source_index(column, s, columns)
                    if z >= 0 and i >= 0 and j >= 0:
                        weight = weights[(t * rows[0] + r) * columns[0] + s]
                        total += source[i * columns[4] + j] * weight
    return total


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
