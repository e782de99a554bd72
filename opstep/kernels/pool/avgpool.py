"""Average pooling of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: the mean
of each window of a channel.

Padding is a number for both ends of each axis (height, then width), or a number for each end: top,
left, bottom, right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opstep.kernels.conv.windows import Window, counts, flat, want_images, want_sizes
from opstep.kernels.pool.cuda_pool import means, means_gradient
from opstep.kernels.pool.cuda_resample import resampled_on_cuda
from opstep.kernels.pool.pool import grain_of, pool_windows, pooled
from opstep.kernels.pool.pooling import average_windows, spread_over_windows
from opstep.kernels.pool.resample import Mix, resample
from opstep.kernels.reduce.reduce import mean
from opstep.kernels.rules.relations import Parts
from opstep.kernels.rules.relations import pooled as window_of
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.faults import Faults, Rule, Site, opposed
from opstep.runtime.ir.op import Mismatch, Op


class Spans(NamedTuple):
    """Along one axis: where each window begins and ends, and what its sum is divided by."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def averaging(
        cls, size: int, out: int, v: Window, count_include_pad: bool, divisor: int | None
    ) -> Spans:
        starts = [i * v.stride - v.before for i in range(out)]
        ends = [min(b + v.kernel, size + v.after) for b in starts]  # pyright: ignore[reportOperatorIssue]
        begins = [max(b, 0) for b in starts]
        inside = [max(min(e, size), b) for b, e in zip(begins, ends, strict=True)]
        counted = (starts, ends) if count_include_pad else (begins, inside)
        counts = [e - b for b, e in zip(*counted, strict=True)]
        if divisor is not None:
            counts = [divisor] * out
        return cls(tuple(begins), tuple(inside), tuple(counts))

    @classmethod
    def adaptive(cls, size: int, out: int) -> Spans:
        """Windows that share an axis evenly: i*size//out to the next one's begin, rounded up."""
        begins = tuple(i * size // out for i in range(out))
        ends = tuple(-(-(i + 1) * size // out) for i in range(out))
        return cls(begins, ends, tuple(e - b for b, e in zip(begins, ends, strict=True)))

    @property
    def mix(self) -> Mix:
        """The same for volumes."""
        spans = zip(self.begins, self.ends, strict=True)
        return Mix.of([[(k, 1.0) for k in range(b, e)] for b, e in spans], self.counts)


_ALL = Spans((0,), (1,), (1,))  # of an axis that is not there


def _averaging(sizes, out, attrs: dict) -> list[Spans]:
    """Of each axis; a divisor that is given is that of the first."""
    padded, divisor = attrs["count_include_pad"], attrs["divisor_override"]
    views = _views(len(sizes), attrs)
    return [
        Spans.averaging(size, n, v, padded, divisor if divisor is None or not k else 1)
        for k, (size, n, v) in enumerate(zip(sizes, out, views, strict=True))
    ]


def _views(axes: int, attrs: dict) -> tuple[Window, ...]:
    return pool_windows(axes, *(attrs[k] for k in ("kernel", "stride", "padding")))


def _adaptive(sizes, out) -> list[Spans]:
    return [Spans.adaptive(size, n) for size, n in zip(sizes, out, strict=True)]


def _on_plane(spans: Sequence[Spans]) -> list[tuple[int, ...]]:
    """As the kernels of images take them: rows, then columns."""
    return [table for axis in (_ALL, *spans)[-2:] for table in axis]


def _average(x: Arg, y: Arg, spans: Sequence[Spans]) -> list[Launch]:
    if x.rank == 5:
        return resample(x, y, [s.mix for s in spans])
    x, y = flat(x), flat(y)
    lines = Scratch(x.dtype, x.shape[3], per_lane=True)
    units = prod(y.shape[:3])
    return [
        Launch(
            *(average_windows, x, y, lines, lines.size),
            *(*x.shape[2:], *y.shape[2:], *_on_plane(spans)),
            units=units if y.size else 0,
            grain=grain_of(units, x.size + y.size * 4),
        )
    ]


def _spread(gy: Arg, gx: Arg, spans: Sequence[Spans]) -> list[Launch]:
    if gx.rank == 5:
        return resample(gy, gx, _transposed(spans, gx))
    gy, gx = flat(gy), flat(gx)
    lines = Scratch(gx.dtype, gx.shape[3], per_lane=True)
    units = prod(gx.shape[:2])
    return [
        Launch(
            *(spread_over_windows, gy, gx, lines, lines.size),
            *(*gx.shape[2:], *gy.shape[2:], *_on_plane(spans)),
            units=units if gx.size else 0,
            grain=grain_of(units, gx.size + gy.size * 4),
        )
    ]


def _transposed(spans: Sequence[Spans], gx: Arg) -> list[Mix]:
    return [s.mix.transposed(n) for s, n in zip(spans, gx.shape[2:], strict=True)]


def _average_on_cuda(x: Arg, y: Arg, spans: Sequence[Spans]) -> list:
    if all(s == (s.begins, (size,), (size,)) for s, size in zip(spans, x.shape[2:], strict=True)):
        return mean.cuda(x, y, axes=tuple(range(2, x.rank)), keepdims=True)
    if x.rank == 5:
        return resampled_on_cuda(x, y, [s.mix for s in spans])
    return means(flat(x), flat(y), _on_plane(spans))


def _spread_on_cuda(gy: Arg, gx: Arg, spans: Sequence[Spans]) -> list:
    if gx.rank == 5:
        return resampled_on_cuda(gy, gx, _transposed(spans, gx))
    return means_gradient(flat(gy), flat(gx), _on_plane(spans))


def _windows_of(spans: Sequence[Spans]):
    """For oracles: each place of the result, the part of x, what the sum is divided by."""
    for place in np.ndindex(*(len(s.begins) for s in spans)):
        chosen = list(zip(spans, place, strict=True))
        part = tuple(slice(s.begins[k], s.ends[k]) for s, k in chosen)
        yield (..., *place), (..., *part), prod(s.counts[k] for s, k in chosen)


def _means(x, spans: Sequence[Spans]):
    """For oracles."""
    y = np.zeros((*x.shape[:2], *(len(s.begins) for s in spans)))
    for place, part, count in _windows_of(spans):
        y[place] = x[part].sum(axis=tuple(range(2, x.ndim))) / count
    return y


def _mean_at(site: Site, parts: Parts) -> Any:
    """An element by its window alone."""
    (x,), (n, c, *place), result = site.operands, site.index, site.results[site.result]
    spans = _averaging(x.shape[2:], result.shape[2:], site.attrs)
    part = (slice(s.begins[k], s.ends[k]) for s, k in zip(spans, place, strict=True))
    count = prod(s.counts[k] for s, k in zip(spans, place, strict=True))
    return x[n, c, *part].astype(parts[0].dtype).sum() / count


def _shares(gy, sizes, spans: Sequence[Spans]):
    """For oracles."""
    gx = np.zeros((*gy.shape[:2], *sizes))
    for place, part, count in _windows_of(spans):
        gx[part] += (gy[place] / count).reshape(*gy.shape[:2], *[1] * len(sizes))
    return gx


def _attrs(axes: int) -> str:
    return (
        f"kernel: ints, stride: ints = none, padding: ints = {[0] * axes}, "
        "ceil_mode: bool = false, count_include_pad: bool = true, divisor_override: int = none)"
    )


class AveragePool(Op):
    """Base of poolings of `axes` dimensions."""

    axes: ClassVar[int]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.faults = Faults(
            window_of,
            Rule("inf - inf", lambda x, **_: opposed(x)),
            value=_mean_at,
        )

    @classmethod
    def infer(cls, x, **attrs):
        if attrs["divisor_override"] == 0:
            raise Mismatch("divisor_override must not be 0", "divisor_override")
        return pooled(cls.name, x, _views(cls.axes, attrs), attrs["ceil_mode"])

    def oracle(x, **attrs):
        out = counts(_views(x.ndim - 2, attrs), x.shape[2:], attrs["ceil_mode"])
        return _means(x, _averaging(x.shape[2:], out, attrs))

    def cpu(x, y, **attrs):
        return _average(x, y, _averaging(x.shape[2:], y.shape[2:], attrs))

    def cuda(x, y, **attrs):
        return _average_on_cuda(x, y, _averaging(x.shape[2:], y.shape[2:], attrs))

    def grad(g, operands, results, grads, **attrs):
        (x,) = operands
        op = getattr(g, f"avg_pool{x.type.rank - 2}d_grad")
        return (op(grads[0], size=x.shape[2:], **attrs),)

    @classmethod
    def flops(cls, x, **attrs):
        return cls.infer(x, **attrs).size * (prod(attrs["kernel"]) + 1)


class avg_pool1d(AveragePool):
    """The mean of each window.

    x [N, C, W]; y as in `max_pool1d`, attributes as in `avg_pool2d`.
    """

    axes = 1
    signature = f"avg_pool1d(x: F, *, {_attrs(1)}"
    source = "torch.nn.functional.avg_pool1d, ONNX AveragePool (whose count_include_pad is false)"


class avg_pool2d(AveragePool):
    """The mean of each window.

    x [N, C, H, W]; y as in `max_pool2d`. With `count_include_pad`, the zeros of the padding count
    as elements; otherwise a window's sum is divided by the number of elements inside the image, or
    by `divisor_override`. `stride` defaults to the kernel.
    """

    axes = 2
    signature = f"avg_pool2d(x: F, *, {_attrs(2)}"
    source = "torch.nn.functional.avg_pool2d, ONNX AveragePool (whose count_include_pad is false)"
    formula = "y[n, c, i, j] = mean over r, s of x[n, c, i*stride + r - top, j*stride + s - left]"


class avg_pool3d(AveragePool):
    """The mean of each window.

    x [N, C, D, H, W]; y as in `max_pool3d`, attributes as in `avg_pool2d`.
    """

    axes = 3
    signature = f"avg_pool3d(x: F, *, {_attrs(3)}"
    source = "torch.nn.functional.avg_pool3d, ONNX AveragePool (whose count_include_pad is false)"


class AveragePoolGradient(Op):
    """Base of the derivatives."""

    forward: ClassVar[type[AveragePool]]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, *, size, **attrs):
        axes = cls.forward.axes
        want_images(cls.name, gy, 0, axes)
        want_sizes("size", size, axes)
        gx = gy.with_shape((*gy.shape[:2], *size))
        y = cls.forward.infer(gx, **attrs)
        if y.shape != gy.shape:
            raise Mismatch(f"{cls.forward.name} of {gx} gives {y}, not {gy}", 0)
        return gx

    def oracle(gy, *, size, **attrs):
        return _shares(gy, size, _averaging(size, gy.shape[2:], attrs))

    def cpu(gy, gx, *, size, **attrs):
        return _spread(gy, gx, _averaging(gx.shape[2:], gy.shape[2:], attrs))

    def cuda(gy, gx, *, size, **attrs):
        return _spread_on_cuda(gy, gx, _averaging(gx.shape[2:], gy.shape[2:], attrs))

    def grad(g, operands, results, grads, *, size, **attrs):
        return (getattr(g, f"avg_pool{len(size)}d")(grads[0], **attrs),)

    def flops(gy, *, kernel, **attrs):
        return gy.size * (prod(kernel) + 1)


class avg_pool1d_grad(AveragePoolGradient):
    """The derivative of `avg_pool1d`: gx [N, C, *size] from gy, like `avg_pool2d_grad`."""

    forward = avg_pool1d
    signature = f"avg_pool1d_grad(gy: F, *, size: dims, {_attrs(1)}"


class avg_pool2d_grad(AveragePoolGradient):
    """The derivative of `avg_pool2d`: each window's gy, divided, is added to all of its elements.

    gy [N, C, H', W']; gx [N, C, *size].
    """

    forward = avg_pool2d
    signature = f"avg_pool2d_grad(gy: F, *, size: dims, {_attrs(2)}"
    source = "ATen avg_pool2d_backward"


class avg_pool3d_grad(AveragePoolGradient):
    """The derivative of `avg_pool3d`: gx [N, C, *size] from gy, like `avg_pool2d_grad`."""

    forward = avg_pool3d
    signature = f"avg_pool3d_grad(gy: F, *, size: dims, {_attrs(3)}"
    source = "ATen avg_pool3d_backward"


# --- adaptive -------------------------------------------------------------------------------------


def want_elements(name: str, x) -> None:
    if 0 in x.shape[2:]:
        raise Mismatch(f"{name}: images {x} have no pixels, so they have no mean", 0)


class AdaptiveAveragePool(Op):
    """Base of adaptive poolings of `axes` dimensions."""

    axes: ClassVar[int]

    @classmethod
    def infer(cls, x, *, output_size):
        want_images(cls.name, x, 0, cls.axes)
        want_sizes("output_size", output_size, cls.axes)
        want_elements(cls.name, x)
        return x.with_shape((*x.shape[:2], *output_size))

    def oracle(x, *, output_size):
        return _means(x, _adaptive(x.shape[2:], output_size))

    def cpu(x, y, *, output_size):
        return _average(x, y, _adaptive(x.shape[2:], y.shape[2:]))

    def cuda(x, y, *, output_size):
        return _average_on_cuda(x, y, _adaptive(x.shape[2:], y.shape[2:]))

    def grad(g, operands, results, grads, *, output_size):
        op = getattr(g, f"adaptive_avg_pool{len(output_size)}d_grad")
        return (op(grads[0], size=operands[0].shape[2:]),)

    def flops(x, **attrs):
        return x.size


class adaptive_avg_pool1d(AdaptiveAveragePool):
    """Means over windows that divide the sequence evenly into `output_size` parts.

    x [N, C, W]; y [N, C, *output_size]; window i covers elements i*W//n to (i + 1)*W/n, rounded up.
    """

    axes = 1
    signature = "adaptive_avg_pool1d(x: F, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_avg_pool1d"


class adaptive_avg_pool2d(AdaptiveAveragePool):
    """Means over windows that divide the image evenly into `output_size` parts.

    x [N, C, H, W]; y [N, C, *output_size]; window i covers rows i*H//n to (i + 1)*H/n, rounded up.
    """

    axes = 2
    signature = "adaptive_avg_pool2d(x: F, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_avg_pool2d"


class adaptive_avg_pool3d(AdaptiveAveragePool):
    """Means over windows that divide the volume evenly into `output_size` parts.

    x [N, C, D, H, W]; y [N, C, *output_size]; windows as in `adaptive_avg_pool2d`.
    """

    axes = 3
    signature = "adaptive_avg_pool3d(x: F, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_avg_pool3d"


class AdaptiveAveragePoolGradient(Op):
    """Base of the derivatives."""

    axes: ClassVar[int]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, *, size):
        want_images(cls.name, gy, 0, cls.axes)
        want_sizes("size", size, cls.axes)
        return gy.with_shape((*gy.shape[:2], *size))

    def oracle(gy, *, size):
        return _shares(gy, size, _adaptive(size, gy.shape[2:]))

    def cpu(gy, gx, *, size):
        return _spread(gy, gx, _adaptive(gx.shape[2:], gy.shape[2:]))

    def cuda(gy, gx, *, size):
        return _spread_on_cuda(gy, gx, _adaptive(gx.shape[2:], gy.shape[2:]))

    def grad(g, operands, results, grads, *, size):
        op = getattr(g, f"adaptive_avg_pool{len(size)}d")
        return (op(grads[0], output_size=operands[0].shape[2:]),)

    def flops(gy, *, size):
        return gy.size


class adaptive_avg_pool1d_grad(AdaptiveAveragePoolGradient):
    """The derivative of `adaptive_avg_pool1d`: gx [N, C, *size] from gy."""

    axes = 1
    signature = "adaptive_avg_pool1d_grad(gy: F, *, size: dims)"


class adaptive_avg_pool2d_grad(AdaptiveAveragePoolGradient):
    """The derivative of `adaptive_avg_pool2d`: gx [N, C, *size] from gy."""

    axes = 2
    signature = "adaptive_avg_pool2d_grad(gy: F, *, size: dims)"


class adaptive_avg_pool3d_grad(AdaptiveAveragePoolGradient):
    """The derivative of `adaptive_avg_pool3d`: gx [N, C, *size] from gy."""

    axes = 3
    signature = "adaptive_avg_pool3d_grad(gy: F, *, size: dims)"


class global_avg_pool2d(Op):
    """The mean of each plane: x [N, C, H, W]; y [N, C, 1, 1]."""

    signature = "global_avg_pool2d(x: F)"
    source = "torch.mean over [2, 3] with keepdim, ONNX GlobalAveragePool"

    def infer(x):
        want_images("global_avg_pool2d", x)
        want_elements("global_avg_pool2d", x)
        return x.with_shape((*x.shape[:2], 1, 1))

    def oracle(x):
        return x.mean(axis=(2, 3), keepdims=True)

    def cpu(x, y):
        return _average(x, y, _adaptive(x.shape[2:], (1, 1)))

    def cuda(x, y):
        return _average_on_cuda(x, y, _adaptive(x.shape[2:], (1, 1)))

    def grad(g, operands, results, grads):
        return (g.adaptive_avg_pool2d_grad(grads[0], size=operands[0].shape[2:]),)

    def flops(x):
        return x.size
