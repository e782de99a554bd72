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
from opstep.kernels.conv import winograd
from opstep.kernels.conv.correlation import correlate, geometry_of
from opstep.kernels.conv.depthwise import slide_alone
from opstep.kernels.conv.filter_grad import filter_gradients
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
from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.products import Side
from opstep.kernels.rules.faults import CONVOLUTION
from opstep.kernels.rules.ranks import by_rank
from opstep.runtime.ir.op import OPS, Mismatch, Op, Traits

ATTRS = "stride: ints = {ones}, padding: ints = {zeros}, dilation: ints = {ones}, groups: int = 1)"

_LETTERS = ("", "S", "R, S", "T, R, S")


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


def _turns(x, w, *others, stride, groups, **attrs):
    points = prod(w.shape[2:]) == prod(stride) == 1 and prod(x.shape[2:]) % 8 == 0
    return groups == 1 and not points


_SUM = """{n}D convolution: each output is the sum of products of a filter and the window under it.

x [N, C, {size}], w [K, C/groups, {kernel}], b [K]; y [N, K, {out}] with """


@by_rank(
    "conv{n}d(x: N, w: N, b: N?, *, " + ATTRS,
    _SUM + "W' as in `conv2d`. Padding is one number, or two: left, right.",
    _SUM + "H' = (H + top + bottom - dilation*(R - 1) - 1)//stride + 1, W' likewise.",
    _SUM + "sizes as in `conv2d`. Padding is three numbers, or six: front, top, left, back, "
    "bottom, right.",
    formula=(
        "y[n, k, j] = b[k] + sum over c, s of x[n, c, j*stride + s*dilation - left] * w[k, c, s]",
        "y[n, k, i, j] = b[k] + sum over c, r, s of "
        "x[n, c, i*stride + r*dilation - top, ...] * w[k, c, r, s]",
        "y[n, k, z, i, j] = b[k] + sum over c, t, r, s of "
        "x[n, c, z*stride + t*dilation - front, ...] * w[k, c, t, r, s]",
    ),
    source="torch.nn.functional.conv{n}d, ATen convolution, ONNX Conv",
    lays_out=(None, _turns, None),
)
class Convolution(Op):
    """Base of convolutions of `axes` dimensions."""

    axes: ClassVar[int]
    faults = CONVOLUTION
    traits = Traits(epilogues=True)

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
        if x.shape[1:] == w.shape[1:] and not any(padding):
            # a window is the whole image: an eighth of the time for LeNet's last, of 5x5 pixels
            size = prod(x.shape[1:])
            images, filters = Side(x, size, 1, (size,)), Side(w, 1, size, (0,))
            return product(images, filters, y, x.shape[:1], 1, w.shape[0], size, b)
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
        geometry = geometry_of(windows(w.shape[2:], stride, padding, dilation), y.shape[2:])
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


def _check_against(axes: int, x, w, gy, **attrs) -> None:
    forward = OPS[f"conv{axes}d"]
    expected = forward.infer(x, w, None, **attrs)
    if expected.shape != gy.shape:
        raise Mismatch(f"{forward.name} of {x} with {w} gives {expected}, not {gy}", 0)


def _split(more: Sequence[Any]) -> tuple[Any, Any]:
    """(the bias, if there is one; the result)."""
    return (None, more[0]) if len(more) == 1 else (more[0], more[1])


class Back(Op):
    """Base of what goes the way back, from results to images: operands are results, filters, maybe
    a bias.
    """

    axes: ClassVar[int]

    def cpu(gy, w, *more, stride, padding, dilation, groups, **attrs):
        b, gx = _split(more)
        views = _on_plane(windows(w.shape[2:], stride, padding, dilation))
        return gather_back(flat(gy), flat(w), b, flat(gx), views, groups) if gx.size else []

    def cuda(gy, w, *more, stride, padding, dilation, groups, **attrs):
        b, gx = _split(more)
        views = _on_plane(windows(w.shape[2:], stride, padding, dilation))
        return gpu.gather_back(flat(gy), flat(w), b, flat(gx), views, groups)

    def vendor(gy, w, *more, stride, padding, dilation, groups, **attrs):
        b, gx = _split(more)
        views = _on_plane(windows(w.shape[2:], stride, padding, dilation))
        return convolutions("images", flat(gx), flat(w), flat(gy), views, b)

    def flops(gy, w, *more, **attrs):
        return 2 * gy.with_shape((gy.shape[0], *gy.shape[2:])).size * w.size


