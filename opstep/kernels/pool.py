"""Pooling of images [N, C, H, W]: the largest element or the mean of each window of a plane."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.pooling import (
    average_windows,
    give_to_highest,
    highest_and_places,
    highest_of_windows,
    spread_over_windows,
)
from opstep.kernels.windows import Window, padded, pair, taps, want_images, windows
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import DType, i64

_GRAIN = 65536  # elements of windows under which another lane is not woken


def _pool_windows(kernel, stride, padding, dilation=(1, 1)) -> tuple[Window, Window]:
    """Attributes checked: no window may lie in the padding alone."""
    kernel = pair("kernel", kernel)
    found = windows(kernel, kernel if stride is None else stride, padding, dilation)
    for axis, v in zip(("height", "width"), found, strict=True):
        most = max(v.before, v.after)
        if 2 * most > v.span:
            raise Mismatch(
                f"padding {most} of the {axis} is more than half of the window, {v.span}", "padding"
            )
    return found


def _pooled(name: str, x, rows: Window, columns: Window, ceil_mode: bool, at: int = 0):
    want_images(name, x, at)
    height = rows.count(x.shape[2], "height", ceil_mode)
    width = columns.count(x.shape[3], "width", ceil_mode)
    return x.with_shape((*x.shape[:2], height, width))


def _lowest(dtype: DType) -> float | int:
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.kind == "u" else -(1 << dtype.bits - 1)


def _grain(units: int, work: int) -> int:
    return max(1, units * _GRAIN // max(work, 1))


def _places(rows: Window, columns: Window) -> tuple:
    """Both windows as the kernels of maxima take them."""
    a, b = rows, columns
    return (
        *(a.kernel, b.kernel, a.stride, b.stride),
        *(a.before, b.before, a.dilation, b.dilation),
    )


class _MaxPool(Op):
    """Base: attributes checked, the shape of the result."""

    @classmethod
    def infer(cls, x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        return _pooled(cls.name, x, rows, columns, ceil_mode)

    def grad(g, operands, results, grads, **attrs):
        return (None if grads[0] is None else g.max_pool2d_grad(grads[0], operands[0], **attrs),)

    def flops(x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        return _pooled("max_pool2d", x, rows, columns, ceil_mode).size * prod(kernel)


_ATTRS = (
    "kernel: ints, stride: ints = none, padding: ints = [0, 0], dilation: ints = [1, 1], "
    "ceil_mode: bool = false)"
)


def _unfolded(x, kernel, stride, padding, dilation, ceil_mode):
    """For oracles: [taps, N, C, H', W'] and, alike, each element's index in its plane; -1 in the
    padding.
    """
    rows, columns = _pool_windows(kernel, stride, padding, dilation)
    height, width = x.shape[2:]
    out = rows.count(height, "height", ceil_mode), columns.count(width, "width", ceil_mode)
    # with ceil_mode the last window may reach past the padding
    rows, columns = (
        v._replace(after=max(v.after, (n - 1) * v.stride + v.span - size - v.before))
        for v, n, size in zip((rows, columns), out, (height, width), strict=True)
    )
    index = np.arange(height * width).reshape(1, 1, height, width)
    seen = [t for _, t in taps(padded(x, rows, columns), rows, columns, out)]
    at = [t for _, t in taps(padded(index, rows, columns, -1), rows, columns, out)]
    return np.stack(seen), np.stack(at)


def _highest(x, **attrs):
    """For oracles: the largest of each window and its index: the first such, or the last NaN."""
    seen, at = _unfolded(x, **attrs)
    floats = x.dtype.kind == "f"
    lowest = -np.inf if floats else np.iinfo(x.dtype).min
    seen = np.where(at < 0, lowest, seen)
    at = np.broadcast_to(at, seen.shape)
    best, places = seen[0], at[0]
    for v, p in zip(seen[1:], at[1:], strict=True):
        takes = (p >= 0) & ((places < 0) | (v > best) | (v != v))
        best, places = np.where(takes, v, best), np.where(takes, p, places)
    return best.astype(x.dtype), np.maximum(places, 0)


class max_pool2d(_MaxPool):
    """The largest element of each window, NaN if it holds one; padding is never the largest.

    x [N, C, H, W]; y [N, C, H', W'] with H' = (H + top + bottom - dilation*(kernel - 1) -
    1)//stride + 1, rounded up with `ceil_mode` (where the last window begins inside of the image or
    the padding before it). `stride` is the kernel if left out. ONNX: MaxPool.
    """

    signature = f"max_pool2d(x: N, *, {_ATTRS}"
    formula = "y[n, c, i, j] = max over r, s of x[n, c, i*stride + r*dilation - top, ...]"

    def oracle(x, **attrs):
        return _highest(x, **attrs)[0]

    def cpu(x, y, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        line = max((y.shape[3] - 1) * columns.stride + columns.span, columns.before + 1)
        units = prod(y.shape[:3])
        return Launch(
            *(highest_of_windows, x, y, Scratch(x.dtype, line, per_lane=True), line),
            *(_lowest(x.dtype), *x.shape[2:], *y.shape[2:], *_places(rows, columns)),
            units=units,
            grain=_grain(units, units * line * (rows.kernel + 1)),
        )


class max_pool2d_with_indices(_MaxPool):
    """`max_pool2d`, and where in its plane [H, W], flattened, each window's largest element stands.

    x [N, C, H, W]; y and i64 indices, both [N, C, H', W']. Of equal elements the first counts.
    ATen: max_pool2d_with_indices. ONNX: MaxPool with two outputs, whose indices also count planes.
    """

    signature = f"max_pool2d_with_indices(x: N, *, {_ATTRS}"
    results = ("y", "indices")

    @classmethod
    def infer(cls, x, **attrs):
        y = super().infer(x, **attrs)
        return y, y.with_dtype(i64)

    def oracle(x, **attrs):
        return _highest(x, **attrs)

    def cpu(x, y, indices, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        units = prod(y.shape[:3])
        return Launch(
            *(highest_and_places, x, y, indices, _lowest(x.dtype), *x.shape[2:], *y.shape[2:]),
            *_places(rows, columns),
            units=units,
            grain=_grain(units, y.size * prod(kernel) * 2),
        )


class max_pool2d_grad(Op):
    """The derivative of `max_pool2d`: each window's gy goes to its largest element (of equal ones
    the first).

    gy [N, C, H', W'], x [N, C, H, W]; gx like x. ATen: max_pool2d_with_indices_backward.

    """

    signature = f"max_pool2d_grad(gy: F, x: F, *, {_ATTRS}"
    results = ("gx",)

    def infer(gy, x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        y = _pooled("max_pool2d_grad", x, rows, columns, ceil_mode, 1)
        if y.shape != gy.shape:
            raise Mismatch(f"max_pool2d of {x} gives {y}, not {gy}", 0)
        return x

    def oracle(gy, x, **attrs):
        _, places = _highest(x, **attrs)
        gx = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), gy.dtype)
        n, c = (k[:, :, None] for k in np.indices(x.shape[:2]))
        flat = (*x.shape[:2], prod(gy.shape[2:]))
        np.add.at(gx, (n, c, places.reshape(flat)), gy.reshape(flat))
        return gx.reshape(x.shape)

    def cpu(gy, x, gx, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _pool_windows(kernel, stride, padding, dilation)
        units = prod(x.shape[:2])
        return Launch(
            *(give_to_highest, gy, x, gx, *x.shape[2:], *gy.shape[2:], *_places(rows, columns)),
            units=units if x.size else 0,
            grain=_grain(units, gy.size * prod(kernel) * 2),
        )

    def grad(g, operands, results, grads, **attrs):
        gy, x = operands
        (ggx,) = grads
        _, places = g.max_pool2d_with_indices(x, **attrs)
        flat = g.flatten(ggx, start=2, end=3)
        chosen = g.gather_elements(flat, g.flatten(places, start=2, end=3), axis=2)
        return g.reshape(chosen, shape=gy.shape), None

    def flops(gy, x, *, kernel, **attrs):
        return gy.size * prod(kernel)


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
        grain=_grain(units, x.size + y.size * 4),
    )


def _spread(gy, gx, tables) -> Launch:
    width = gx.shape[3]
    units = prod(gx.shape[:2])
    return Launch(
        *(spread_over_windows, gy, gx, Scratch(gx.dtype, width, per_lane=True), width),
        *(*gx.shape[2:], *gy.shape[2:], *tables),
        units=units if gx.size else 0,
        grain=_grain(units, gx.size + gy.size * 4),
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

    x [N, C, H, W]; y as in `max_pool2d`. With `count_include_pad` zeros of the padding count as
    elements, else a window's sum is divided by the elements inside of the image, and by
    `divisor_override` if given. `stride` is the kernel if left out. ATen: avg_pool2d. ONNX:
    AveragePool (count_include_pad is false there).
    """

    signature = f"avg_pool2d(x: F, *, {_AVERAGE_ATTRS}"
    formula = "y[n, c, i, j] = mean over r, s of x[n, c, i*stride + r - top, j*stride + s - left]"

    def infer(x, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        _check_divisor(divisor_override)
        rows, columns = _pool_windows(kernel, stride, padding)
        return _pooled("avg_pool2d", x, rows, columns, ceil_mode)

    def oracle(x, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        v = _pool_windows(kernel, stride, padding)
        out = tuple(
            w.count(n, axis, ceil_mode)
            for w, n, axis in zip(v, x.shape[2:], ("height", "width"), strict=True)
        )
        return _means(x, out, _averaging(x.shape[2:], out, v, count_include_pad, divisor_override))

    def cpu(x, y, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        v = _pool_windows(kernel, stride, padding)
        tables = _averaging(x.shape[2:], y.shape[2:], v, count_include_pad, divisor_override)
        return _average(x, y, tables)

    def grad(g, operands, results, grads, **attrs):
        (x,) = operands
        return (g.avg_pool2d_grad(grads[0], size=x.shape[2:], **attrs),)

    def flops(x, *, kernel, stride, padding, ceil_mode, **attrs):
        rows, columns = _pool_windows(kernel, stride, padding)
        return _pooled("avg_pool2d", x, rows, columns, ceil_mode).size * (prod(kernel) + 1)


class avg_pool2d_grad(Op):
    """The derivative of `avg_pool2d`: each window's gy, divided, goes to all of its elements.

    gy [N, C, H', W']; gx [N, C, *size]. ATen: avg_pool2d_backward.
    """

    signature = f"avg_pool2d_grad(gy: F, *, size: dims, {_AVERAGE_ATTRS}"
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
        v = _pool_windows(kernel, stride, padding)
        tables = _averaging(size, gy.shape[2:], v, count_include_pad, divisor_override)
        return _shares(gy, size, tables)

    def cpu(
        gy, gx, *, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        v = _pool_windows(kernel, stride, padding)
        tables = _averaging(gx.shape[2:], gy.shape[2:], v, count_include_pad, divisor_override)
        return _spread(gy, gx, tables)

    def grad(g, operands, results, grads, *, size, **attrs):
        return (g.avg_pool2d(grads[0], **attrs),)

    def flops(gy, *, kernel, **attrs):
        return gy.size * (prod(kernel) + 1)


def pair_of_dims(name: str, value) -> None:
    """Checks that an attribute is a height and a width."""
    if len(value) != 2:
        raise Mismatch(f"{name} takes height and width, not {list(value)}", name)
    if any(type(d) is int and d < 1 for d in value):
        raise Mismatch(f"{name} must be at least 1, not {list(value)}", name)


class adaptive_avg_pool2d(Op):
    """Means over windows that share the image evenly, as many as `output_size` says.

    x [N, C, H, W]; y [N, C, *output_size]; window i covers rows i*H//n to (i + 1)*H/n, rounded up.
    ATen: _adaptive_avg_pool2d.
    """

    signature = "adaptive_avg_pool2d(x: F, *, output_size: dims)"

    def infer(x, *, output_size):
        want_images("adaptive_avg_pool2d", x)
        pair_of_dims("output_size", output_size)
        _want_pixels("adaptive_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], *output_size))

    def oracle(x, *, output_size):
        return _means(x, output_size, _adaptive(x.shape[2:], output_size))

    def cpu(x, y, *, output_size):
        return _average(x, y, _adaptive(x.shape[2:], y.shape[2:]))

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

    def grad(g, operands, results, grads, *, size):
        return (g.adaptive_avg_pool2d(grads[0], output_size=operands[0].shape[2:]),)

    def flops(gy, *, size):
        return gy.size


class global_avg_pool2d(Op):
    """The mean of each plane: x [N, C, H, W]; y [N, C, 1, 1].

    ATen: mean over [2, 3] with keepdim, adaptive_avg_pool2d to [1, 1]. ONNX: GlobalAveragePool.
    """

    signature = "global_avg_pool2d(x: F)"

    def infer(x):
        want_images("global_avg_pool2d", x)
        _want_pixels("global_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], 1, 1))

    def oracle(x):
        return x.mean(axis=(2, 3), keepdims=True)

    def cpu(x, y):
        return _average(x, y, _adaptive(x.shape[2:], (1, 1)))

    def grad(g, operands, results, grads):
        return (g.adaptive_avg_pool2d_grad(grads[0], size=operands[0].shape[2:]),)

    def flops(x):
        return x.size
