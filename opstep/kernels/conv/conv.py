"""Convolutions of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W] with filters
[K, C/groups, …], and their derivatives.

The ops `conv2d`, `conv2d_input_grad` and `conv2d_weight_grad` are derivatives of each other, so the
gradient of each uses the other two; likewise in one and three dimensions.

Padding is a number for both ends of each axis (height, then width), or a number for each end: top,
left, bottom, right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from opstep.kernels.conv import cuda_conv as gpu
from opstep.kernels.conv import volumes, winograd
from opstep.kernels.conv.correlation import correlate, geometry_of
from opstep.kernels.conv.depthwise import slide_alone
from opstep.kernels.conv.filter_grad import filter_gradients
from opstep.kernels.conv.pointwise import mix_channels
from opstep.kernels.conv.transposed import gather_back
from opstep.kernels.conv.vendor import convolutions
from opstep.kernels.conv.windows import (
    LINE,
    Window,
    axes_of,
    counts,
    flat,
    padded,
    taps,
    want_images,
    want_sizes,
    windows,
)
from opstep.kernels.rules.pitfalls import CONVOLUTION
from opstep.runtime.ir.op import Mismatch, Op, Traits

_LETTERS = ("", "S", "R, S", "T, R, S")


def attributes(axes: int, transposed: bool = False) -> str:
    ones, zeros = [1] * axes, [0] * axes
    extra = f"output_padding: ints = {zeros}, " * transposed
    return (
        f"stride: ints = {ones}, padding: ints = {zeros}, {extra}"
        f"dilation: ints = {ones}, groups: int = 1)"
    )


def want_filters(name: str, w, groups: int, axes: int) -> None:
    if w.rank != 2 + axes:
        raise Mismatch(f"{name} takes filters [K, C/groups, {_LETTERS[axes]}], not {w}", 1)
    if groups < 1:
        raise Mismatch(f"groups must be at least 1, not {groups}", "groups")
    if type(w.shape[0]) is int and w.shape[0] % groups:
        raise Mismatch(f"{w.shape[0]} filters cannot be split into {groups} groups", "groups")
    for side, size in zip(axes_of(axes), w.shape[2:], strict=True):
        if type(size) is int and size < 1:
            raise Mismatch(f"filters {w} have no {side}", 1)


def want_bias(b, channels) -> None:
    if b is not None and b.shape != (channels,):
        raise Mismatch(f"the bias is {b}, but there are {channels} output channels", 2)


def _on_plane(views: Sequence[Window]) -> tuple[Window, ...]:
    """Of sequences as of images of one row."""
    return (LINE, *views)[-max(2, len(views)) :]


def of_rank(g, x, suffix: str = "") -> Any:
    """The op of x's dimensions on the builder."""
    return getattr(g, f"conv{x.type.rank - 2}d{suffix}")


def bias_gradient(g, b, gy):
    if b is None:
        return None
    return g.sum(gy, axes=[k for k in range(gy.type.rank) if k != 1], keepdims=False)


