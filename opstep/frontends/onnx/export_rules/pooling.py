"""Pooling, and its derivatives."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.frontends.onnx.export_nodes import Unsayable
from opstep.frontends.onnx.export_rules import RULES, rule, wide
from opstep.frontends.onnx.export_rules.convolution import ends
from opstep.frontends.onnx.export_rules.resampling import along, matrix
from opstep.kernels.rules.axes import volume
from opstep.kernels.schedules.window import Span
from opstep.runtime.ir.types import f64, i16, i32, i64


def _windows(kernel, stride, padding, dilation, ceil_mode):
    return {
        "kernel_shape": list(kernel), "strides": list(stride or kernel),
        "pads": ends(padding, len(kernel)), "dilations": list(dilation),
        "ceil_mode": int(ceil_mode),
    }  # fmt: skip


def _left(windows, x, t):
    """What the windows leave over at the end of each axis; below 0 where they go beyond."""
    n = len(windows["strides"])
    return [
        x.shape[2 + k] + windows["pads"][k] + windows["pads"][n + k]
        - windows["dilations"][k] * (windows["kernel_shape"][k] - 1) - 1
        - (t.shape[2 + k] - 1) * windows["strides"][k]
        for k in range(n)
    ]  # fmt: skip


def _rounded(windows, x, t):
    """ONNX rounds up even if the last window is in the padding alone, which is then cut off."""
    if windows["ceil_mode"]:
        n, pads = len(windows["strides"]), windows["pads"]
        left = [d if type(d) is int else 0 for d in _left(windows, x, t)]
        over = [max(0, min(d, p)) for d, p in zip(left, pads[n:], strict=True)]
        windows["pads"] = [*pads[:n], *(p - o for p, o in zip(pads[n:], over, strict=True))]
        windows["ceil_mode"] = int(any(d < 0 for d in left) or not x.type.is_concrete)
    return windows


def _pooled(b, x, types, attrs):
    """MaxPool, of integers as f64, which has them all but those of i64."""
    if x.dtype is i64:
        raise Unsayable("ONNX has no pooling of i64", "cast to f64, which is exact up to 2**53")
    given = b.to(x, f64) if x.dtype in (i16, i32) else x
    windows = _rounded(_windows(**attrs), x, types[0])
    types = (types[0].with_dtype(given.dtype), *types[1:])
    found = b.onnx("MaxPool", given, out=types, **windows)
    return (b.to(found[0], x.dtype), *found[1:])


def _max_pool(b, t, x, **attrs):
    return _pooled(b, x, (t,), attrs)[0]


def _with_indices(b, t, x, **attrs):
    """ONNX's indices count planes, too."""
    y, indices = _pooled(b, x, t, attrs)
    return y, b.rem(indices, b.vector([volume(x.shape[2:])]))


def _max_pool_grad(b, t, gy, x, **attrs):
    n = x.type.rank - 2
    _, indices = getattr(b, f"max_pool{n}d_with_indices")(x, **attrs)
    plane = volume(x.shape[2:])
    flat = [b.shaped(v, (*v.shape[:2], volume(v.shape[2:]))) for v in (gy, indices)]
    gx = b.gather_elements_grad(*flat, shape=(*x.shape[:2], plane), axis=2)
    return b.shaped(gx, t.shape)


def _avg_pool(b, t, x, divisor_override, count_include_pad, **attrs):
    whole = count_include_pad or divisor_override is not None
    windows = _rounded(_windows(**attrs, dilation=[1] * len(attrs["kernel"])), x, t)
    if divisor_override is None:
        return b.onnx("AveragePool", x, out=t, count_include_pad=int(whole), **windows)
    if windows["ceil_mode"]:  # which divides by less where windows leave the padding
        n, pads = len(windows["strides"]), windows["pads"]
        more = b.ints([-m for m in _left(windows, x, t)])
        windows["pads"] = [*pads[:n], *(p + m for p, m in zip(pads[n:], more, strict=True))]
        windows["ceil_mode"] = 0
    mean = b.onnx("AveragePool", x, out=t, count_include_pad=1, **windows)
    return b.mul(mean, prod(attrs["kernel"]) / divisor_override)


