"""Average pooling of images [N, C, H, W]: the mean of each window of a plane.

Padding is two numbers, for both ends of the height and of the width, or four: top, left, bottom,
right.
"""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.conv.windows import pair_of_dims, want_images
from opstep.kernels.pool.cuda_pool import means, means_gradient
from opstep.kernels.pool.pool import grain_of, pool_windows, pooled
from opstep.kernels.pool.pooling import average_windows, spread_over_windows
from opstep.kernels.reduce.reduce import mean
from opstep.kernels.rules.relations import of_plane
from opstep.kernels.rules.relations import pooled as window_of
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.faults import Faults, Rule, opposed
from opstep.runtime.ir.op import Mismatch, Op


def _averaging(plane, out, rows_columns, count_include_pad: bool, divisor_override: int | None):
    """The windows' ends and counts, rows then columns, as the kernels of means take them."""
    tables = []
    for k, (size, n, v) in enumerate(zip(plane, out, rows_columns, strict=True)):
        begins = [i * v.stride - v.before for i in range(n)]
        ends = [min(b + v.kernel, size + v.after) for b in begins]
        inside = [
            (max(b, 0), max(min(e, size), max(b, 0))) for b, e in zip(begins, ends, strict=True)
        ]
        counts = [
            e - b for b, e in (zip(begins, ends, strict=True) if count_include_pad else inside)
        ]
        if divisor_override is not None:
            counts = [1 if k else divisor_override] * n
        tables += [tuple(b for b, _ in inside), tuple(e for _, e in inside), tuple(counts)]
    return tables


