"""Convolutions of random shapes and their gradients, to compare devices with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.op import OPS, complete

OPS_DRAWN = ("conv{}d", "conv{}d_input_grad", "conv{}d_weight_grad", "conv_transpose{}d")
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NEAR = {"f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2}  # of the largest element, or of 1
CHANNELS = (3, 4, 20, 32, 40, 64, 72)  # of a group: those that kernels treat in their own ways

Drawn = tuple[str, list[tuple[int, ...]], dict[str, Any]]  # op, shapes, attributes


def drawn(random: Random, axes: int = 2) -> Drawn:
    """Filters that may be larger than the image, seen through strides, gaps and uneven padding."""
    most = 9 if axes == 2 else 6
    while True:
        groups = random.choice((1, 1, 1, 2))
        channels, filters = random.choice(CHANNELS), random.choice(CHANNELS)
        images, size = random.randint(1, 3), [random.randint(1, most) for _ in range(axes)]
        kernel = [random.choice((1, 1, 2, 3, 5)) for _ in range(axes)]
        if random.random() < 0.2:  # a filter for each channel
            groups, channels, filters = random.choice((1, 3, 70)), 1, 1
            if axes == 2:
                size = [random.choice((1, 7, 15, 30)) for _ in range(2)]
                kernel = [random.choice((1, 3, 5, 7)) for _ in range(2)]
        stride, dilation = ([random.choice((1, 1, 2, 3)) for _ in range(axes)] for _ in range(2))
        padding = [random.choice((0, 0, 1, 2)) for _ in range(random.choice((axes, 2 * axes)))]
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        around = [padding[a] + padding[a - axes] for a in range(axes)]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        rest = [n + p - s for n, p, s in zip(size, around, spans, strict=True)]
        if min(rest) < 0:
            continue
        out = [r // s + 1 for r, s in zip(rest, stride, strict=True)]
        x, w = (images, groups * channels, *size), (groups * filters, channels, *kernel)
        y = (images, groups * filters, *out)
        op = random.choice(OPS_DRAWN).format(axes)
        if op == f"conv{axes}d":
            return op, [x, w, *([w[:1]] if random.random() < 0.5 else [])], attrs
        if op.endswith("input_grad"):
            return op, [y, w], attrs | {"size": size}
        if op.endswith("weight_grad"):
            return op, [y, x], attrs | {"kernel": kernel}
        more = [random.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
        large = [
            (o - 1) * s + k - p + m
            for o, s, k, p, m in zip(out, stride, spans, around, more, strict=True)
        ]
        if min(large) > 0:
            return op, [y, w], attrs | {"output_padding": more}


def off(execute: Callable, case: Drawn, dtype: str, seed: int) -> float:
    """How far a device's result is from the oracle's, in `NEAR` of the dtype; infinity where other
    elements are NaN or infinite. Every third case has an infinity among its operands.
    """
    name, shapes, attrs = case
    op, rng = OPS[name], np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape).astype(NUMPY[dtype]) for shape in shapes]
    if seed % 3 == 0 and arrays[seed % 2].size:
        arrays[seed % 2].reshape(-1)[seed % arrays[seed % 2].size] = np.inf
    whole = complete(op, {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()})
    (found,) = execute(op, arrays, whole)
    with np.errstate(invalid="ignore"):
        expected = op.oracle(*(a.astype(np.float64) for a in arrays), **whole)
    finite = np.isfinite(expected)
    if (np.isfinite(found) != finite).any():
        return float("inf")
    if not finite.any():
        return 0.0
    differs = np.abs(found[finite].astype(np.float64) - expected[finite]).max()
    return float(differs / max(1.0, np.abs(expected[finite]).max()) / NEAR[dtype])


def cases(count: int, axes: int = 2) -> list[tuple[int, Drawn, str]]:
    """(a seed, what is convolved, its dtype), the same in every run."""
    random = Random(0)
    return [(k, drawn(random, axes), random.choice(list(NUMPY))) for k in range(count)]