def _avg_pool_grad(b, t, gy, size, kernel, stride, padding, divisor_override, **attrs):
    n = len(kernel)
    pads, stride = ends(padding, n), stride or kernel
    sizes = b.ints(t.shape[2:])
    b.ints(gy.shape[2:])
    for k in range(n):
        one = {
            "size": (sizes[k],), "kernel": (kernel[k],), "stride": (stride[k],),
            "padding": (pads[k], pads[n + k]), **attrs,
            "divisor_override": None if divisor_override is None else 1,
        }  # fmt: skip
        gy = along(b, gy, 2 + k, matrix("avg_pool1d_grad", gy.shape[2 + k], one))
    return gy if divisor_override is None else b.div(gy, divisor_override)


def _global(b, t, x):
    return b.onnx("GlobalAveragePool", x, out=t)


rule("global_avg_pool2d")(_global)


def _adaptive_avg(b, t, x, output_size):
    if all(d == 1 for d in output_size):
        return _global(b, t, x)
    sizes, out = b.ints(x.shape[2:]), b.ints(output_size)
    if all(n % o == 0 and n for n, o in zip(sizes, out, strict=True)):
        kernel = [n // o for n, o in zip(sizes, out, strict=True)]
        return b.onnx("AveragePool", x, out=t, kernel_shape=kernel, strides=kernel)
    return _adaptively(b, t, x, output_size=output_size)


@wide
def _adaptively(b, t, x, output_size):
    for k, o in enumerate(output_size):
        axis = 2 + k
        x = along(b, x, axis, matrix("adaptive_avg_pool1d", x.shape[axis], {"output_size": (o,)}))
    return x


def _adaptive_avg_grad(b, t, gy, size):
    b.ints(gy.shape[2:])
    for k, s in enumerate(b.ints(size)):
        axis = 2 + k
        gy = along(b, gy, axis, matrix("adaptive_avg_pool1d_grad", gy.shape[axis], {"size": (s,)}))
    return gy


def _adaptive_max(b, t, x, output_size):
    """Windows side by side. One that is shorter has its last element again, which is no larger."""
    n = len(output_size)
    sizes, out = b.ints(x.shape[2:]), b.ints(output_size)
    tables = []
    for size, count in zip(sizes, out, strict=True):
        spans = Span.even(size, count)
        widest = max(e - s for s, e in zip(spans.begins, spans.ends, strict=True))
        tables.append(
            np.minimum(
                np.asarray(spans.begins)[:, None] + np.arange(widest),
                np.asarray(spans.ends)[:, None] - 1,
            )
        )
    places = np.arange(prod(sizes)).reshape(sizes)
    for k, table in enumerate(tables):
        x = b.gather(x, b.value(table), axis=2 + 2 * k)
        places = np.take(places, table, 2 * k)
    order = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    windows = b.transpose(x, perm=[0, 1, *(2 + k for k in order)])
    each = prod(windows.shape[2 + n :])
    windows = b.shaped(windows, (*windows.shape[:2], *out, each))
    places = places.transpose(order).reshape(*out, each)
    best = b.argmax(windows, axis=-1)
    at = b.unsqueeze(best, axes=[-1])
    spread = b.broadcast(b.value(places), shape=[*best.shape, each])
    index = b.squeeze(b.gather_elements(spread, at, axis=-1), axes=[-1])
    return b.squeeze(b.gather_elements(windows, at, axis=-1), axes=[-1]), index


for _n in (1, 2, 3):
    RULES[f"max_pool{_n}d"] = _max_pool
    RULES[f"max_pool{_n}d_with_indices"] = _with_indices
    RULES[f"max_pool{_n}d_grad"] = wide(_max_pool_grad)
    RULES[f"avg_pool{_n}d"] = _avg_pool
    RULES[f"avg_pool{_n}d_grad"] = wide(_avg_pool_grad)
    RULES[f"adaptive_avg_pool{_n}d"] = _adaptive_avg
    RULES[f"adaptive_avg_pool{_n}d_grad"] = wide(_adaptive_avg_grad)
    RULES[f"adaptive_max_pool{_n}d"] = _adaptive_max


@rule("grid_sample2d")
def _grid_sample(b, t, x, grid, mode, padding_mode, align_corners):
    called = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return b.onnx(
        "GridSample", x, grid, out=t, mode=called, padding_mode=padding_mode,
        align_corners=int(align_corners),
    )  # fmt: skip
