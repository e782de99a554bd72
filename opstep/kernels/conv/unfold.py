"""Windows of images as columns of a matrix, and back: im2col, col2im."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.conv.windows import (
    Window,
    counts,
    padded,
    per_axis,
    taps,
    want_images,
    want_sizes,
    windows,
)
from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.kernels.schedules.cuda.window import sums
from opstep.kernels.schedules.window import Terms
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import div32
from opstep.runtime.device.launch import Arg, Launch, thread_a_unit
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op

_ATTRS = "kernel: ints, stride: ints = [1, 1], padding: ints = [0, 0], dilation: ints = [1, 1])"
_GRAIN = 32768  # elements under which another lane is not woken


def _views(kernel, stride, padding, dilation) -> tuple[Window, ...]:
    return windows(per_axis("kernel", kernel, 2), stride, padding, dilation)


def _columns(x, views: Sequence[Window]):
    """The type of what im2col makes of images."""
    filters, pixels = x.shape[1], 1
    for v, n in zip(views, counts(views, x.shape[2:]), strict=True):
        filters, pixels = filters * v.kernel, pixels * n
    return x.with_shape((x.shape[0], filters, pixels))


def _sizes(columns: Arg, image: Arg, views: Sequence[Window]) -> tuple:
    """Of each axis, rows first: kernel, stride, padding before, dilation, windows, size."""
    return tuple(
        (v.kernel, v.stride, v.before, v.dilation, n, size)
        for v, n, size in zip(views, counts(views, image.shape[2:]), image.shape[2:], strict=True)
    )


class im2col(Op):
    """The windows of images as columns: what a convolution multiplies its filters with.

    x [N, C, H, W]; y [N, C*R*S, L] with kernel [R, S] and a column for each of the L windows, row
    by row; places in the padding are 0.
    """

    signature = f"im2col(x: N, *, {_ATTRS}"
    source = "torch.nn.functional.unfold, ATen im2col"
    faults = NO_FAULTS

    def infer(x, **attrs):
        want_images("im2col", x)
        return _columns(x, _views(**attrs))

    def oracle(x, **attrs):
        views = _views(**attrs)
        out = counts(views, x.shape[2:])
        seen = [s for _, s in taps(padded(x, views), views, out)]
        return np.stack(seen, axis=2).reshape(x.shape[0], x.shape[1] * len(seen), prod(out))

    def cpu(x, y, **attrs):
        rows, columns = _sizes(y, x, _views(**attrs))
        units = y.size // max(1, columns[4])
        grain = max(1, _GRAIN // max(1, columns[4]))
        return Launch(copy_windows, x, y, rows, columns, units=units, grain=grain)

    def cuda(x, y, **attrs):
        rows, columns = _sizes(y, x, _views(**attrs))
        kernel = spread_windows(div32 if max(x.size, y.size) < LIMIT else floor_quotient)
        units = prod(x.shape[:2]) * rows[4] * columns[4]
        return Launch(kernel, x, y, rows, columns, units=units, cuda=thread_a_unit)

    def grad(g, operands, results, grads, **attrs):
        return (g.col2im(grads[0], size=operands[0].shape[2:], **attrs),)


class col2im(Op):
    """Images from columns of windows: elements that meet at a pixel are added. The derivative of
    `im2col`.

    x [N, C*R*S, L]; y [N, C, *size].
    """

    signature = f"col2im(x: N, *, size: dims, {_ATTRS}"
    source = "torch.nn.functional.fold, ATen col2im, ONNX Col2Im"

    def infer(x, *, size, **attrs):
        views = _views(**attrs)
        want_sizes("size", size)
        if x.rank != 3:
            raise Mismatch(f"col2im takes columns [N, C*R*S, L], not {x}", 0)
        if type(x.shape[1]) is int and x.shape[1] % prod(attrs["kernel"]):
            raise Mismatch(f"{x} does not hold windows of {prod(attrs['kernel'])} elements", 0)
        y = x.with_shape((x.shape[0], x.shape[1] // prod(attrs["kernel"]), *size))
        expected = _columns(y, views)
        if expected.shape[2] != x.shape[2]:
            raise Mismatch(f"{y} has {expected.shape[2]} windows, but {x} has {x.shape[2]}", 0)
        return y

    def oracle(x, *, size, **attrs):
        views = _views(**attrs)
        out = counts(views, size)
        y = np.zeros((x.shape[0], x.shape[1] // prod(attrs["kernel"]), *size), x.dtype)
        whole = padded(y, views)
        parts = x.reshape(*y.shape[:2], prod(attrs["kernel"]), *out)
        for k, (_, seen) in enumerate(taps(whole, views, out)):
            seen += parts[:, :, k]
        inside = [slice(v.before, v.before + n) for v, n in zip(views, size, strict=True)]
        return whole[:, :, *inside]

    def cpu(x, y, *, size, **attrs):
        axes = _sizes(x, y, _views(**attrs))
        units = prod(y.shape[:2])
        grain = max(1, _GRAIN * units // max(1, x.size))
        return Launch(add_windows, x, y, *axes, units=units if y.size else 0, grain=grain)

    def cuda(x, y, *, size, **attrs):
        return sums(*_as_sums(x, y, _sizes(x, y, _views(**attrs))))

    def grad(g, operands, results, grads, *, size, **attrs):
        return (g.im2col(grads[0], **attrs),)

    def flops(x, **attrs):
        return x.size


def copy_windows(x, y, rows, columns, lo, hi):
    """A unit is what a kernel's place meets in a row of windows.

    Not by `sums`: an axis of y is places of both axes of a kernel, or windows of both axes of x.
    """
    for unit in range(lo, hi):
        i = unit % rows[4]
        place = unit // rows[4]
        s = place % columns[0]
        r = place // columns[0] % rows[0]
        h = i * rows[1] + r * rows[3] - rows[2]
        first = s * columns[3] - columns[2]
        to = offset(y, unit * columns[4])
        source = offset(x, (place // columns[0] // rows[0] * rows[5] + h) * columns[5])
        for j in range(columns[4]):
            w = first + j * columns[1]
            to[j] = 0
            if 0 <= h < rows[5] and 0 <= w < columns[5]:
                to[j] = source[w]


def add_windows(x, y, rows, columns, lo, hi):
    """A unit is a channel.

    On the CPU `sums` takes 6.6 times as long for windows of 3x3, 5.3 times for 4x4 with a stride of
    2, 0.9 times for 3x3 with a stride of 2 (f32, one core).
    """
    for unit in range(lo, hi):
        to = offset(y, unit * rows[5] * columns[5])
        for k in range(rows[5] * columns[5]):
            to[k] = 0
        for place in range(rows[0] * columns[0]):
            first = place % columns[0] * columns[3] - columns[2]
            for i in range(rows[4]):
                h = i * rows[1] + place // columns[0] * rows[3] - rows[2]
                if 0 <= h < rows[5]:
                    line = (unit * rows[0] * columns[0] + place) * rows[4] + i
                    source = offset(x, line * columns[4])
                    for j in range(columns[4]):
                        w = first + j * columns[1]
                        if 0 <= w < columns[5]:
                            to[h * columns[5] + w] += source[j]


# --- CUDA -----------------------------------------------------------------------------------------


def _as_sums(x: Arg, y: Arg, axes: tuple) -> tuple[Arg, Arg, list[Terms]]:
    """An element of y is the sum of elements of x, a row of windows each as rows of these are, by
    how far these stand from a channel's first one, along rows and columns.
    """
    (taps_h, *_, out_h, _), (taps_w, *_, out_w, _) = axes
    apart, terms = (taps_w * out_h, out_h * out_w), []
    for (kernel, stride, before, dilation, out, size), each in zip(axes, apart, strict=True):
        found: list[list[int]] = [[] for _ in range(size)]
        for tap in range(kernel):
            first = tap * dilation - before
            begin, end = max(0, -(first // stride)), min(out, -(-(size - first) // stride))
            for i in range(begin, end):
                found[i * stride + first].append(tap * each + i)
        terms.append(Terms.listed(found))
    seen = copy(x)
    seen.shape = (*y.shape[:2], taps_h * taps_w * out_h, out_w)
    return seen, y, terms


@cache
def spread_windows(quotient: Callable) -> Callable:
    def spread_windows(x, y, rows, columns, lo, hi):
        """A unit is a window of a channel, so neighbours write neighbours at each of its places;
        no `sums`, as `copy_windows`.
        """
        windows = rows[4] * columns[4]
        for unit in range(lo, hi):
            channel = quotient(unit, windows)
            at = unit - channel * windows
            i = quotient(at, columns[4])
            j = at - i * columns[4]
            to = channel * rows[0] * columns[0]
            for r in range(rows[0]):
                h = i * rows[1] + r * rows[3] - rows[2]
                source = (channel * rows[5] + h) * columns[5]
                for s in range(columns[0]):
                    w = j * columns[1] + s * columns[3] - columns[2]
                    if 0 <= h < rows[5] and 0 <= w < columns[5]:
                        y[to * windows + at] = x[source + w]
                    else:
                        y[to * windows + at] = 0
                    to += 1

    return spread_windows
