"""Max pooling of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: the largest
element of each window of a channel.

Padding is a number for both ends of each axis (height, then width), or a number for each end: top,
left, bottom, right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from opstep.kernels.conv.windows import (
    LINE,
    Window,
    axes_of,
    counts,
    flat,
    padded,
    per_axis,
    taps,
    want_images,
    windows,
)
from opstep.kernels.pool import cuda_pool as gpu
from opstep.kernels.pool.pooling import highest_of_windows, max_and_indices, max_gradient
from opstep.runtime.device.launch import Arg, Launch, Scratch, thread_a_unit
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import DType, i32, i64

_GRAIN = 65536  # elements of windows under which another lane is not woken


def pool_windows(axes: int, kernel, stride, padding, dilation=None) -> tuple[Window, ...]:
    """Attributes checked: no window may lie in the padding alone."""
    kernel = per_axis("kernel", kernel, axes)
    stride = kernel if stride is None else stride
    views = windows(kernel, stride, padding, (1,) * axes if dilation is None else dilation)
    for axis, v in zip(axes_of(axes), views, strict=True):
        most = max(v.before, v.after)
        if most >= v.span:
            raise Mismatch(
                f"padding {most} of the {axis} is not less than the window, {v.span}", "padding"
            )
    return views


def pooled(name: str, x, views: Sequence[Window], ceil_mode: bool, at: int = 0):
    want_images(name, x, at, len(views))
    return x.with_shape((*x.shape[:2], *counts(views, x.shape[2:], ceil_mode)))


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


class Shaped(Scratch):
    """Working memory that kernels of images can read and write."""

    __slots__ = ("shape",)

    def __init__(self, dtype: DType, shape: tuple[int, ...]):
        super().__init__(dtype, prod(shape))
        self.shape = shape


def _viewed(a: Arg, *shape: int) -> Arg:
    """The same memory in another shape."""
    view = copy(a)
    view.shape = shape
    return view


def _within(views: Sequence[Window], x, y) -> tuple[Window, Window]:
    """The windows that make image y of x, as kernels take them."""
    rows, columns = (LINE, *views)[-2:]
    return rows.within(x.shape[2], y.shape[2]), columns.within(x.shape[3], y.shape[3])


def _attrs(axes: int) -> str:
    ones, zeros = [1] * axes, [0] * axes
    return (
        f"kernel: ints, stride: ints = none, padding: ints = {zeros}, dilation: ints = {ones}, "
        "ceil_mode: bool = false)"
    )


class Kernels(NamedTuple):
    """Of images: each gives launches for two windows, of rows and of columns."""

    highest: Callable  # (x, y, rows, columns)
    highest_at: Callable  # (x, y, indices, rows, columns)
    gradient: Callable  # (gy, x, gx, rows, columns)


def _highest_on_cpu(x, y, rows: Window, columns: Window) -> list[Launch]:
    line = max((y.shape[3] - 1) * columns.stride + columns.span, columns.before + 1)  # pyright: ignore
    lines = Scratch(x.dtype, 2 * line + 3 * y.shape[3], per_lane=True)
    units = prod(y.shape[:3])
    return [
        Launch(
            *(highest_of_windows, x, y, lines, line, lines.size),
            *(_lowest(x.dtype), *x.shape[2:], *y.shape[2:], *_windows(rows, columns)),
            units=units,
            grain=grain_of(units, units * line * (rows.kernel + 1)),
        )
    ]


def _highest_at_on_cpu(x, y, indices, rows: Window, columns: Window) -> list[Launch]:
    units = prod(y.shape[:3])
    return [
        Launch(
            *(max_and_indices, x, y, indices, _lowest(x.dtype), *x.shape[2:], *y.shape[2:]),
            *_windows(rows, columns),
            units=units,
            grain=grain_of(units, y.size * rows.kernel * columns.kernel * 2),
        )
    ]


def _gradient_on_cpu(gy, x, gx, rows: Window, columns: Window) -> list[Launch]:
    units, line, c = prod(x.shape[:2]), gy.shape[3], columns
    places = Scratch(i32 if prod(x.shape[2:]) < 1 << 31 else i64, line, per_lane=True)
    maxima = Scratch(x.dtype, line, per_lane=True)
    lefts = [c.before - s * c.dilation for s in range(c.kernel)]
    begins = tuple(max(0, -(-at // c.stride)) for at in lefts)
    ends = tuple(min(line, -(-(x.shape[3] + at) // c.stride)) for at in lefts)
    return [
        Launch(
            *(max_gradient, gy, x, gx, maxima, maxima.size, places, places.size),
            *(begins, ends, *x.shape[2:], *gy.shape[2:], *_windows(rows, columns)),
            units=units if x.size else 0,
            grain=grain_of(units, gy.size * rows.kernel * columns.kernel * 2),
        )
    ]


CPU = Kernels(_highest_on_cpu, _highest_at_on_cpu, _gradient_on_cpu)
CUDA = Kernels(
    lambda x, y, *both: gpu.maxima(x, y, _lowest(x.dtype), *both),
    lambda x, y, at, *both: gpu.maxima_and_indices(x, y, at, _lowest(x.dtype), *both),
    gpu.maxima_gradient,
)


# Volumes are pooled in two stages: each plane, then what that gives along the depth, as images that
# have a row for each plane. The middle is seen in two shapes, one after the other.


def _highest_of(kernels: Kernels, x: Arg, y: Arg, views: Sequence[Window]) -> list:
    if x.rank < 5:
        x, y = flat(x), flat(y)
        return kernels.highest(x, y, *_within(views, x, y))
    (channels, *sizes), out = _merged(x), y.shape[2:]
    middle = Shaped(x.dtype, (channels, sizes[0], *out[1:]))
    planes = _viewed(x, channels, *sizes)
    launches = kernels.highest(planes, middle, *_within(views[1:], planes, middle))
    middle.shape = (channels, 1, sizes[0], prod(out[1:]))
    volumes = _viewed(y, channels, 1, out[0], prod(out[1:]))
    along = _within((views[0], LINE), middle, volumes)
    return [*launches, *kernels.highest(middle, volumes, *along)]


def _highest_at_of(kernels: Kernels, x: Arg, y: Arg, at: Arg, views: Sequence[Window]) -> list:
    if x.rank < 5:
        x, y = flat(x), flat(y)
        return kernels.highest_at(x, y, flat(at), *_within(views, x, y))
    (channels, *sizes), out = _merged(x), y.shape[2:]
    middle, places = (Shaped(t, (channels, sizes[0], *out[1:])) for t in (x.dtype, at.dtype))
    planes = _viewed(x, channels, *sizes)
    launches = kernels.highest_at(planes, middle, places, *_within(views[1:], planes, middle))
    middle.shape = places.shape = (channels, 1, sizes[0], prod(out[1:]))
    volumes = _viewed(y, channels, 1, out[0], prod(out[1:]))
    along = _within((views[0], LINE), middle, volumes)
    launches += kernels.highest_at(middle, volumes, at, *along)
    area = prod(out[1:])
    if x.size:
        sizes = (area, out[0] * area, sizes[0] * area, prod(sizes[1:]))
        args = (index_in_volume, places, at, *sizes)
        launches.append(Launch(*args, units=at.size, cuda=thread_a_unit))
    return launches


def index_in_volume(places, indices, area, out, seen, plane, lo, hi):
    """An index among planes pooled becomes one among elements; `out`, `seen`: what a channel has of
    both.
    """
    for k in range(lo, hi):
        at = indices[k]
        indices[k] = at // area * plane + places[k // out * seen + at]


def _gradient_of(kernels: Kernels, gy: Arg, x: Arg, gx: Arg, views: Sequence[Window]) -> list:
    if x.rank < 5:
        gy, x, gx = flat(gy), flat(x), flat(gx)
        return kernels.gradient(gy, x, gx, *_within(views, x, gy))
    (channels, *sizes), out = _merged(x), gy.shape[2:]
    shape, turned = (channels, sizes[0], *out[1:]), (channels, 1, sizes[0], prod(out[1:]))
    middle, middle_gy = Shaped(x.dtype, shape), Shaped(x.dtype, shape)
    planes, result = _viewed(x, channels, *sizes), _viewed(gx, channels, *sizes)
    within = _within(views[1:], planes, middle)
    launches = kernels.highest(planes, middle, *within)
    middle.shape = middle_gy.shape = turned
    volumes = _viewed(gy, channels, 1, out[0], prod(out[1:]))
    along = _within((views[0], LINE), middle, volumes)
    launches += kernels.gradient(volumes, middle, middle_gy, *along)
    middle_gy.shape = shape
    return [*launches, *kernels.gradient(middle_gy, planes, result, *within)]


def _merged(x: Arg) -> tuple[int, ...]:
    return (x.shape[0] * x.shape[1], *x.shape[2:])


# --- oracles --------------------------------------------------------------------------------------


def _unfolded(x, kernel, stride, padding, dilation, ceil_mode):
    """For oracles: [taps, N, C, …] and, alike, each element's index in its channel; -1 in the
    padding.
    """
    sizes = x.shape[2:]
    views = pool_windows(len(sizes), kernel, stride, padding, dilation)
    out = counts(views, sizes, ceil_mode)
    # with ceil_mode the last window may reach past the padding
    views = [
        v._replace(after=max(v.after, (n - 1) * v.stride + v.span - size - v.before))
        for v, n, size in zip(views, out, sizes, strict=True)
    ]
    index = np.arange(prod(sizes)).reshape(1, 1, *sizes)
    seen = [t for _, t in taps(padded(x, views), views, out)]
    at = [t for _, t in taps(padded(index, views, -1), views, out)]
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


# --- ops ------------------------------------------------------------------------------------------


class MaxPool(Op):
    """Base of poolings of `axes` dimensions."""

    axes: ClassVar[int]
    faults = NO_FAULTS

    @classmethod
    def infer(cls, x, *, ceil_mode, **attrs):
        return pooled(cls.name, x, pool_windows(cls.axes, **attrs), ceil_mode)

    def oracle(x, **attrs):
        return _highest(x, **attrs)[0]

    def cpu(x, y, *, ceil_mode, **attrs):
        return _highest_of(CPU, x, y, pool_windows(x.rank - 2, **attrs))

    def cuda(x, y, *, ceil_mode, **attrs):
        return _highest_of(CUDA, x, y, pool_windows(x.rank - 2, **attrs))

    def grad(g, operands, results, grads, **attrs):
        x = operands[0]
        if grads[0] is None:
            return (None,)
        return (getattr(g, f"max_pool{x.type.rank - 2}d_grad")(grads[0], x, **attrs),)

    def flops(x, *, kernel, ceil_mode, **attrs):
        views = pool_windows(x.rank - 2, kernel, **attrs)
        return pooled("max_pool", x, views, ceil_mode).size * prod(kernel)


class max_pool1d(MaxPool):
    """The largest element of each window, or NaN if there is one; padding is never the largest.

    x [N, C, W]; y [N, C, W'] with W' as in `max_pool2d`. `stride` defaults to the kernel.
    """

    axes = 1
    signature = f"max_pool1d(x: N, *, {_attrs(1)}"
    source = "torch.nn.functional.max_pool1d, ONNX MaxPool"


class max_pool2d(MaxPool):
    """The largest element of each window, or NaN if there is one; padding is never the largest.

    x [N, C, H, W]; y [N, C, H', W'] with H' = (H + top + bottom - dilation*(kernel - 1) -
    1)//stride + 1, rounded up with `ceil_mode` (if the last window starts inside the image or the
    padding before it). `stride` defaults to the kernel.
    """

    axes = 2
    signature = f"max_pool2d(x: N, *, {_attrs(2)}"
    source = "torch.nn.functional.max_pool2d, ONNX MaxPool"
    formula = "y[n, c, i, j] = max over r, s of x[n, c, i*stride + r*dilation - top, ...]"


class max_pool3d(MaxPool):
    """The largest element of each window, or NaN if there is one; padding is never the largest.

    x [N, C, D, H, W]; y [N, C, D', H', W'] with sizes as in `max_pool2d`. `stride` defaults to the
    kernel.
    """

    axes = 3
    signature = f"max_pool3d(x: N, *, {_attrs(3)}"
    source = "torch.nn.functional.max_pool3d, ONNX MaxPool"


class MaxPoolWithIndices(MaxPool):
    """Base of those that also tell where."""

    results = ("y", "indices")

    @classmethod
    def infer(cls, x, **attrs):
        y = super().infer(x, **attrs)
        return y, y.with_dtype(i64)

    def oracle(x, **attrs):
        return _highest(x, **attrs)

    def cpu(x, y, indices, *, ceil_mode, **attrs):
        return _highest_at_of(CPU, x, y, indices, pool_windows(x.rank - 2, **attrs))

    def cuda(x, y, indices, *, ceil_mode, **attrs):
        return _highest_at_of(CUDA, x, y, indices, pool_windows(x.rank - 2, **attrs))


class max_pool1d_with_indices(MaxPoolWithIndices):
    """`max_pool1d`, and the index of each window's largest element.

    x [N, C, W]; y and i64 indices, both [N, C, W']. If there are several, the first counts.
    """

    axes = 1
    signature = f"max_pool1d_with_indices(x: N, *, {_attrs(1)}"
    source = "ATen max_pool1d_with_indices"


class max_pool2d_with_indices(MaxPoolWithIndices):
    """`max_pool2d`, and the index of each window's largest element in its flattened plane [H, W].

    x [N, C, H, W]; y and i64 indices, both [N, C, H', W']. If there are several, the first counts.
    """

    axes = 2
    signature = f"max_pool2d_with_indices(x: N, *, {_attrs(2)}"
    source = (
        "ATen max_pool2d_with_indices, "
        "ONNX MaxPool with two outputs, whose indices also count planes"
    )


class max_pool3d_with_indices(MaxPoolWithIndices):
    """`max_pool3d`, and the index of each window's largest element in its flattened volume [D, H,
    W].

    x [N, C, D, H, W]; y and i64 indices, both [N, C, D', H', W']. If there are several, the first
    counts.
    """

    axes = 3
    signature = f"max_pool3d_with_indices(x: N, *, {_attrs(3)}"
    source = "ATen max_pool3d_with_indices"


class MaxPoolGradient(Op):
    """Base of the derivatives."""

    forward: ClassVar[type[MaxPool]]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, x, *, ceil_mode, **attrs):
        y = pooled(cls.name, x, pool_windows(cls.forward.axes, **attrs), ceil_mode, 1)
        if y.shape != gy.shape:
            raise Mismatch(f"{cls.forward.name} of {x} gives {y}, not {gy}", 0)
        return x

    def oracle(gy, x, **attrs):
        _, places = _highest(x, **attrs)
        gx = np.zeros((*x.shape[:2], prod(x.shape[2:])), gy.dtype)
        n, c = (k[:, :, None] for k in np.indices(x.shape[:2]))
        flattened = (*x.shape[:2], prod(gy.shape[2:]))
        np.add.at(gx, (n, c, places.reshape(flattened)), gy.reshape(flattened))
        return gx.reshape(x.shape)

    def cpu(gy, x, gx, *, ceil_mode, **attrs):
        return _gradient_of(CPU, gy, x, gx, pool_windows(x.rank - 2, **attrs))

    def cuda(gy, x, gx, *, ceil_mode, **attrs):
        return _gradient_of(CUDA, gy, x, gx, pool_windows(x.rank - 2, **attrs))

    def grad(g, operands, results, grads, **attrs):
        gy, x = operands
        (ggx,) = grads
        last = x.type.rank - 1
        _, places = getattr(g, f"max_pool{last - 1}d_with_indices")(x, **attrs)
        values, places = (g.flatten(v, start=2, end=last) for v in (ggx, places))
        chosen = g.gather_elements(values, places, axis=2)
        return g.reshape(chosen, shape=gy.shape), None

    def flops(gy, x, *, kernel, **attrs):
        return gy.size * prod(kernel)


class max_pool1d_grad(MaxPoolGradient):
    """The derivative of `max_pool1d`, like `max_pool2d_grad`."""

    forward = max_pool1d
    signature = f"max_pool1d_grad(gy: F, x: F, *, {_attrs(1)}"


class max_pool2d_grad(MaxPoolGradient):
    """The derivative of `max_pool2d`: each window's gy is added to its largest element (the first,
    if there are several).

    gy [N, C, H', W'], x [N, C, H, W]; gx like x.
    """

    forward = max_pool2d
    signature = f"max_pool2d_grad(gy: F, x: F, *, {_attrs(2)}"
    source = "ATen max_pool2d_with_indices_backward"


class max_pool3d_grad(MaxPoolGradient):
    """The derivative of `max_pool3d`, like `max_pool2d_grad`."""

    forward = max_pool3d
    signature = f"max_pool3d_grad(gy: F, x: F, *, {_attrs(3)}"
    source = "ATen max_pool3d_with_indices_backward"