def _adaptive(plane, out):
    """The same for windows that share a plane evenly: i*size//n to the next one's begin, rounded
    up.
    """
    tables = []
    for size, n in zip(plane, out, strict=True):
        begins = tuple(i * size // n for i in range(n))
        ends = tuple(-(-(i + 1) * size // n) for i in range(n))
        tables += [begins, ends, tuple(e - b for b, e in zip(begins, ends, strict=True))]
    return tables


def _average(x, y, tables) -> Launch:
    width = x.shape[3]
    units = prod(y.shape[:3])
    return Launch(
        *(average_windows, x, y, Scratch(x.dtype, width, per_lane=True), width),
        *(*x.shape[2:], *y.shape[2:], *tables),
        units=units if y.size else 0,
        grain=grain_of(units, x.size + y.size * 4),
    )


def _spread(gy, gx, tables) -> Launch:
    width = gx.shape[3]
    units = prod(gx.shape[:2])
    return Launch(
        *(spread_over_windows, gy, gx, Scratch(gx.dtype, width, per_lane=True), width),
        *(*gx.shape[2:], *gy.shape[2:], *tables),
        units=units if gx.size else 0,
        grain=grain_of(units, gx.size + gy.size * 4),
    )


def _means(x, out, tables):
    """For oracles."""
    y = np.zeros((*x.shape[:2], *out))
    row_from, row_to, row_count, column_from, column_to, column_count = tables
    for i in range(out[0]):
        for j in range(out[1]):
            window = x[:, :, row_from[i] : row_to[i], column_from[j] : column_to[j]]
            y[:, :, i, j] = window.sum(axis=(2, 3)) / (row_count[i] * column_count[j])
    return y


def _shares(gy, plane, tables):
    """For oracles."""
    gx = np.zeros((*gy.shape[:2], *plane))
    row_from, row_to, row_count, column_from, column_to, column_count = tables
    for i in range(gy.shape[2]):
        for j in range(gy.shape[3]):
            share = gy[:, :, i, j] / (row_count[i] * column_count[j])
            gx[:, :, row_from[i] : row_to[i], column_from[j] : column_to[j]] += share[
                ..., None, None
            ]
    return gx


_AVERAGE_ATTRS = (
    "kernel: ints, stride: ints = none, padding: ints = [0, 0], ceil_mode: bool = false, "
    "count_include_pad: bool = true, divisor_override: int = none)"
)


def _check_divisor(divisor_override) -> None:
    if divisor_override == 0:
        raise Mismatch("divisor_override must not be 0", "divisor_override")


class avg_pool2d(Op):
    """The mean of each window.

    x [N, C, H, W]; y as in `max_pool2d`. With `count_include_pad`, the zeros of the padding count
    as elements; otherwise a window's sum is divided by the number of elements inside the image, or
    by `divisor_override`. `stride` defaults to the kernel.
    """

    signature = f"avg_pool2d(x: F, *, {_AVERAGE_ATTRS}"
    source = "torch.nn.functional.avg_pool2d, ONNX AveragePool (whose count_include_pad is false)"
    formula = "y[n, c, i, j] = mean over r, s of x[n, c, i*stride + r - top, j*stride + s - left]"
    faults = Faults(
        window_of,
        Rule("inf - inf", lambda x, **_: opposed(x)),
        value=lambda site, parts: of_plane(avg_pool2d.oracle, site, parts),
    )

    def infer(x, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        _check_divisor(divisor_override)
        rows, columns = pool_windows(kernel, stride, padding)
        return pooled("avg_pool2d", x, rows, columns, ceil_mode)

    def oracle(x, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        v = pool_windows(kernel, stride, padding)
        out = tuple(
            w.count(n, axis, ceil_mode)
            for w, n, axis in zip(v, x.shape[2:], ("height", "width"), strict=True)
        )
        return _means(x, out, _averaging(x.shape[2:], out, v, count_include_pad, divisor_override))

    def cpu(x, y, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        v = pool_windows(kernel, stride, padding)
        tables = _averaging(x.shape[2:], y.shape[2:], v, count_include_pad, divisor_override)
        return _average(x, y, tables)

    def cuda(x, y, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        v = pool_windows(kernel, stride, padding)
        tables = _averaging(x.shape[2:], y.shape[2:], v, count_include_pad, divisor_override)
        return means(x, y, tables)

    def grad(g, operands, results, grads, **attrs):
        (x,) = operands
        return (g.avg_pool2d_grad(grads[0], size=x.shape[2:], **attrs),)

    def flops(x, *, kernel, stride, padding, ceil_mode, **attrs):
        rows, columns = pool_windows(kernel, stride, padding)
        return pooled("avg_pool2d", x, rows, columns, ceil_mode).size * (prod(kernel) + 1)


class avg_pool2d_grad(Op):
    """The derivative of `avg_pool2d`: each window's gy, divided, is added to all of its elements.

    gy [N, C, H', W']; gx [N, C, *size].
    """

    signature = f"avg_pool2d_grad(gy: F, *, size: dims, {_AVERAGE_ATTRS}"
    source = "ATen avg_pool2d_backward"
    results = ("gx",)

    def infer(gy, *, size, **attrs):
        want_images("avg_pool2d_grad", gy)
        pair_of_dims("size", size)
        gx = gy.with_shape((*gy.shape[:2], *size))
        y = avg_pool2d.infer(gx, **attrs)
        if y.shape != gy.shape:
            raise Mismatch(f"avg_pool2d of {gx} gives {y}, not {gy}", 0)
        return gx

    def oracle(
        gy, *, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        v = pool_windows(kernel, stride, padding)
        tables = _averaging(size, gy.shape[2:], v, count_include_pad, divisor_override)
        return _shares(gy, size, tables)

    def cpu(
        gy, gx, *, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        v = pool_windows(kernel, stride, padding)
        tables = _averaging(gx.shape[2:], gy.shape[2:], v, count_include_pad, divisor_override)
        return _spread(gy, gx, tables)

    def cuda(
        gy, gx, *, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        v = pool_windows(kernel, stride, padding)
        tables = _averaging(gx.shape[2:], gy.shape[2:], v, count_include_pad, divisor_override)
        return means_gradient(gy, gx, tables)

    def grad(g, operands, results, grads, *, size, **attrs):
        return (g.avg_pool2d(grads[0], **attrs),)

    def flops(gy, *, kernel, **attrs):
        return gy.size * (prod(kernel) + 1)


class adaptive_avg_pool2d(Op):
    """Means over windows that divide the image evenly into `output_size` parts.

    x [N, C, H, W]; y [N, C, *output_size]; window i covers rows i*H//n to (i + 1)*H/n, rounded up.
    """

    signature = "adaptive_avg_pool2d(x: F, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_avg_pool2d"

    def infer(x, *, output_size):
        want_images("adaptive_avg_pool2d", x)
        pair_of_dims("output_size", output_size)
        _want_pixels("adaptive_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], *output_size))

    def oracle(x, *, output_size):
        return _means(x, output_size, _adaptive(x.shape[2:], output_size))

    def cpu(x, y, *, output_size):
        return _average(x, y, _adaptive(x.shape[2:], y.shape[2:]))

    def cuda(x, y, *, output_size):
        return means(x, y, _adaptive(x.shape[2:], y.shape[2:]))

    def grad(g, operands, results, grads, *, output_size):
        return (g.adaptive_avg_pool2d_grad(grads[0], size=operands[0].shape[2:]),)

    def flops(x, **attrs):
        return x.size


def _want_pixels(name: str, x) -> None:
    if 0 in x.shape[2:]:
        raise Mismatch(f"{name}: images {x} have no pixels, so they have no mean", 0)


class adaptive_avg_pool2d_grad(Op):
    """The derivative of `adaptive_avg_pool2d`: gx [N, C, *size] from gy."""

    signature = "adaptive_avg_pool2d_grad(gy: F, *, size: dims)"
    results = ("gx",)

    def infer(gy, *, size):
        want_images("adaptive_avg_pool2d_grad", gy)
        pair_of_dims("size", size)
        return gy.with_shape((*gy.shape[:2], *size))

    def oracle(gy, *, size):
        return _shares(gy, size, _adaptive(size, gy.shape[2:]))

    def cpu(gy, gx, *, size):
        return _spread(gy, gx, _adaptive(gx.shape[2:], gy.shape[2:]))

    def cuda(gy, gx, *, size):
        return means_gradient(gy, gx, _adaptive(gx.shape[2:], gy.shape[2:]))

    def grad(g, operands, results, grads, *, size):
        return (g.adaptive_avg_pool2d(grads[0], output_size=operands[0].shape[2:]),)

    def flops(gy, *, size):
        return gy.size


class global_avg_pool2d(Op):
    """The mean of each plane: x [N, C, H, W]; y [N, C, 1, 1]."""

    signature = "global_avg_pool2d(x: F)"
    source = "torch.mean over [2, 3] with keepdim, ONNX GlobalAveragePool"

    def infer(x):
        want_images("global_avg_pool2d", x)
        _want_pixels("global_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], 1, 1))

    def oracle(x):
        return x.mean(axis=(2, 3), keepdims=True)

    def cpu(x, y):
        return _average(x, y, _adaptive(x.shape[2:], (1, 1)))

    def cuda(x, y):
        return mean.cuda(x, y, axes=(2, 3), keepdims=True)

    def grad(g, operands, results, grads):
        return (g.adaptive_avg_pool2d_grad(grads[0], size=operands[0].shape[2:]),)

    def flops(x):
        return x.size
