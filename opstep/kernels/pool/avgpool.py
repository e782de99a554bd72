"""Average pooling of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: the mean
of each window of a channel.

Padding is a number for both ends of each axis (height, then width), or a number for each end: top,
left, bottom, right.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opstep.kernels.conv.windows import Window, want_images, want_sizes
from opstep.kernels.pool.pool import pool_windows, pooled
from opstep.kernels.pool.summing import Summing, SummingGradient
from opstep.kernels.reduce.reduce import mean
from opstep.kernels.rules.faults import Parts
from opstep.kernels.rules.faults import pooled as window_of
from opstep.kernels.rules.ranks import by_rank
from opstep.kernels.schedules.window import Span, Terms
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.faults import Faults, Rule, Site, opposed
from opstep.runtime.ir.op import OPS, Mismatch


def _views(axes: int, *, kernel, stride, padding, **attrs) -> tuple[Window, ...]:
    return pool_windows(axes, kernel, stride, padding)


def _windows(sizes, out, *, count_include_pad, divisor_override, **attrs) -> list[Terms]:
    """Of each axis; a divisor that is given is that of the first."""
    divisor, axes = divisor_override, []
    for v, size, n in zip(_views(len(sizes), **attrs), sizes, out, strict=True):
        starts = np.arange(n) * v.stride - v.before
        ends = np.minimum(starts + v.kernel, size + v.after)
        begins = np.maximum(starts, 0)
        inside = np.maximum(np.minimum(ends, size), begins)
        divisors = ends - starts if count_include_pad else inside - begins
        if divisor is not None:
            divisors = 1 if axes else divisor
        axes.append(Terms.ranges(begins, inside, size, divisors))
    return axes


def _even(sizes, out, **attrs) -> list[Terms]:
    """Windows that share each axis."""
    spans = [Span.even(size, n) for size, n in zip(sizes, out, strict=True)]
    return [
        Terms.ranges(s.begins, s.ends, size, np.subtract(s.ends, s.begins))
        for s, size in zip(spans, sizes, strict=True)
    ]


def _mean_at(site: Site, parts: Parts) -> Any:
    """An element by its window alone."""
    (x,), (n, c, *place), result = site.operands, site.index, site.results[site.result]
    axes = list(zip(_windows(x.shape[2:], result.shape[2:], **site.attrs), place, strict=True))
    part = (slice(a.begins[k], a.ends[k]) for a, k in axes)
    return x[n, c, *part].astype(parts[0].dtype).sum() / prod(a.divisors[k] for a, k in axes)


class Mean(Summing):
    """Base of means of windows."""

    @classmethod
    def cuda(cls, x: Arg, y: Arg, **attrs) -> list:
        """A mean of all elements is one of `mean`."""
        axes = cls.terms(x.shape[2:], y.shape[2:], attrs)
        whole = [[0, size, size] for size in x.shape[2:]]
        if [[*a.begins, *a.ends, *a.divisors] for a in axes if len(a.ends) == 1] == whole:
            return mean.cuda(x, y, axes=tuple(range(2, x.rank)), keepdims=True)
        return super().cuda(x, y, **attrs)


_ATTRS = (
    "kernel: ints, stride: ints = none, padding: ints = {zeros}, "
    "ceil_mode: bool = false, count_include_pad: bool = true, divisor_override: int = none)"
)
_MEAN = "The mean of each window.\n\nx [N, C, {size}]; y as in `max_pool{n}d`"
_LIKE = _MEAN + ", attributes as in `avg_pool2d`."


@by_rank(
    "avg_pool{n}d(x: F, *, " + _ATTRS,
    _LIKE,
    _MEAN + ". With `count_include_pad`, the zeros of the padding count as elements; otherwise a "
    "window's sum is divided by the number of elements inside the image, or by `divisor_override`. "
    "`stride` defaults to the kernel.",
    _LIKE,
    formula=(
        "",
        "y[n, c, i, j] = mean over r, s of x[n, c, i*stride + r - top, j*stride + s - left]",
        "",
    ),
    source="torch.nn.functional.avg_pool{n}d, ONNX AveragePool (whose count_include_pad is false)",
)
class AveragePool(Mean):
    """Base of poolings of `axes` dimensions."""

    windows = staticmethod(_windows)
    faults = Faults(window_of, Rule("inf - inf", lambda x, **_: opposed(x)), value=_mean_at)

    @classmethod
    def infer(cls, x, **attrs):
        if attrs["divisor_override"] == 0:
            raise Mismatch("divisor_override must not be 0", "divisor_override")
        return pooled(cls.name, x, _views(cls.axes, **attrs), attrs["ceil_mode"])

    def grad(g, operands, results, grads, **attrs):
        (x,) = operands
        op = getattr(g, f"avg_pool{x.type.rank - 2}d_grad")
        return (op(grads[0], size=x.shape[2:], **attrs),)

    @classmethod
    def flops(cls, x, **attrs):
        return cls.infer(x, **attrs).size * (prod(attrs["kernel"]) + 1)


_BACK = "The derivative of `avg_pool{n}d`: gx [N, C, *size] from gy, like `avg_pool2d_grad`."


@by_rank(
    "avg_pool{n}d_grad(gy: F, *, size: dims, " + _ATTRS,
    _BACK,
    """The derivative of `avg_pool2d`: each window's gy, divided, is added to all of its elements.

    gy [N, C, {out}]; gx [N, C, *size].""",
    _BACK,
    source=("", *["ATen avg_pool{n}d_backward"] * 2),
)
class AveragePoolGradient(SummingGradient):
    """Base of the derivatives."""

    windows = staticmethod(_windows)

    @classmethod
    def infer(cls, gy, *, size, **attrs):
        want_images(cls.name, gy, 0, cls.axes)
        want_sizes("size", size, cls.axes)
        gx = gy.with_shape((*gy.shape[:2], *size))
        forward = OPS[f"avg_pool{cls.axes}d"]
        y = forward.infer(gx, **attrs)
        if y.shape != gy.shape:
            raise Mismatch(f"{forward.name} of {gx} gives {y}, not {gy}", 0)
        return gx

    def grad(g, operands, results, grads, *, size, **attrs):
        return (getattr(g, f"avg_pool{len(size)}d")(grads[0], **attrs),)

    def flops(gy, *, kernel, **attrs):
        return gy.size * (prod(kernel) + 1)


# --- adaptive -------------------------------------------------------------------------------------


def want_elements(name: str, x) -> None:
    if 0 in x.shape[2:]:
        raise Mismatch(f"{name}: images {x} have no pixels, so they have no mean", 0)


_EVENLY = " evenly into `output_size` parts.\n\nx [N, C, {size}]; y [N, C, *output_size]; "


@by_rank(
    "adaptive_avg_pool{n}d(x: F, *, output_size: dims)",
    f"Means over windows that divide the sequence{_EVENLY}"
    "window i covers elements i*W//n to (i + 1)*W/n, rounded up.",
    f"Means over windows that divide the image{_EVENLY}"
    "window i covers rows i*H//n to (i + 1)*H/n, rounded up.",
    f"Means over windows that divide the volume{_EVENLY}windows as in `adaptive_avg_pool2d`.",
    source="torch.nn.functional.adaptive_avg_pool{n}d",
)
class AdaptiveAveragePool(Mean):
    """Base of adaptive poolings of `axes` dimensions."""

    windows = staticmethod(_even)

    @classmethod
    def infer(cls, x, *, output_size):
        want_images(cls.name, x, 0, cls.axes)
        want_sizes("output_size", output_size, cls.axes)
        want_elements(cls.name, x)
        return x.with_shape((*x.shape[:2], *output_size))

    def grad(g, operands, results, grads, *, output_size):
        op = getattr(g, f"adaptive_avg_pool{len(output_size)}d_grad")
        return (op(grads[0], size=operands[0].shape[2:]),)

    def flops(x, **attrs):
        return x.size


@by_rank(
    "adaptive_avg_pool{n}d_grad(gy: F, *, size: dims)",
    "The derivative of `adaptive_avg_pool{n}d`: gx [N, C, *size] from gy.",
)
class AdaptiveAveragePoolGradient(SummingGradient):
    """Base of the derivatives."""

    windows = staticmethod(_even)

    @classmethod
    def infer(cls, gy, *, size):
        want_images(cls.name, gy, 0, cls.axes)
        want_sizes("size", size, cls.axes)
        return gy.with_shape((*gy.shape[:2], *size))

    def grad(g, operands, results, grads, *, size):
        op = getattr(g, f"adaptive_avg_pool{len(size)}d")
        return (op(grads[0], output_size=operands[0].shape[2:]),)

    def flops(gy, *, size):
        return gy.size


class global_avg_pool2d(Mean):
    """The mean of each plane: x [N, C, H, W]; y [N, C, 1, 1]."""

    signature = "global_avg_pool2d(x: F)"
    windows = staticmethod(_even)
    source = "torch.mean over [2, 3] with keepdim, ONNX GlobalAveragePool"

    def infer(x):
        want_images("global_avg_pool2d", x)
        want_elements("global_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], 1, 1))

    def grad(g, operands, results, grads):
        return (g.adaptive_avg_pool2d_grad(grads[0], size=operands[0].shape[2:]),)

    def flops(x):
        return x.size
