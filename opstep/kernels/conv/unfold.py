"""Windows of images as columns of a matrix, and back: im2col, col2im."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        kernel = spread_windows(_quotient(x, y))
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
        axes = _sizes(x, y, _views(**attrs))
        kernel = gather_windows(_quotient(x, y))
        return Launch(kernel, x, y, *axes, units=y.size, cuda=thread_a_unit)

    def grad(g, operands, results, grads, *, size, **attrs):
        return (g.im2col(grads[0], **attrs),)

    def flops(x, **attrs):
        return x.size


def copy_windows(x, y, rows, columns, lo, hi):
    """A unit is what a kernel's place meets in a row of windows."""
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
    """A unit is a channel."""
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


def _quotient(x: Arg, y: Arg) -> Callable:
    """The division for places in these."""
    return div32 if max(x.size, y.size) < LIMIT else floor_quotient


@cache
def spread_windows(quotient: Callable) -> Callable:
    def spread_windows(x, y, rows, columns, lo, hi):
        """A unit is a window of a channel, so neighbours write neighbours at each of its places."""
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


@cache
def gather_windows(quotient: Callable) -> Callable:
    def tap_at(away, dilation):
        """The place of the kernel that stands so far from its first one; -1: none."""
        tap = away if dilation == 1 else quotient(away, dilation)
        return tap if tap * dilation == away else -1

    def gather_windows(x, y, rows, columns, lo, hi):
        """A unit is an element of y, which adds up what windows hold of it, by places of theirs."""
        for unit in range(lo, hi):
            above = quotient(unit, columns[5])
            channel = quotient(above, rows[5])
            w = unit - above * columns[5] + columns[2]
            h = above - channel * rows[5] + rows[2]
            first = channel * rows[0] * columns[0]
            total = 0.0
            i = min(rows[4] - 1, quotient(h, rows[1]))
            while i >= 0 and h - i * rows[1] <= (rows[0] - 1) * rows[3]:
                r = tap_at(h - i * rows[1], rows[3])
                j = min(columns[4] - 1, quotient(w, columns[1]))
                while r >= 0 and j >= 0 and w - j * columns[1] <= (columns[0] - 1) * columns[3]:
                    s = tap_at(w - j * columns[1], columns[3])
                    if s >= 0:
                        total += x[((first + r * columns[0] + s) * rows[4] + i) * columns[4] + j]
                    j -= 1
                i -= 1
            y[unit] = total

    return gather_windows
