"""Transposed convolutions of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W].

`conv_transpose2d` is `conv2d_input_grad` with a bias; likewise in one and three dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from opstep.kernels.conv.conv import (
    ATTRS,
    Back,
    bias_gradient,
    of_rank,
    scatter,
    want_bias,
    want_filters,
)
from opstep.kernels.conv.windows import Window, axes_of, per_axis, want_images, windows
from opstep.kernels.rules.ranks import by_rank
from opstep.runtime.ir.op import Mismatch

_ATTRS = ATTRS.replace("dilation", "output_padding: ints = {zeros}, dilation")
_SHAPES = """ adds a filter to the output, `stride` apart.

x [N, C, {size}], w [C, K/groups, {kernel}], b [K]; y [N, K, {out}] with """


@by_rank(
    "conv_transpose{n}d(x: N, w: N, b: N?, *, " + _ATTRS,
    f"Transposed 1D convolution: each element{_SHAPES}W' as in `conv_transpose2d`.",
    f"Transposed 2D convolution: each pixel{_SHAPES}H' = (H - 1)*stride - top - bottom + "
    "dilation*(R - 1) + output_padding + 1, W' likewise.",
    f"Transposed 3D convolution: each element{_SHAPES}sizes as in `conv_transpose2d`.",
    formula=(
        "y[n, k, w] = b[k] + sum of x[n, c, j] * w[c, k, s] where w = j*stride + s*dilation - left",
        "y[n, k, h, w] = b[k] + sum of x[n, c, i, j] * w[c, k, r, s] "
        "where h = i*stride + r*dilation - top, ...",
        "y[n, k, d, h, w] = b[k] + sum of x[n, c, z, i, j] * w[c, k, t, r, s] "
        "where d = z*stride + t*dilation - front, ...",
    ),
    source="torch.nn.functional.conv_transpose{n}d, ATen convolution (transposed=true), "
    "ONNX ConvTranspose",
)
class Transposed(Back):
    """Base of transposed convolutions of `axes` dimensions."""

    @classmethod
    def infer(cls, x, w, b, *, stride, padding, output_padding, dilation, groups):
        want_images(cls.name, x, 0, cls.axes)
        want_filters(cls.name, w, groups, cls.axes)
        names = axes_of(cls.axes)
        if w.shape[0] != x.shape[1]:
            raise Mismatch(
                f"x {x} has {x.shape[1]} channels, but filters {w} take {w.shape[0]}",
                1,
                hint=f"w is [channels, filters/groups, {', '.join(names)}]",
            )
        want_bias(b, w.shape[1] * groups)
        views = windows(w.shape[2:], stride, padding, dilation)
        extra = per_axis("output_padding", output_padding, cls.axes, least=0)
        for axis, v, more in zip(names, views, extra, strict=True):
            if more >= max(v.stride, v.dilation):
                raise Mismatch(
                    f"output_padding {more} must be less than the stride or dilation of the {axis}",
                    "output_padding",
                )
        sizes = _grown(x.shape[2:], views, extra)
        for axis, size, out in zip(names, x.shape[2:], sizes, strict=True):
            if (type(out) is int and out < 1) or size == 0:
                raise Mismatch(f"the output would have no {axis}: {out}", 0)
        return x.with_shape((x.shape[0], w.shape[1] * groups, *sizes))

    def oracle(x, w, b=None, *, stride, padding, output_padding, dilation, groups):
        views = windows(w.shape[2:], stride, padding, dilation)
        y = scatter(x, w, _grown(x.shape[2:], views, output_padding), views, groups)
        return y if b is None else y + b.reshape(-1, *[1] * len(views))

    def grad(g, operands, results, grads, *, output_padding, stride, **attrs):
        x, w, b = operands
        (gy,) = grads
        seen = gy
        if any(more >= step for more, step in zip(output_padding, stride, strict=True)):
            # more windows would fit into gy than x has pixels
            ends = [size - more for size, more in zip(gy.shape[2:], output_padding, strict=True)]
            axes = list(range(2, gy.type.rank))
            seen = g.slice(gy, axes=axes, starts=[0] * len(axes), ends=ends)
        return (
            of_rank(g, x)(seen, w, stride=stride, **attrs),
            of_rank(g, x, "_weight_grad")(x, seen, kernel=w.shape[2:], stride=stride, **attrs),
            bias_gradient(g, b, gy),
        )


def _grown(sizes, views: Sequence[Window], extra: Sequence[int]) -> list:
    return [
        (n - 1) * v.stride - v.before - v.after + v.span + more
        for n, v, more in zip(sizes, views, extra, strict=True)
    ]
