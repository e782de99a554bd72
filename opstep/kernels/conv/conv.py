"""Convolutions of images [N, C, H, W] with filters [K, C/groups, R, S], and their derivatives.

The three ops `conv2d`, `conv2d_input_grad` and `conv2d_weight_grad` are derivatives of each other,
so the gradient of each uses the other two. `conv_transpose2d` is `conv2d_input_grad` with a bias.

Padding is two numbers, for both ends of the height and of the width, or four: top, left, bottom,
right.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.conv import cuda_conv as gpu
from opstep.kernels.conv.correlation import Geometry, correlate, only_bias
from opstep.kernels.conv.edges import mend_edges, sizes
from opstep.kernels.conv.filter_grad import filter_gradients
from opstep.kernels.conv.vendor import convolutions
from opstep.kernels.conv.windows import Window, padded, pair, taps, want_images, windows
from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.products import Side
from opstep.kernels.rules.pitfalls import CONVOLUTION
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import u8


def _want_filters(name: str, w, groups: int) -> None:
    if w.rank != 4:
        raise Mismatch(f"{name} takes filters [K, C/groups, R, S], not {w}", 1)
    if groups < 1:
        raise Mismatch(f"groups must be at least 1, not {groups}", "groups")
    if type(w.shape[0]) is int and w.shape[0] % groups:
        raise Mismatch(f"{w.shape[0]} filters cannot be split into {groups} groups", "groups")
    for side, size in zip(("height", "width"), w.shape[2:], strict=True):
        if type(size) is int and size < 1:
            raise Mismatch(f"filters {w} have no {side}", 1)


def _want_bias(b, channels) -> None:
    if b is not None and b.shape != (channels,):
        raise Mismatch(f"the bias is {b}, but there are {channels} output channels", 2)


def _window_geometry(rows: Window, columns: Window, y, plane=None) -> Geometry:
    """Where outputs of a convolution look."""
    return Geometry(
        out=y.shape[2:],
        stride=(rows.stride, columns.stride),
        rows=tuple(r * rows.dilation - rows.before for r in range(rows.kernel)),
        columns=tuple(s * columns.dilation - columns.before for s in range(columns.kernel)),
        plane=y.shape[2:],
    )


class conv2d(Op):
    """2D convolution: each output is the sum of products of a filter and the window under it.

    x [N, C, H, W], w [K, C/groups, R, S], b [K]; y [N, K, H', W'] with H' = (H + top + bottom -
    dilation*(R - 1) - 1)//stride + 1, W' likewise.
    """

    signature = (
        "conv2d(x: N, w: N, b: N?, *, stride: ints = [1, 1], padding: ints = [0, 0], "
        "dilation: ints = [1, 1], groups: int = 1)"
    )
    source = "torch.nn.functional.conv2d, ATen convolution, ONNX Conv"
    formula = (
        "y[n, k, i, j] = b[k] + sum over c, r, s of "
        "x[n, c, i*stride + r*dilation - top, ...] * w[k, c, r, s]"
    )
    faults = CONVOLUTION

    def infer(x, w, b, *, stride, padding, dilation, groups):
        want_images("conv2d", x)
        _want_filters("conv2d", w, groups)
        if w.shape[1] * groups != x.shape[1]:
            wanted = f"{groups} groups of {w.shape[1]}" if groups > 1 else f"{w.shape[1]}"
            raise Mismatch(
                f"x {x} has {x.shape[1]} channels, but filters {w} take {wanted}",
                1,
                hint="w is [filters, channels/groups, height, width]",
            )
        _want_bias(b, w.shape[0])
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        height, width = rows.count(x.shape[2], "height"), columns.count(x.shape[3], "width")
        return x.with_shape((x.shape[0], w.shape[0], height, width))

    def oracle(x, w, b=None, *, stride, padding, dilation, groups):
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        out = rows.count(x.shape[2], "height"), columns.count(x.shape[3], "width")
        n, (k, c) = x.shape[0], w.shape[:2]
        y = np.zeros((n, groups, k // groups, *out), x.dtype)
        for (r, s), seen in taps(padded(x, rows, columns), rows, columns, out):
            seen = seen.reshape(n, groups, c, *out)
            y += np.einsum("ngchw,gkc->ngkhw", seen, w[:, :, r, s].reshape(groups, k // groups, c))
        y = y.reshape(n, k, *out)
        return y if b is None else y + b[:, None, None]

    def cpu(x, w, b, y, *, stride, padding, dilation, groups):
        if not y.size:
            return []
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        geometry = _window_geometry(rows, columns, y)
        if w.shape[2:] == (1, 1) and not any(padding) and groups == 1 and w.shape[0] >= 8:
            return _mixed(x, w, b, y, geometry.stride)
        return correlate(x, w, b, y, groups, geometry)

    def cuda(x, w, b, y, *, stride, padding, dilation, groups):
        if not y.size:
            return []
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        return gpu.correlate(x, w, b, y, groups, _window_geometry(rows, columns, y))

    def vendor(x, w, b, y, *, stride, padding, dilation, groups):
        return convolutions("forward", x, w, y, *windows(w.shape[2:], stride, padding, dilation), b)

    def grad(g, operands, results, grads, **attrs):
        x, w, b = operands
        (gy,) = grads
        return (
            g.conv2d_input_grad(gy, w, size=x.shape[2:], **attrs),
            g.conv2d_weight_grad(gy, x, kernel=w.shape[2:], **attrs),
            None if b is None else g.sum(gy, axes=[0, 2, 3], keepdims=False),
        )

    def flops(x, w, b, *, stride, padding, dilation, groups):
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        out = rows.count(x.shape[2], "height") * columns.count(x.shape[3], "width")
        return 2 * x.shape[0] * out * w.size


def _mixed(x, w, bias, y, stride: tuple[int, int]) -> list[Launch]:
    """Filters of one pixel: a product of the filters and each image's channels."""
    (images, channels), filters, pixels = x.shape[:2], w.shape[0], math.prod(y.shape[2:])
    launches = []
    seen = x
    if x.shape[2:] != y.shape[2:]:
        seen = Scratch(x.dtype, images * channels * pixels)
        sizes = (*x.shape[2:], *y.shape[2:], *stride)
        launches.append(Launch(thin_out, x, seen, *sizes, units=images * channels, grain=8))
    shape, of_filters, of_images = (), (), ()
    if images > 1:
        shape, of_filters, of_images = (images,), (0,), (channels * pixels,)
    left, right = Side(w, channels, 1, of_filters), Side(seen, pixels, 1, of_images)
    launches += product(left, right, y, shape, filters, pixels, channels, bias, of_rows=True)
    return launches


