"""Pooling and upsampling by all of their CUDA kernels, against the float64 oracle."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.pool import cuda_grid_sample
from opstep.kernels.schedules.cuda import window, window_maxima
from opstep.runtime.device.cpu import device as cpu
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int8]


def made(rng, shape, dtype):
    x = (rng.standard_normal(shape) * 20).astype(dtype)
    if np.dtype(dtype).kind != "i":
        x.reshape(-1)[::11] = np.nan
        x.reshape(-1)[3::13] = -np.inf
    return x


def check(name, x, **attrs):
    op = OPS[name]
    attrs = complete(op, attrs)
    (found,) = simulator.execute(op, [x], attrs)
    wide = x if x.dtype.kind == "i" else x.astype(np.float64)
    expected = op.oracle(wide, **attrs)
    np.testing.assert_array_equal(found.astype(expected.dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, kernel, stride, padding", [
    ((2, 3, 6, 6), (2, 2), (2, 2), (0, 0)),
    ((1, 2, 7, 9), (3, 3), (2, 2), (1, 1)),
    ((1, 2, 5, 4), (2, 3), (1, 2), (1, 2)),
    ((1, 1, 1, 1), (3, 3), (1, 1), (1, 1)),
    ((1, 2, 9, 8), (6, 1), (1, 1), (3, 0)),  # not a small one
])  # fmt: skip
def test_maxima(shape, kernel, stride, padding, dtype):
    x = made(np.random.default_rng(1), shape, dtype)
    check("max_pool2d", x, kernel=kernel, stride=stride, padding=padding)


GRADIENTS = [  # image, kernel, stride, padding
    ((2, 3, 6, 6), (2, 2), (2, 2), (0, 0)),
    ((1, 2, 7, 9), (3, 3), (2, 2), (1, 1)),
    ((1, 2, 5, 4), (2, 3), (1, 2), (1, 2)),
    ((1, 2, 8, 7), (2, 2), (3, 3), (0, 0)),  # pixels in no window
    ((1, 1, 1, 1), (3, 3), (1, 1), (1, 1)),
    ((1, 2, 9, 8), (6, 1), (1, 1), (3, 0)),  # not a small one
]


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("shape, kernel, stride, padding", GRADIENTS)
def test_gradients_of_maxima(shape, kernel, stride, padding, ceil_mode, dtype):
    """What a NaN takes, and which of equal elements, is as the oracle has it."""
    rng, op = np.random.default_rng(4), OPS["max_pool2d_grad"]
    x = np.round(made(rng, shape, dtype) / 8)
    window = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    forward = OPS["max_pool2d"]
    like = forward.oracle(x.astype(np.float64), **complete(forward, window))
    gy = rng.integers(-8, 9, like.shape).astype(dtype)
    attrs = complete(op, window)
    (found,) = simulator.execute(op, [gy, x], attrs)
    expected = op.oracle(gy.astype(np.float64), x.astype(np.float64), **attrs)
    np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_the_last_window_reaches_beyond():
    x = made(np.random.default_rng(2), (1, 2, 6, 8), np.float32)
    check("max_pool2d", x, kernel=(3, 3), stride=(2, 2), ceil_mode=True)


@pytest.mark.parametrize("name", ["max_pool3d", "max_pool3d_with_indices", "max_pool3d_grad"])
@pytest.mark.parametrize("kernel, stride, padding, dilation", [
    ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 1), (1, 2, 1), (1, 0, 0), (1, 1, 1)),
    ((2, 4, 3), (1, 2, 7), (1, 2, 1), (2, 1, 2)),  # not a small one
])  # fmt: skip
def test_volumes(name, kernel, stride, padding, dilation):
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    check_maxima(name, (2, 2, 5, 6, 7), window)


@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d_with_indices", "max_pool2d_grad"])
@pytest.mark.parametrize("enough", [1, 1 << 18])
@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", [
    ((1, 2, 9, 40), (4, 19), (2, 3), (2, 9), (2, 2)),  # longer than a thread's share of a row
    ((2, 2, 15, 17), (7, 7), (4, 4), (0, 0), (1, 1)),
    ((1, 2, 40, 3), (33, 1), (5, 1), (16, 0), (1, 1)),  # many rows at a time
])  # fmt: skip
def test_large_windows(name, enough, shape, kernel, stride, padding, dilation, monkeypatch):
    """A thread has a window to itself, or a few threads share it."""
    monkeypatch.setattr(window_maxima, "_ENOUGH", enough)
    check_maxima(
        name, shape, {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    )


def check_maxima(name, shape, window):
    """Equal elements, and NaNs, are often in one window."""
    rng, op = np.random.default_rng(7), OPS[name]
    x = np.round(made(rng, shape, np.float32) / 16)
    operands = [x]
    if name.endswith("grad"):
        forward = OPS[name.removesuffix("_grad")]
        like = forward.oracle(x.astype(np.float64), **complete(forward, window))
        operands = [rng.integers(-8, 9, like.shape).astype(np.float32), x]
    attrs = complete(op, window)
    expected = op.oracle(*(a.astype(np.float64) for a in operands), **attrs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found in (simulator.execute(op, operands, attrs), cpu.execute(op, operands, attrs)):
        for own, true in zip(found, expected, strict=True):
            np.testing.assert_array_equal(own.astype(true.dtype), true)


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("shape, size", [
    ((2, 3, 4, 4), (8, 8)),
    ((1, 2, 3, 5), (7, 12)),  # no whole factors
    ((1, 2, 5, 8), (3, 4)),  # smaller
    ((1, 2, 3, 3), (6, 9)),  # rows that are no whole runs
])  # fmt: skip
def test_nearest_pixels(shape, size, dtype):
    check("upsample2d", made(np.random.default_rng(3), shape, dtype), size=size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [(1, 1), (3, 2), (7, 5)])
def test_spans_of_adaptive_maxima(dtype, out):
    """By as many threads as a span is worth."""
    x = made(np.random.default_rng(1), (2, 3, 20, 17), dtype)
    x[0, 0] = np.round(
        np.nan_to_num(x[0, 0].astype(np.float64), neginf=0) / 30
    )  # the same ones often
    attrs = complete(OPS["adaptive_max_pool2d"], {"output_size": out})
    found = simulator.execute(OPS["adaptive_max_pool2d"], [x], attrs)
    wide = x if x.dtype.kind == "i" else x.astype(np.float64)
    for own, true in zip(found, OPS["adaptive_max_pool2d"].oracle(wide, **attrs), strict=True):
        np.testing.assert_array_equal(own.astype(true.dtype), true)


RESAMPLED = {
    "bilinear": ("upsample2d", (2, 5, 3, 4), {"size": (6, 9), "mode": "bilinear"}),
    "bicubic": ("upsample2d", (3, 3, 4, 3), {"size": (7, 6), "mode": "bicubic"}),
    "a bicubic gradient": ("upsample2d_grad", (1, 5, 8, 10), {"size": (4, 5), "mode": "bicubic"}),
    "a bilinear gradient": ("upsample2d_grad", (1, 5, 8, 10), {"size": (4, 5), "mode": "bilinear"}),
    "a gradient between corners": (
        "upsample3d_grad",
        (1, 2, 3, 5, 4),
        {"size": (2, 3, 2), "mode": "trilinear", "align_corners": True},
    ),
    "a gradient by many taps": ("upsample2d_grad", (1, 3, 32, 2), {"size": (2, 2)}),
    "trilinear": ("upsample3d", (1, 7, 2, 3, 4), {"size": (4, 5, 8), "mode": "trilinear"}),
    "a linear gradient": ("upsample1d_grad", (2, 3, 21), {"size": (4,), "mode": "linear"}),
    "means": ("avg_pool3d", (2, 3, 4, 5, 6), {"kernel": (2, 3, 2), "padding": (1, 1, 0)}),
    "means of many": ("avg_pool2d", (2, 3, 12, 11), {"kernel": (7, 9), "padding": (3, 2)}),
    "a gradient of them": (
        "avg_pool2d_grad",
        (2, 3, 2, 1),
        {"size": (12, 11), "kernel": (7, 9), "padding": (3, 2), "count_include_pad": False},
    ),
    "means of all": ("adaptive_avg_pool3d", (2, 3, 4, 5, 6), {"output_size": (1, 1, 1)}),
}


@pytest.mark.parametrize("enough", [1, 1 << 18])
@pytest.mark.parametrize("case", RESAMPLED)
def test_weighted_sums(case, enough, monkeypatch):
    """Threads have one plane, or several; NaNs and infinities come from the same elements."""
    monkeypatch.setattr(window, "_ENOUGH", enough)
    name, shape, attrs = RESAMPLED[case]
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    x.reshape(-1)[5::29] = np.nan
    x.reshape(-1)[3::31] = np.inf
    op = OPS[name]
    attrs = complete(op, attrs)
    with np.errstate(invalid="ignore"):
        expected = op.oracle(x.astype(np.float64), **attrs)
    for device in (simulator, cpu):
        (found,) = device.execute(op, [x], attrs)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("x, places", [
    ((2, 37, 5, 6), (7, 9)),
    ((1, 3, 40, 33), (3, 10)),
    ((3, 1, 2, 2), (5, 5)),
    ((1, 70, 3, 3), (1, 40)),
])  # fmt: skip
@pytest.mark.parametrize("attrs", [{}, {"mode": "nearest", "padding_mode": "border"}])
def test_places_of_a_grid(x, places, attrs, monkeypatch):
    """Many places look at one pixel, or nowhere; threads have one channel, or several."""
    rng = np.random.default_rng(6)
    monkeypatch.setattr(cuda_grid_sample, "_ENOUGH", 1 if x[1] > 50 else 1 << 18)
    image, grid = rng.standard_normal(x), rng.uniform(-1.5, 1.5, (x[0], *places, 2))
    gy = rng.standard_normal((*x[:2], *places))
    grid.reshape(-1)[::13] = np.nan
    for name, arrays in (
        ("grid_sample2d", [image, grid]),
        ("grid_sample2d_grad", [gy, image, grid]),
    ):
        op, arrays = OPS[name], [a.astype(np.float32) for a in arrays]
        whole = complete(op, attrs)
        expected = op.oracle(*(a.astype(np.float64) for a in arrays), **whole)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, wanted in zip(simulator.execute(op, arrays, whole), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