_BY_X = "gx [N, C, *size] from gy [N, K, {out}] and the filters w."


@by_rank(
    "conv{n}d_input_grad(gy: N, w: N, *, size: dims, " + ATTRS,
    "The derivative of `conv1d` with respect to its sequences: " + _BY_X,
    "The derivative of `conv2d` with respect to its images: " + _BY_X,
    "The derivative of `conv3d` with respect to its volumes: " + _BY_X,
    formula=(
        "gx[n, c, w] = sum of gy[n, k, j] * w[k, c, s] where window (j) meets (w) at (s)",
        "gx[n, c, h, w] = sum of gy[n, k, i, j] * w[k, c, r, s] "
        "where window (i, j) meets (h, w) at (r, s)",
        "gx[n, c, d, h, w] = sum of gy[n, k, z, i, j] * w[k, c, t, r, s] "
        "where window (z, i, j) meets (d, h, w) at (t, r, s)",
    ),
)
class InputGradient(Back):
    """Base of derivatives with respect to images."""

    results = ("gx",)

    @classmethod
    def infer(cls, gy, w, *, size, **attrs):
        axes, groups = cls.axes, attrs["groups"]
        want_images(cls.name, gy, 0, axes)
        want_filters(cls.name, w, groups, axes)
        want_sizes("size", size, axes, least=0)
        gx = gy.with_shape((gy.shape[0], w.shape[1] * groups, *size))
        _check_against(cls.axes, gx, w, gy, **attrs)
        return gx

    def oracle(gy, w, *, size, stride, padding, dilation, groups):
        return scatter(gy, w, size, windows(w.shape[2:], stride, padding, dilation), groups)

    def grad(g, operands, results, grads, *, size, **attrs):
        gy, w = operands
        (ggx,) = grads
        return (
            of_rank(g, w)(ggx, w, **attrs),
            of_rank(g, w, "_weight_grad")(gy, ggx, kernel=w.shape[2:], **attrs),
        )


_BY_W = (
    "The derivative of `conv{n}d` with respect to its filters: gw [K, C/groups, *kernel] from "
    "gy [N, K, {out}] and "
)


@by_rank(
    "conv{n}d_weight_grad(gy: N, x: N, *, kernel: dims, " + ATTRS,
    _BY_W + "sequences x.",
    _BY_W + "images x.",
    _BY_W + "volumes x.",
    formula=(
        "gw[k, c, s] = sum over n, j of gy[n, k, j] * x[n, c, j*stride + s*dilation - left]",
        "gw[k, c, r, s] = sum over n, i, j of "
        "gy[n, k, i, j] * x[n, c, i*stride + r*dilation - top, ...]",
        "gw[k, c, t, r, s] = sum over n, z, i, j of "
        "gy[n, k, z, i, j] * x[n, c, z*stride + t*dilation - front, ...]",
    ),
)
class WeightGradient(Op):
    """Base of derivatives with respect to filters."""

    axes: ClassVar[int]
    results = ("gw",)

    @classmethod
    def infer(cls, gy, x, *, kernel, **attrs):
        axes, groups = cls.axes, attrs["groups"]
        want_images(cls.name, gy, 0, axes)
        want_images(cls.name, x, 1, axes)
        want_sizes("kernel", kernel, axes, least=0)
        if groups < 1 or (type(x.shape[1]) is int and x.shape[1] % groups):
            raise Mismatch(f"{x.shape[1]} channels cannot be split into {groups} groups", "groups")
        gw = gy.with_shape((gy.shape[1], x.shape[1] // groups, *kernel))
        _check_against(cls.axes, x, gw, gy, **attrs)
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
        geometry = geometry_of(windows(kernel, stride, padding, dilation), gy.shape[2:])
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
