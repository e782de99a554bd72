"""Max pooling of images [N, C, H, W]: the largest element of each window of a plane.

Padding is two numbers, for both ends of the height and of the width, or four: top, left, bottom,
right.
"""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.conv.windows import Window, padded, pair, taps, want_images, windows
from opstep.kernels.pool import cuda_pool as gpu
from opstep.kernels.pool.pooling import highest_of_windows, max_and_indices, max_gradient
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import DType, i64

_GRAIN = 65536  # elements of windows under which another lane is not woken


def pool_windows(kernel, stride, padding, dilation=(1, 1)) -> tuple[Window, Window]:
    """Attributes checked: no window may lie in the padding alone."""
    kernel = pair("kernel", kernel)
    found = windows(kernel, kernel if stride is None else stride, padding, dilation)
    for axis, v in zip(("height", "width"), found, strict=True):
        most = max(v.before, v.after)
        if most >= v.span:
            raise Mismatch(
                f"padding {most} of the {axis} is not less than the window, {v.span}", "padding"
            )
    return found


def pooled(name: str, x, rows: Window, columns: Window, ceil_mode: bool, at: int = 0):
    want_images(name, x, at)
    height = rows.count(x.shape[2], "height", ceil_mode)
    width = columns.count(x.shape[3], "width", ceil_mode)
    return x.with_shape((*x.shape[:2], height, width))


def _lowest(dtype: DType) -> float | int:
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.kind == "u" else -(1 << dtype.bits - 1)


def grain_of(units: int, work: int) -> int:
    return max(1, units * _GRAIN // max(work, 1))


def _windows(rows: Window, columns: Window) -> tuple:
    """Both windows as the kernels of maxima take them."""
    a, b = rows, columns
    return (
        *(a.kernel, b.kernel, a.stride, b.stride),
        *(a.before, b.before, a.dilation, b.dilation),
    )


def _within(x, y, kernel, stride, padding, dilation) -> tuple[Window, Window]:
    """The windows that make y of x, as kernels take them."""
    rows, columns = pool_windows(kernel, stride, padding, dilation)
    return rows.within(x.shape[2], y.shape[2]), columns.within(x.shape[3], y.shape[3])


class _MaxPool(Op):
    """Base: attributes checked, the shape of the result."""

    faults = NO_FAULTS

    @classmethod
    def infer(cls, x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = pool_windows(kernel, stride, padding, dilation)
        return pooled(cls.name, x, rows, columns, ceil_mode)

    def grad(g, operands, results, grads, **attrs):
        return (None if grads[0] is None else g.max_pool2d_grad(grads[0], operands[0], **attrs),)

    def flops(x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = pool_windows(kernel, stride, padding, dilation)
        return pooled("max_pool2d", x, rows, columns, ceil_mode).size * prod(kernel)


_ATTRS = (
    "kernel: ints, stride: ints = none, padding: ints = [0, 0], dilation: ints = [1, 1], "
    "ceil_mode: bool = false)"
)


def _unfolded(x, kernel, stride, padding, dilation, ceil_mode):
    """For oracles: [taps, N, C, H', W'] and, alike, each element's index in its plane; -1 in the
    padding.
    """
    rows, columns = pool_windows(kernel, stride, padding, dilation)
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
    """The largest element of each window, or NaN if there is one; padding is never the largest.

    x [N, C, H, W]; y [N, C, H', W'] with H' = (H + top + bottom - dilation*(kernel - 1) -
    1)//stride + 1, rounded up with `ceil_mode` (if the last window starts inside the image or the
    padding before it). `stride` defaults to the kernel.
    """

    signature = f"max_pool2d(x: N, *, {_ATTRS}"
    source = "torch.nn.functional.max_pool2d, ONNX MaxPool"
    formula = "y[n, c, i, j] = max over r, s of x[n, c, i*stride + r*dilation - top, ...]"

    def oracle(x, **attrs):
        return _highest(x, **attrs)[0]

    def cuda(x, y, *, kernel, stride, padding, dilation, ceil_mode):
        return gpu.maxima(x, y, _lowest(x.dtype), *_within(x, y, kernel, stride, padding, dilation))

    def cpu(x, y, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _within(x, y, kernel, stride, padding, dilation)
        line = max((y.shape[3] - 1) * columns.stride + columns.span, columns.before + 1)
        units = prod(y.shape[:3])
        return Launch(
            *(highest_of_windows, x, y, Scratch(x.dtype, line, per_lane=True), line),
            *(_lowest(x.dtype), *x.shape[2:], *y.shape[2:], *_windows(rows, columns)),
            units=units,
            grain=grain_of(units, units * line * (rows.kernel + 1)),
        )


class max_pool2d_with_indices(_MaxPool):
    """`max_pool2d`, and the index of each window's largest element in its flattened plane [H, W].

    x [N, C, H, W]; y and i64 indices, both [N, C, H', W']. If there are several, the first counts.
    """

    signature = f"max_pool2d_with_indices(x: N, *, {_ATTRS}"
    source = (
        "ATen max_pool2d_with_indices, "
        "ONNX MaxPool with two outputs, whose indices also count planes"
    )
    results = ("y", "indices")

    @classmethod
    def infer(cls, x, **attrs):
        y = super().infer(x, **attrs)
        return y, y.with_dtype(i64)

    def oracle(x, **attrs):
        return _highest(x, **attrs)

    def cuda(x, y, indices, *, kernel, stride, padding, dilation, ceil_mode):
        both = _within(x, y, kernel, stride, padding, dilation)
        return gpu.maxima_and_indices(x, y, indices, _lowest(x.dtype), *both)

    def cpu(x, y, indices, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _within(x, y, kernel, stride, padding, dilation)
        units = prod(y.shape[:3])
        return Launch(
            *(max_and_indices, x, y, indices, _lowest(x.dtype), *x.shape[2:], *y.shape[2:]),
            *_windows(rows, columns),
            units=units,
            grain=grain_of(units, y.size * rows.kernel * columns.kernel * 2),
        )


class max_pool2d_grad(Op):
    """The derivative of `max_pool2d`: each window's gy is added to its largest element (the first,
    if there are several).

    gy [N, C, H', W'], x [N, C, H, W]; gx like x.
    """

    signature = f"max_pool2d_grad(gy: F, x: F, *, {_ATTRS}"
    source = "ATen max_pool2d_with_indices_backward"
    results = ("gx",)

    def infer(gy, x, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = pool_windows(kernel, stride, padding, dilation)
        y = pooled("max_pool2d_grad", x, rows, columns, ceil_mode, 1)
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

    def cuda(gy, x, gx, *, kernel, stride, padding, dilation, ceil_mode):
        return gpu.maxima_gradient(gy, x, gx, *_within(x, gy, kernel, stride, padding, dilation))

    def cpu(gy, x, gx, *, kernel, stride, padding, dilation, ceil_mode):
        rows, columns = _within(x, gy, kernel, stride, padding, dilation)
        units = prod(x.shape[:2])
        return Launch(
            *(
                max_gradient,
                gy,
                x,
                gx,
                *x.shape[2:],
                *gy.shape[2:],
                *_windows(rows, columns),
            ),
            units=units if x.size else 0,
            grain=grain_of(units, gy.size * rows.kernel * columns.kernel * 2),
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