class Convolution(Op):
    """Base of convolutions of `axes` dimensions."""

    axes: ClassVar[int]
    faults = CONVOLUTION

    @classmethod
    def infer(cls, x, w, b, *, stride, padding, dilation, groups):
        want_images(cls.name, x, 0, cls.axes)
        want_filters(cls.name, w, groups, cls.axes)
        if w.shape[1] * groups != x.shape[1]:
            wanted = f"{groups} groups of {w.shape[1]}" if groups > 1 else f"{w.shape[1]}"
            raise Mismatch(
                f"x {x} has {x.shape[1]} channels, but filters {w} take {wanted}",
                1,
                hint=f"w is [filters, channels/groups, {', '.join(axes_of(cls.axes))}]",
            )
        want_bias(b, w.shape[0])
        out = counts(windows(w.shape[2:], stride, padding, dilation), x.shape[2:])
        return x.with_shape((x.shape[0], w.shape[0], *out))

    def oracle(x, w, b=None, *, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        out = counts(views, x.shape[2:])
        n, (k, c) = x.shape[0], w.shape[:2]
        y = np.zeros((n, groups, k // groups, prod(out)), x.dtype)
        for place, seen in taps(padded(x, views), views, out):
            seen = seen.reshape(n, groups, c, prod(out))
            filters = w[:, :, *place].reshape(groups, k // groups, c)
            y += np.einsum("ngcp,gkc->ngkp", seen, filters)
        y = y.reshape(n, k, *out)
        return y if b is None else y + b.reshape(-1, *[1] * len(out))

    def cpu(x, w, b, y, *, stride, padding, dilation, groups):
        if not y.size:
            return []
        plain = not any(padding) and groups == 1 and w.shape[0] >= 8
        if set(w.shape[2:]) == {1} and plain and (x.rank < 5 or x.shape[2:] == y.shape[2:]):
            return mix_channels(flat(x), w, b, flat(y), (1, *stride)[-2:])
        views = windows(w.shape[2:], stride, padding, dilation)
        if x.rank < 5 and w.shape[1] == 1 and groups > 1:
            alone = slide_alone(x, w, b, y, views)
            if alone is not None:
                return alone
        if winograd.pays(x, w, y, views, groups):
            return winograd.correlate(x, w, b, y, views)
        return correlate(flat(x), w, b, flat(y), groups, geometry_of(views, y.shape[2:]))

    def cuda(x, w, b, y, *, stride, padding, dilation, groups):
        if not y.size:
            return []
        views = windows(w.shape[2:], stride, padding, dilation)
        if x.rank == 5:
            return volumes.correlate(x, w, b, y, groups, views)
        geometry = geometry_of(views, y.shape[2:])
        return gpu.correlate(flat(x), flat(w), b, flat(y), groups, geometry)

    def vendor(x, w, b, y, *, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        return convolutions("forward", flat(x), flat(w), flat(y), _on_plane(views), b)

    def grad(g, operands, results, grads, **attrs):
        x, w, b = operands
        (gy,) = grads
        return (
            of_rank(g, x, "_input_grad")(gy, w, size=x.shape[2:], **attrs),
            of_rank(g, x, "_weight_grad")(gy, x, kernel=w.shape[2:], **attrs),
            bias_gradient(g, b, gy),
        )

    def views_of(kernel, attrs) -> Sequence[Window]:
        """Where windows lie along the axes of a plane, under filters of this size."""
        return windows(kernel, attrs["stride"], attrs["padding"], attrs["dilation"])

    def flops(x, w, b, *, stride, padding, dilation, groups):
        flops = 2 * x.shape[0] * w.size
        for count in counts(windows(w.shape[2:], stride, padding, dilation), x.shape[2:]):
            flops = flops * count
        return flops


class conv1d(Convolution):
    """1D convolution: each output is the sum of products of a filter and the window under it.

    x [N, C, W], w [K, C/groups, S], b [K]; y [N, K, W'] with W' as in `conv2d`. Padding is one
    number, or two: left, right.
    """

    axes = 1
    signature = f"conv1d(x: N, w: N, b: N?, *, {attributes(1)}"
    source = "torch.nn.functional.conv1d, ATen convolution, ONNX Conv"
    formula = (
        "y[n, k, j] = b[k] + sum over c, s of x[n, c, j*stride + s*dilation - left] * w[k, c, s]"
    )


class conv2d(Convolution):
    """2D convolution: each output is the sum of products of a filter and the window under it.

    x [N, C, H, W], w [K, C/groups, R, S], b [K]; y [N, K, H', W'] with H' = (H + top + bottom -
    dilation*(R - 1) - 1)//stride + 1, W' likewise.
    """

    axes = 2
    traits = Traits(epilogues=True)
    signature = f"conv2d(x: N, w: N, b: N?, *, {attributes(2)}"
    source = "torch.nn.functional.conv2d, ATen convolution, ONNX Conv"
    formula = (
        "y[n, k, i, j] = b[k] + sum over c, r, s of "
        "x[n, c, i*stride + r*dilation - top, ...] * w[k, c, r, s]"
    )

    def lays_out(x, w, *others, stride, groups, **attrs):
        points = prod(w.shape[2:]) == prod(stride) == 1 and prod(x.shape[2:]) % 8 == 0
        return groups == 1 and not points


class conv3d(Convolution):
    """3D convolution: each output is the sum of products of a filter and the window under it.

    x [N, C, D, H, W], w [K, C/groups, T, R, S], b [K]; y [N, K, D', H', W'] with sizes as in
    `conv2d`. Padding is three numbers, or six: front, top, left, back, bottom, right.
    """

    axes = 3
    signature = f"conv3d(x: N, w: N, b: N?, *, {attributes(3)}"
    source = "torch.nn.functional.conv3d, ATen convolution, ONNX Conv"
    formula = (
        "y[n, k, z, i, j] = b[k] + sum over c, t, r, s of "
        "x[n, c, z*stride + t*dilation - front, ...] * w[k, c, t, r, s]"
    )


# --- derivatives ----------------------------------------------------------------------------------


def scatter(gy, w, sizes, views: Sequence[Window], groups: int):
    """For oracles: [N, C, *sizes] from gy [N, K, …], each output's window added up."""
    n, k = gy.shape[:2]
    c, out = w.shape[1], gy.shape[2:]
    whole = [
        max(p + v.before + v.after, (o - 1) * v.stride + v.span)
        for p, v, o in zip(sizes, views, out, strict=True)
    ]
    gx = np.zeros((n, groups * c, *whole), gy.dtype)
    parts = gy.reshape(n, groups, k // groups, prod(out))
    for place, seen in taps(gx, views, out):
        filters = w[:, :, *place].reshape(groups, k // groups, c)
        seen += np.einsum("ngkp,gkc->ngcp", parts, filters).reshape(seen.shape)
    kept = [slice(v.before, v.before + size) for v, size in zip(views, sizes, strict=True)]
    return gx[:, :, *kept]


def _check_against(forward: type[Convolution], x, w, gy, **attrs) -> None:
    expected = forward.infer(x, w, None, **attrs)
    if expected.shape != gy.shape:
        raise Mismatch(f"{forward.name} of {x} with {w} gives {expected}, not {gy}", 0)


class InputGradient(Op):
    """Base of derivatives with respect to images."""

    forward: ClassVar[type[Convolution]]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, w, *, size, **attrs):
        axes, groups = cls.forward.axes, attrs["groups"]
        want_images(cls.name, gy, 0, axes)
        want_filters(cls.name, w, groups, axes)
        want_sizes("size", size, axes, least=0)
        gx = gy.with_shape((gy.shape[0], w.shape[1] * groups, *size))
        _check_against(cls.forward, gx, w, gy, **attrs)
        return gx

    def oracle(gy, w, *, size, stride, padding, dilation, groups):
        return scatter(gy, w, size, windows(w.shape[2:], stride, padding, dilation), groups)

    def cpu(gy, w, gx, *, size, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        return back_on_cpu(gy, w, None, gx, views, groups)

    def cuda(gy, w, gx, *, size, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        return back_on_cuda(gy, w, None, gx, views, groups)

    def vendor(gy, w, gx, *, size, stride, padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        return back_by_vendor(gy, w, None, gx, views)

    def grad(g, operands, results, grads, *, size, **attrs):
        gy, w = operands
        (ggx,) = grads
        return (
            of_rank(g, w)(ggx, w, **attrs),
            of_rank(g, w, "_weight_grad")(gy, ggx, kernel=w.shape[2:], **attrs),
        )

    def flops(gy, w, **attrs):
        return 2 * gy.with_shape((gy.shape[0], *gy.shape[2:])).size * w.size


def back_on_cpu(gy, w, bias, gx, views, groups: int):
    if not gx.size:
        return []
    return gather_back(flat(gy), flat(w), bias, flat(gx), _on_plane(views), groups)


def back_on_cuda(gy, w, bias, gx, views, groups: int):
    if gx.rank == 5:
        return volumes.gather_back(gy, w, bias, gx, views, groups)
    rows, columns = _on_plane(views)
    return gpu.gather_back(flat(gy), flat(w), bias, flat(gx), rows, columns, groups)


def back_by_vendor(gy, w, bias, gx, views):
    return convolutions("images", flat(gx), flat(w), flat(gy), _on_plane(views), bias)


class conv1d_input_grad(InputGradient):
    """The derivative of `conv1d` with respect to its sequences: gx [N, C, *size] from gy [N, K, W']
    and the filters w.
    """

    forward = conv1d
    signature = f"conv1d_input_grad(gy: N, w: N, *, size: dims, {attributes(1)}"


class conv2d_input_grad(InputGradient):
    """The derivative of `conv2d` with respect to its images: gx [N, C, *size] from gy [N, K, H',
    W'] and the filters w.
    """

    forward = conv2d
    signature = f"conv2d_input_grad(gy: N, w: N, *, size: dims, {attributes(2)}"
    formula = (
        "gx[n, c, h, w] = sum of gy[n, k, i, j] * w[k, c, r, s] "
        "where window (i, j) meets (h, w) at (r, s)"
    )


class conv3d_input_grad(InputGradient):
    """The derivative of `conv3d` with respect to its volumes: gx [N, C, *size] from gy [N, K, D',
    H', W'] and the filters w.
    """

    forward = conv3d
    signature = f"conv3d_input_grad(gy: N, w: N, *, size: dims, {attributes(3)}"


class WeightGradient(Op):
    """Base of derivatives with respect to filters."""

    forward: ClassVar[type[Convolution]]
    results = ("gw",)

    @classmethod
    def infer(cls, gy, x, *, kernel, **attrs):
        axes, groups = cls.forward.axes, attrs["groups"]
        want_images(cls.name, gy, 0, axes)
        want_images(cls.name, x, 1, axes)
        want_sizes("kernel", kernel, axes, least=0)
        if groups < 1 or (type(x.shape[1]) is int and x.shape[1] % groups):
            raise Mismatch(f"{x.shape[1]} channels cannot be split into {groups} groups", "groups")
        gw = gy.with_shape((gy.shape[1], x.shape[1] // groups, *kernel))
        _check_against(cls.forward, x, gw, gy, **attrs)
        return gw

    def oracle(gy, x, *, kernel, stride, padding, dilation, groups):
        views = windows(kernel, stride, padding, dilation)
        n, k = gy.shape[:2]
        c, out = x.shape[1] // groups, gy.shape[2:]
        gw = np.zeros((groups, k // groups, c, *kernel), gy.dtype)
        parts = gy.reshape(n, groups, k // groups, prod(out))
        for place, seen in taps(padded(x, views), views, out):
            seen = seen.reshape(n, groups, c, prod(out))
            gw[..., *place] = np.einsum("ngkp,ngcp->gkc", parts, seen)
        return gw.reshape(k, c, *kernel)

    def cpu(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        if not gw.size:
            return []
        geometry = geometry_of(windows(kernel, stride, padding, dilation), gy.shape[2:])
        return filter_gradients(flat(gy), flat(x), flat(gw), groups, geometry)

    def cuda(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        views = windows(kernel, stride, padding, dilation)
        if x.rank == 5:
            return volumes.filter_gradients(gy, x, gw, groups, views)
        geometry = geometry_of(views, gy.shape[2:])
        return gpu.filter_gradients(flat(gy), flat(x), flat(gw), groups, geometry)

    def vendor(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        views = _on_plane(windows(kernel, stride, padding, dilation))
        return convolutions("filters", flat(x), flat(gw), flat(gy), views)

    def grad(g, operands, results, grads, *, kernel, **attrs):
        gy, x = operands
        (ggw,) = grads
        return (
            of_rank(g, x)(x, ggw, **attrs),
            of_rank(g, x, "_input_grad")(gy, ggw, size=x.shape[2:], **attrs),
        )

    def flops(gy, x, *, kernel, groups, **attrs):
        return 2 * gy.size * (x.shape[1] // groups) * prod(kernel)


class conv1d_weight_grad(WeightGradient):
    """The derivative of `conv1d` with respect to its filters: gw [K, C/groups, *kernel] from gy [N,
    K, W'] and sequences x.
    """

    forward = conv1d
    signature = f"conv1d_weight_grad(gy: N, x: N, *, kernel: dims, {attributes(1)}"


class conv2d_weight_grad(WeightGradient):
    """The derivative of `conv2d` with respect to its filters: gw [K, C/groups, *kernel] from gy [N,
    K, H', W'] and images x.
    """

    forward = conv2d
    signature = f"conv2d_weight_grad(gy: N, x: N, *, kernel: dims, {attributes(2)}"
    formula = (
        "gw[k, c, r, s] = sum over n, i, j of "
        "gy[n, k, i, j] * x[n, c, i*stride + r*dilation - top, ...]"
    )


class conv3d_weight_grad(WeightGradient):
    """The derivative of `conv3d` with respect to its filters: gw [K, C/groups, *kernel] from gy [N,
    K, D', H', W'] and volumes x.
    """

    forward = conv3d
    signature = f"conv3d_weight_grad(gy: N, x: N, *, kernel: dims, {attributes(3)}"
