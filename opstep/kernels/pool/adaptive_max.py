"""Adaptive max pooling: the largest element of each of the windows that divide a channel evenly."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from opstep.kernels.conv.windows import want_images, want_sizes
from opstep.kernels.pool.pool import lowest_of
from opstep.kernels.rules.ranks import by_rank
from opstep.kernels.schedules.cpu import window as on_cpu
from opstep.kernels.schedules.cuda import window_maxima as on_cuda
from opstep.kernels.schedules.window import Span
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import i64

_FOUND = "The largest element of each window, and its index"
_PLACES = (
    "`adaptive_avg_pool{n}d`.\n\nx [N, C, {size}]; y and i64 indices, both [N, C, *output_size]."
)


def _spans(x, y) -> list[Span]:
    return [Span.even(size, n) for size, n in zip(x.shape[2:], y.shape[2:], strict=True)]


@by_rank(
    "adaptive_max_pool{n}d(x: N, *, output_size: dims)",
    f"{_FOUND}; windows as in {_PLACES}",
    f"{_FOUND} in its flattened plane [H, W]; windows as\nin {_PLACES}",
    f"{_FOUND} in its flattened volume [D, H, W]; windows\nas in {_PLACES}",
    source="torch.nn.functional.adaptive_max_pool{n}d, ATen adaptive_max_pool{n}d",
)
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
        spans = [Span.even(n, out) for n, out in zip(x.shape[2:], output_size, strict=True)]
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
        return on_cpu.largest_and_places(x, y, indices, lowest_of(x.dtype), _spans(x, y))

    def cuda(x, y, indices, *, output_size):
        return on_cuda.largest_and_places(x, y, indices, lowest_of(x.dtype), _spans(x, y))

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
