"""Adaptive max pooling: the largest element of each of the windows that divide a channel evenly."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from opstep.kernels.conv.windows import want_images, want_sizes
from opstep.kernels.pool import cuda_spans as gpu
from opstep.kernels.pool.avgpool import Spans
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import i64


class AdaptiveMaxPool(Op):
    """Base of poolings of `axes` dimensions."""

    axes: ClassVar[int]
    results = ("y", "indices")
    faults = NO_FAULTS

    @classmethod
    def infer(cls, x, *, output_size):
        want_images(cls.name, x, 0, cls.axes)
        want_sizes("output_size", output_size, cls.axes)
        if 0 in x.shape[2:]:
            raise Mismatch(f"{cls.name}: {x} has no elements to take the largest of", 0)
        y = x.with_shape((*x.shape[:2], *output_size))
        return y, y.with_dtype(i64)

    def oracle(x, *, output_size):
        spans = [Spans.adaptive(n, out) for n, out in zip(x.shape[2:], output_size, strict=True)]
        index = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
        y = np.zeros((*x.shape[:2], *output_size), x.dtype)
        indices = np.zeros(y.shape, np.int64)
        for place in np.ndindex(*output_size):
            part = tuple(slice(s.begins[k], s.ends[k]) for s, k in zip(spans, place, strict=True))
            window = x[..., *part]
            window = window.reshape(*x.shape[:2], prod(window.shape[2:]))
            found = np.where(np.isnan(window), np.inf, window).argmax(-1)
            last = window.shape[-1] - 1 - np.isnan(window)[..., ::-1].argmax(-1)
            found = np.where(np.isnan(window).any(-1), last, found)
            y[..., *place] = np.take_along_axis(window, found[..., None], -1)[..., 0]
            indices[..., *place] = index[part].reshape(-1)[found]
        return y, indices

    def cpu(x, y, indices, *, output_size):
        none = 3 - len(output_size)
        sizes = (1,) * none + x.shape[2:]
        tables = [((0,), (1,))] * none
        for n, out in zip(x.shape[2:], output_size, strict=True):
            tables.append(Spans.adaptive(n, out)[:2])
        out, tables = (*(1,) * none, *y.shape[2:]), [t for pair in tables for t in pair]
        return Launch(
            *(highest_of_spans, x, y, indices, *sizes, *out, *tables),
            units=y.size,
            grain=max(1, 65536 * y.size // max(1, x.size)),
            cuda=lambda: gpu.highest_of_spans(x, y, indices, sizes, out, tables),
        )

    def grad(g, operands, results, grads, **attrs):
        (x,), (gy, _) = operands, grads
        if gy is None:
            return (None,)
        last = x.type.rank - 1
        gy, indices = (g.flatten(v, start=2, end=last) for v in (gy, results[1]))
        size = 1
        for n in x.shape[2:]:
            size = size * n
        gx = g.gather_elements_grad(gy, indices, shape=[*x.shape[:2], size], axis=2)
        return (g.reshape(gx, shape=x.shape),)

    def flops(x, **attrs):
        return x.size


def highest_of_spans(
    x, y, indices, depth, height, width, out_d, out_h, out_w, d_begins, d_ends, h_begins, h_ends,
    w_begins, w_ends, lo, hi,
):  # fmt: skip
    """The first of the largest, or the last NaN; a unit is an element of y."""
    for unit in range(lo, hi):
        j = unit % out_w
        i = unit // out_w % out_h
        z = unit // out_w // out_h % out_d
        source = offset(x, unit // out_w // out_h // out_d * depth * height * width)
        found = (d_begins[z] * height + h_begins[i]) * width + w_begins[j]
        highest = source[found]
        for d in range(d_begins[z], d_ends[z]):
            for h in range(h_begins[i], h_ends[i]):
                for w in range(w_begins[j], w_ends[j]):
                    at = (d * height + h) * width + w
                    v = source[at]
                    if v > highest or v != v:
                        found = at
                        highest = v
        y[unit] = highest
        indices[unit] = found


class adaptive_max_pool1d(AdaptiveMaxPool):
    """The largest element of each window, and its index; windows as in `adaptive_avg_pool1d`.

    x [N, C, W]; y and i64 indices, both [N, C, *output_size].
    """

    axes = 1
    signature = "adaptive_max_pool1d(x: N, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_max_pool1d, ATen adaptive_max_pool1d"


class adaptive_max_pool2d(AdaptiveMaxPool):
    """The largest element of each window, and its index in its flattened plane [H, W]; windows as
    in `adaptive_avg_pool2d`.

    x [N, C, H, W]; y and i64 indices, both [N, C, *output_size].
    """

    axes = 2
    signature = "adaptive_max_pool2d(x: N, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_max_pool2d, ATen adaptive_max_pool2d"


class adaptive_max_pool3d(AdaptiveMaxPool):
    """The largest element of each window, and its index in its flattened volume [D, H, W]; windows
    as in `adaptive_avg_pool3d`.

    x [N, C, D, H, W]; y and i64 indices, both [N, C, *output_size].
    """

    axes = 3
    signature = "adaptive_max_pool3d(x: N, *, output_size: dims)"
    source = "torch.nn.functional.adaptive_max_pool3d, ATen adaptive_max_pool3d"
