"""Convolutions of bytes, as quantised models have them: exact sums in i32."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from opstep.kernels.conv.conv import ATTRS, Convolution
from opstep.kernels.conv.packed import correlate_bytes
from opstep.kernels.conv.windows import windows
from opstep.kernels.matmul.cuda_bytes import FEWEST, Laid, exact_products, laid_bytes
from opstep.kernels.matmul.matmul_integer import want_bytes, want_zero
from opstep.kernels.rules.ranks import by_rank
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Held, Launch, thread_a_unit
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import i32

_FEWEST = 8  # filters of a group that are worth a product of matrices
_THREADS = 256


@by_rank(
    "conv{n}d_integer(x: I, w: I2, b: I3?, x_zero: I?, w_zero: I2?, *, " + ATTRS,
    "`conv{n}d` of bytes, exactly: less their zero points, which padding counts as, summed in i32."
    "\n\nx [N, C, {size}], w [K, C/groups, {kernel}], each u8 or i8; b [K] or a scalar, i32; "
    "x_zero a scalar, w_zero one or [K]; y [N, K, {out}], i32.",
    formula=(
        "y[n, k, j] = b[k] + sum over c, s of "
        "(x[n, c, j*stride + …] - x_zero) * (w[k, c, s] - w_zero[k])",
        "y[n, k, i, j] = b[k] + sum over c, r, s of "
        "(x[n, c, i*stride + …] - x_zero) * (w[k, c, r, s] - w_zero[k])",
        "y[n, k, z, i, j] = b[k] + sum over c, t, r, s of "
        "(x[n, c, z*stride + …] - x_zero) * (w[k, c, t, r, s] - w_zero[k])",
    ),
    source="ONNX ConvInteger",
)
class IntegerConvolution(Convolution):
    """Base of convolutions of bytes."""

    faults = NO_FAULTS
    vendor = None
    grad = None

    @classmethod
    def infer(cls, x, w, b, x_zero, w_zero, **attrs):
        want_bytes(cls.name, x, 0)
        want_bytes(cls.name, w, 1)
        filters = w.shape[0] if w.rank else 0
        y = super().infer(x, w, b if b is not None and b.rank else None, **attrs)
        if b is not None and b.dtype is not i32:
            raise Mismatch(f"the bias is in steps of the products, i32, not {b}", 2)
        want_zero(x_zero, (), 3)
        want_zero(w_zero, (filters,), 4)
        return y.with_dtype(i32)

    def oracle(x, w, b=None, x_zero=None, w_zero=None, **attrs):
        wide = [v.astype(np.int64) for v in (x, w)]
        wide[0] -= 0 if x_zero is None else x_zero.astype(np.int64)
        if w_zero is not None:
            wide[1] -= w_zero.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
        y = Convolution.oracle(*wide, **attrs)
        y = y if b is None else y + b.astype(np.int64).reshape(-1, *[1] * (y.ndim - 2))
        return y.astype(np.int32)

    cpu = correlate_bytes

    def cuda(x, w, b, x_zero, w_zero, y, *, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        sizes = zip(views, x.shape[2:], y.shape[2:], strict=True)
        axes = [(v.kernel, v.stride, v.before, v.dilation, *size) for v, *size in sizes]
        axes = [*[(1, 1, 0, 1, 1, 1)] * (3 - len(axes)), *axes]
        each, terms, places = w.shape[0] // groups, prod(w.shape[1:]), prod(y.shape[2:])
        if each >= _FEWEST and terms >= FEWEST and y.size:
            exact = exact_products(
                laid_bytes(w, w_zero, w.shape[0], terms, across=False),
                _windows(x, x_zero, axes, groups, terms),
                *(y, (x.shape[0], groups), ((0, each), (groups * places, places))),
                *(each, places, terms, b),
            )
            if exact is not None:
                return exact
        given = (b, x_zero, w_zero)
        apart = (int(t is not None and t.size > 1) for t in (b, w_zero))
        return Launch(
            *(sum_bytes, x, w, b or x, x_zero or x, w_zero or w, y, *axes),
            *(w.shape[1], y.shape[1], y.shape[1] // groups),
            *(*(t is not None for t in given), *apart),
            units=y.size,
            cuda=thread_a_unit,
        )

    @classmethod
    def flops(cls, x, w, b, x_zero, w_zero, **attrs):
        return Convolution.flops(x, w, b, **attrs)


def _windows(x: Arg, zero: Arg | None, axes: Sequence[tuple], groups: int, terms: int) -> Laid:
    """All that filters see, as columns of matrices: one for each image and group."""
    volume = prod(axis[4] for axis in axes)

    def make(to: Held, first: int, count: int) -> Grid:
        own = min(16, max(1, to.size >> 18), laid.count)
        size = -(-laid.count // own) * count * laid.pitch
        args = (x, zero or x, to, *axes, x.shape[1] // groups * volume, laid.lines, terms, first)
        return Grid(
            *(lay_windows, *args, count, laid.pitch, laid.count, own, zero is not None, size),
            grid=-(-size // _THREADS),
            block=_THREADS,
        )

    laid = Laid(prod(axis[5] for axis in axes), True, x.shape[0] * groups, make)
    return laid


def lay_windows(
    x, zero, y, planes, rows, columns, volume, places, terms, first, count, pitch, matrices, own,
    shifted, size,
):  # fmt: skip
    """y[matrix, term, place], `own` matrices a thread; see `sum_bytes` for the axes."""
    unit = cuda.grid(1)
    if unit < size:
        line = div32(unit, pitch)
        place = unit - line * pitch
        chunk = div32(line, count)
        line -= chunk * count
        row = div32(place, columns[5])
        z = div32(row, rows[5])
        above = div32(first + line, columns[0])
        plane = div32(above, rows[0])
        c = div32(plane, planes[0])
        d = z * planes[1] + (plane - c * planes[0]) * planes[3] - planes[2]
        h = (row - z * rows[5]) * rows[1] + (above - plane * rows[0]) * rows[3] - rows[2]
        s = first + line - above * columns[0]
        w = (place - row * columns[5]) * columns[1] + s * columns[3] - columns[2]
        inside = first + line < terms and place < places and 0 <= d < planes[4]
        inside = inside and 0 <= h < rows[4] and 0 <= w < columns[4]
        at = ((c * planes[4] + d) * rows[4] + h) * columns[4] + w
        off = 0
        if shifted:
            off = np.int64(zero[0])
        for matrix in range(chunk * own, min(chunk * own + own, matrices)):
            found = 0
            if inside:
                found = np.int64(x[matrix * volume + at]) - off
            y[(matrix * count + line) * pitch + place] = found


def sum_bytes(
    x, w, bias, x_zero, w_zero, y, planes, rows, columns, channels, filters, each, biased,
    x_shifted, w_shifted, bias_step, w_step, lo, hi,
):  # fmt: skip
    """An element of y a unit; of each axis, kernel, stride, padding before, dilation, size of x and
    of y.
    """
    for unit in range(lo, hi):
        j = unit % columns[5]
        i = unit // columns[5] % rows[5]
        z = unit // (columns[5] * rows[5]) % planes[5]
        place = unit // (columns[5] * rows[5] * planes[5])
        f = place % filters
        image = place // filters * (filters // each) + f // each
        off = 0
        if x_shifted:
            off = np.int64(x_zero[0])
        w_off = 0
        if w_shifted:
            w_off = np.int64(w_zero[f * w_step])
        total = 0
        if biased:
            total = np.int64(bias[f * bias_step])
        for c in range(channels):
            for t in range(planes[0]):
                d = z * planes[1] + t * planes[3] - planes[2]
                for r in range(rows[0]):
                    h = i * rows[1] + r * rows[3] - rows[2]
                    if 0 <= d < planes[4] and 0 <= h < rows[4]:
                        plane = (image * channels + c) * planes[4] + d
                        seen = offset(x, (plane * rows[4] + h) * columns[4])
                        at = ((f * channels + c) * planes[0] + t) * rows[0] + r
                        weights = offset(w, at * columns[0])
                        for s in range(columns[0]):
                            k = j * columns[1] + s * columns[3] - columns[2]
                            if 0 <= k < columns[4]:
                                total += (seen[k] - off) * (weights[s] - w_off)
        y[unit] = total