def thin_out(x, y, height, width, out_h, out_w, stride_h, stride_w, lo, hi):
    """The pixels that strides do not leave out, of one channel a unit."""
    for unit in range(lo, hi):
        for i in range(out_h):
            source = offset(x, (unit * height + i * stride_h) * width)
            to = offset(y, (unit * out_h + i) * out_w)
            for j in range(out_w):
                to[j] = source[j * stride_w]


def _gather_back(gy, w, bias, gx, rows: Window, columns: Window, groups: int) -> list[Launch]:
    """Launches for gx [N, C, H, W]: what each of its pixels receives from gy [N, K, H', W'] through
    filters w.

    Pixels h with equal h % stride receive through the same filter rows, so each such phase of gx is
    a convolution of gy with stride 1; one that receives through none is the bias alone.
    """
    launches = []
    buffer = Scratch(gy.dtype, 0, per_lane=True)
    odd, phases = Scratch(u8, 0), 0
    filters, channels = w.shape[0] // groups, w.shape[1]
    down, right = rows.phases(gx.shape[2]), columns.phases(gx.shape[3])
    if len(down) < min(rows.stride, gx.shape[2]) or len(right) < min(columns.stride, gx.shape[3]):
        launches.append(only_bias(bias, gx))
    for a, over in down.items():
        for b, across in right.items():
            picked = tuple(r * columns.kernel + s for r in over for s in across)
            turned = Scratch(w.dtype, groups * channels * filters * len(picked))
            launches.append(
                Launch(
                    *(turn_filters, w, turned, odd, odd.size, picked, len(picked), filters),
                    *(channels, rows.kernel * columns.kernel),
                    units=groups * channels,
                    grain=max(1, 8192 // max(1, filters * len(picked))),
                )
            )
            odd.size += groups * channels
            phases += 1
            geometry = Geometry(
                out=(
                    -(-(gx.shape[2] - a) // rows.stride),
                    -(-(gx.shape[3] - b) // columns.stride),
                ),
                stride=(1, 1),
                rows=tuple((a + rows.before - r * rows.dilation) // rows.stride for r in over),
                columns=tuple(
                    (b + columns.before - s * columns.dilation) // columns.stride for s in across
                ),
                plane=gx.shape[2:],
                step=(rows.stride, columns.stride),
                first=(a, b),
            )
            launches.append(correlate(gy, turned, bias, gx, groups, geometry, buffer))
    if gx.dtype.is_float and gy.size:
        given = sizes(gy, w, bias, gx, rows, columns)
        pixels = gx.size // gx.shape[1]
        launches.append(
            Launch(
                *(mend_edges, gy, w, bias or gy, gx, odd, phases, *given, pixels),
                units=gx.shape[1],
            )
        )
    return launches


def turn_filters(w, turned, odd, own, picked, count, filters, channels, taps, lo, hi):
    """turned[g*C + c, k, t] = w[g*K + k, c, picked[t]]; odd[own + g*C + c]: whether one of these is
    no finite number.
    """
    for unit in range(lo, hi):
        group, c = unit // channels, unit % channels
        to = offset(turned, unit * filters * count)
        bad = 0
        for k in range(filters):
            source = offset(w, ((group * filters + k) * channels + c) * taps)
            for t in range(count):
                to[k * count + t] = source[picked[t]]
                bad |= 0 if math.isfinite(source[picked[t]]) else 1
        odd[own + unit] = bad


def _scatter(gy, w, plane, rows: Window, columns: Window, groups: int):
    """For oracles: [N, C, *plane] from gy [N, K, H', W'], each output's window added up."""
    n, k = gy.shape[:2]
    c = w.shape[1]
    sizes = [max(p + v.before + v.after, (o - 1) * v.stride + v.span)
             for p, v, o in zip(plane, (rows, columns), gy.shape[2:], strict=True)]  # fmt: skip
    gx = np.zeros((n, groups * c, *sizes), gy.dtype)
    parts = gy.reshape(n, groups, k // groups, *gy.shape[2:])
    for (r, s), seen in taps(gx, rows, columns, gy.shape[2:]):
        filters = w[:, :, r, s].reshape(groups, k // groups, c)
        seen += np.einsum("ngkhw,gkc->ngchw", parts, filters).reshape(seen.shape)
    top, left = rows.before, columns.before
    return gx[:, :, top : top + plane[0], left : left + plane[1]]


class conv2d_input_grad(Op):
    """The derivative of `conv2d` with respect to its images: gx [N, C, *size] from gy [N, K, H',
    W'] and the filters w.
    """

    signature = (
        "conv2d_input_grad(gy: N, w: N, *, size: dims, stride: ints = [1, 1], "
        "padding: ints = [0, 0], dilation: ints = [1, 1], groups: int = 1)"
    )
    results = ("gx",)
    formula = (
        "gx[n, c, h, w] = sum of gy[n, k, i, j] * w[k, c, r, s] "
        "where window (i, j) meets (h, w) at (r, s)"
    )

    def infer(gy, w, *, size, stride, padding, dilation, groups):
        want_images("conv2d_input_grad", gy)
        _want_filters("conv2d_input_grad", w, groups)
        if len(size) != 2:
            raise Mismatch(f"size takes height and width, not {list(size)}", "size")
        gx = gy.with_shape((gy.shape[0], w.shape[1] * groups, *size))
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        expected = conv2d.infer(gx, w, None, **attrs)
        if expected.shape != gy.shape:
            raise Mismatch(f"conv2d of {gx} with {w} gives {expected}, not {gy}", 0)
        return gx

    def oracle(gy, w, *, size, stride, padding, dilation, groups):
        return _scatter(gy, w, size, *windows(w.shape[2:], stride, padding, dilation), groups)

    def cpu(gy, w, gx, *, size, stride, padding, dilation, groups):
        if not gx.size:
            return []
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        return _gather_back(gy, w, None, gx, rows, columns, groups)

    def cuda(gy, w, gx, *, size, stride, padding, dilation, groups):
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        return gpu.gather_back(gy, w, None, gx, rows, columns, groups)

    def vendor(gy, w, gx, *, size, stride, padding, dilation, groups):
        return convolutions("images", gx, w, gy, *windows(w.shape[2:], stride, padding, dilation))

    def grad(g, operands, results, grads, *, size, **attrs):
        gy, w = operands
        (ggx,) = grads
        return (
            g.conv2d(ggx, w, **attrs),
            g.conv2d_weight_grad(gy, ggx, kernel=w.shape[2:], **attrs),
        )

    def flops(gy, w, **attrs):
        return 2 * gy.shape[0] * gy.shape[2] * gy.shape[3] * w.size


class conv2d_weight_grad(Op):
    """The derivative of `conv2d` with respect to its filters: gw [K, C/groups, *kernel] from gy [N,
    K, H', W'] and images x.
    """

    signature = (
        "conv2d_weight_grad(gy: N, x: N, *, kernel: dims, stride: ints = [1, 1], "
        "padding: ints = [0, 0], dilation: ints = [1, 1], groups: int = 1)"
    )
    results = ("gw",)
    formula = (
        "gw[k, c, r, s] = sum over n, i, j of "
        "gy[n, k, i, j] * x[n, c, i*stride + r*dilation - top, ...]"
    )

    def infer(gy, x, *, kernel, stride, padding, dilation, groups):
        want_images("conv2d_weight_grad", gy)
        want_images("conv2d_weight_grad", x, 1)
        if len(kernel) != 2:
            raise Mismatch(f"kernel takes height and width, not {list(kernel)}", "kernel")
        if groups < 1 or (type(x.shape[1]) is int and x.shape[1] % groups):
            raise Mismatch(f"{x.shape[1]} channels cannot be split into {groups} groups", "groups")
        gw = gy.with_shape((gy.shape[1], x.shape[1] // groups, *kernel))
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        expected = conv2d.infer(x, gw, None, **attrs)
        if expected.shape != gy.shape:
            raise Mismatch(f"conv2d of {x} with {gw} gives {expected}, not {gy}", 0)
        return gw

    def oracle(gy, x, *, kernel, stride, padding, dilation, groups):
        rows, columns = windows(kernel, stride, padding, dilation)
        n, k = gy.shape[:2]
        c, out = x.shape[1] // groups, gy.shape[2:]
        gw = np.zeros((groups, k // groups, c, *kernel), gy.dtype)
        parts = gy.reshape(n, groups, k // groups, *out)
        for (r, s), seen in taps(padded(x, rows, columns), rows, columns, out):
            seen = seen.reshape(n, groups, c, *out)
            gw[..., r, s] = np.einsum("ngkhw,ngchw->gkc", parts, seen)
        return gw.reshape(k, c, *kernel)

    def cpu(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        if not gw.size:
            return []
        rows, columns = windows(kernel, stride, padding, dilation)
        return filter_gradients(gy, x, gw, groups, _window_geometry(rows, columns, gy))

    def cuda(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        rows, columns = windows(kernel, stride, padding, dilation)
        return gpu.filter_gradients(gy, x, gw, groups, _window_geometry(rows, columns, gy))

    def vendor(gy, x, gw, *, kernel, stride, padding, dilation, groups):
        return convolutions("filters", x, gw, gy, *windows(kernel, stride, padding, dilation))

    def grad(g, operands, results, grads, *, kernel, **attrs):
        gy, x = operands
        (ggw,) = grads
        return (
            g.conv2d(x, ggw, **attrs),
            g.conv2d_input_grad(gy, ggw, size=x.shape[2:], **attrs),
        )

    def flops(gy, x, *, kernel, groups, **attrs):
        return 2 * gy.size * (x.shape[1] // groups) * kernel[0] * kernel[1]


class conv_transpose2d(Op):
    """Transposed 2D convolution: each pixel adds a filter to the output, `stride` apart.

    x [N, C, H, W], w [C, K/groups, R, S], b [K]; y [N, K, H', W'] with H' = (H - 1)*stride - top -
    bottom + dilation*(R - 1) + output_padding + 1.
    """

    signature = (
        "conv_transpose2d(x: N, w: N, b: N?, *, stride: ints = [1, 1], padding: ints = [0, 0], "
        "output_padding: ints = [0, 0], dilation: ints = [1, 1], groups: int = 1)"
    )
    source = (
        "torch.nn.functional.conv_transpose2d, ATen convolution (transposed=true), "
        "ONNX ConvTranspose"
    )
    formula = (
        "y[n, k, h, w] = b[k] + sum of x[n, c, i, j] * w[c, k, r, s] "
        "where h = i*stride + r*dilation - top, ..."
    )

    def infer(x, w, b, *, stride, padding, output_padding, dilation, groups):
        want_images("conv_transpose2d", x)
        _want_filters("conv_transpose2d", w, groups)
        if w.shape[0] != x.shape[1]:
            raise Mismatch(
                f"x {x} has {x.shape[1]} channels, but filters {w} take {w.shape[0]}",
                1,
                hint="w is [channels, filters/groups, height, width]",
            )
        _want_bias(b, w.shape[1] * groups)
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        extra = pair("output_padding", output_padding, least=0)
        sizes = []
        for axis, size, v, more in zip(
            ("height", "width"), x.shape[2:], (rows, columns), extra, strict=True
        ):
            if more >= max(v.stride, v.dilation):
                raise Mismatch(
                    f"output_padding {more} must be less than the stride or dilation of the {axis}",
                    "output_padding",
                )
            out = (size - 1) * v.stride - v.before - v.after + v.span + more
            if (type(out) is int and out < 1) or size == 0:
                raise Mismatch(f"the output would have no {axis}: {out}", 0)
            sizes.append(out)
        return x.with_shape((x.shape[0], w.shape[1] * groups, *sizes))

    def oracle(x, w, b=None, *, stride, padding, output_padding, dilation, groups):
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        plane = [
            (n - 1) * v.stride - v.before - v.after + v.span + more
            for n, v, more in zip(x.shape[2:], (rows, columns), output_padding, strict=True)
        ]
        y = _scatter(x, w, plane, rows, columns, groups)
        return y if b is None else y + b[:, None, None]

    def cpu(x, w, b, y, *, stride, padding, output_padding, dilation, groups):
        if not y.size:
            return []
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        return _gather_back(x, w, b, y, rows, columns, groups)

    def cuda(x, w, b, y, *, stride, padding, output_padding, dilation, groups):
        rows, columns = windows(w.shape[2:], stride, padding, dilation)
        return gpu.gather_back(x, w, b, y, rows, columns, groups)

    def vendor(x, w, b, y, *, stride, padding, output_padding, dilation, groups):
        return convolutions("images", y, w, x, *windows(w.shape[2:], stride, padding, dilation), b)

    def grad(g, operands, results, grads, *, output_padding, stride, **attrs):
        x, w, b = operands
        (gy,) = grads
        seen = gy
        if any(more >= step for more, step in zip(output_padding, stride, strict=True)):
            # more windows would fit into gy than x has pixels
            ends = [size - more for size, more in zip(gy.shape[2:], output_padding, strict=True)]
            seen = g.slice(gy, axes=[2, 3], starts=[0, 0], ends=ends)
        return (
            g.conv2d(seen, w, stride=stride, **attrs),
            g.conv2d_weight_grad(x, seen, kernel=w.shape[2:], stride=stride, **attrs),
            None if b is None else g.sum(gy, axes=[0, 2, 3], keepdims=False),
        )

    def flops(x, w, b, **attrs):
        return 2 * x.shape[0] * x.shape[2] * x.shape[3] * w.size
