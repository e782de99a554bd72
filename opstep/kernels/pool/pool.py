"""Max pooling of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: the largest
element of each window of a channel.

Padding is a number for both ends of each axis (height, then width), or a number for each end: top,
left, bottom, right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from opstep.kernels.conv.windows import (
    Window,
    axes_of,
    counts,
    padded,
    per_axis,
    taps,
    want_images,
    windows,
)
from opstep.kernels.rules.ranks import by_rank
from opstep.kernels.schedules.cpu import window as on_cpu
from opstep.kernels.schedules.cuda import window_maxima as on_cuda
from opstep.kernels.schedules.window import Span
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import DType, i64


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


def lowest_of(dtype: DType) -> float | int:
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.kind == "u" else -(1 << dtype.bits - 1)


def _spans(x, y, attrs: dict) -> list[Span]:
    """Of the windows of x that make y."""
    given = {k: v for k, v in attrs.items() if k != "ceil_mode"}
    spans = []
    for v, size, out in zip(
        pool_windows(x.rank - 2, **given), x.shape[2:], y.shape[2:], strict=True
    ):
        v = v.within(size, out)
        spans.append(Span.regular(size, out, v.kernel, v.stride, v.before, v.dilation))
    return spans


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

_ATTRS = (
    "kernel: ints, stride: ints = none, padding: ints = {zeros}, dilation: ints = {ones}, "
    "ceil_mode: bool = false)"
)
_LARGEST = (
    "The largest element of each window, or NaN if there is one; padding is never the largest."
    "\n\nx [N, C, {size}]; y [N, C, {out}] with "
)
_STRIDE = " `stride` defaults to the kernel."


@by_rank(
    "max_pool{n}d(x: N, *, " + _ATTRS,
    _LARGEST + "W' as in `max_pool2d`." + _STRIDE,
    _LARGEST + "H' = (H + top + bottom - dilation*(kernel - 1) - 1)//stride + 1, rounded up with "
    "`ceil_mode` (if the last window starts inside the image or the padding before it)." + _STRIDE,
    _LARGEST + "sizes as in `max_pool2d`." + _STRIDE,
    formula=("", "y[n, c, i, j] = max over r, s of x[n, c, i*stride + r*dilation - top, ...]", ""),
    source="torch.nn.functional.max_pool{n}d, ONNX MaxPool",
)
class MaxPool(Op):
    """Base of poolings of `axes` dimensions."""

    axes: ClassVar[int]
    faults = NO_FAULTS

    @classmethod
    def infer(cls, x, *, ceil_mode, **attrs):
        return pooled(cls.name, x, pool_windows(cls.axes, **attrs), ceil_mode)

    def oracle(x, **attrs):
        return _highest(x, **attrs)[0]

    def cpu(x, y, **attrs):
        return on_cpu.largest(x, y, lowest_of(x.dtype), _spans(x, y, attrs))

    def cuda(x, y, **attrs):
        return on_cuda.largest(x, y, lowest_of(x.dtype), _spans(x, y, attrs))

    def grad(g, operands, results, grads, **attrs):
        x = operands[0]
        if grads[0] is None:
            return (None,)
        return (getattr(g, f"max_pool{x.type.rank - 2}d_grad")(grads[0], x, **attrs),)

    def flops(x, *, kernel, ceil_mode, **attrs):
        views = pool_windows(x.rank - 2, kernel, **attrs)
        return pooled("max_pool", x, views, ceil_mode).size * prod(kernel)


_FOUND = "`max_pool{n}d`, and the index of each window's largest element"
_PLACES = """.

x [N, C, {size}]; y and i64 indices, both [N, C, {out}]. If there are several, the first counts."""


@by_rank(
    "max_pool{n}d_with_indices(x: N, *, " + _ATTRS,
    _FOUND + _PLACES,
    _FOUND + " in its flattened plane [H, W]" + _PLACES,
    _FOUND + " in its flattened volume [D, H,\nW]" + _PLACES,
    source=(
        "ATen max_pool1d_with_indices",
        "ATen max_pool2d_with_indices, "
        "ONNX MaxPool with two outputs, whose indices also count planes",
        "ATen max_pool3d_with_indices",
    ),
)
class MaxPoolWithIndices(MaxPool):
    """Base of those that also say where."""

    results = ("y", "indices")

    @classmethod
    def infer(cls, x, **attrs):
        y = super().infer(x, **attrs)
        return y, y.with_dtype(i64)

    def oracle(x, **attrs):
        return _highest(x, **attrs)

    def cpu(x, y, indices, **attrs):
        return on_cpu.largest_and_places(x, y, indices, lowest_of(x.dtype), _spans(x, y, attrs))

    def cuda(x, y, indices, **attrs):
        return on_cuda.largest_and_places(x, y, indices, lowest_of(x.dtype), _spans(x, y, attrs))


_LIKE = "The derivative of `max_pool{n}d`, like `max_pool2d_grad`."


@by_rank(
    "max_pool{n}d_grad(gy: F, x: F, *, " + _ATTRS,
    _LIKE,
    """The derivative of `max_pool2d`: each window's gy is added to its largest element (the first,
    if there are several).

    gy [N, C, {out}], x [N, C, {size}]; gx like x.""",
    _LIKE,
    source=("", *["ATen max_pool{n}d_with_indices_backward"] * 2),
)
class MaxPoolGradient(Op):
    """Base of the derivatives."""

    axes: ClassVar[int]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, x, *, ceil_mode, **attrs):
        forward = f"max_pool{cls.axes}d"
        y = pooled(cls.name, x, pool_windows(cls.axes, **attrs), ceil_mode, 1)
        if y.shape != gy.shape:
            raise Mismatch(f"{forward} of {x} gives {y}, not {gy}", 0)
        return x

    def oracle(gy, x, **attrs):
        _, places = _highest(x, **attrs)
        gx = np.zeros((*x.shape[:2], prod(x.shape[2:])), gy.dtype)
        n, c = (k[:, :, None] for k in np.indices(x.shape[:2]))
        flattened = (*x.shape[:2], prod(gy.shape[2:]))
        np.add.at(gx, (n, c, places.reshape(flattened)), gy.reshape(flattened))
        return gx.reshape(x.shape)

    def cpu(gy, x, gx, **attrs):
        return on_cpu.passed_to_largest(gy, x, gx, _spans(x, gy, attrs))

    def cuda(gy, x, gx, **attrs):
        return on_cuda.passed_to_largest(gy, x, gx, _spans(x, gy, attrs))

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
