"""Convolutions by all of their CUDA kernels, against the float64 oracle."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.conv import cuda_blocks
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import TensorType, bf16

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

# shapes of x, w and attributes: tiles that are not full in any direction, masks, rows written apart
FORWARD = {
    "one filter": ((1, 3, 6, 7), (1, 3, 3, 3), {"padding": [1, 1]}),
    "few filters": ((2, 9, 5, 6), (5, 9, 3, 3), {"padding": [1, 2]}),
    "a tile": ((2, 3, 6, 6), (20, 3, 3, 3), {"padding": [1, 1]}),
    "wide stores": ((1, 2, 8, 8), (18, 2, 3, 3), {"padding": [1, 1]}),
    "two rows of tiles": ((1, 5, 4, 5), (70, 5, 2, 3), {"stride": [1, 2]}),
    "dilated": ((1, 2, 9, 8), (17, 2, 3, 3), {"padding": [2, 2], "dilation": [2, 2]}),
    "groups": ((1, 4, 5, 5), (36, 2, 3, 3), {"groups": 2}),
    "one by one": ((2, 8, 4, 4), (24, 8, 1, 1), {}),
    "the whole image": ((3, 9, 2, 3), (20, 9, 2, 3), {}),
    "wide filters": ((1, 1, 3, 40), (2, 1, 1, 33), {"padding": [0, 1]}),
}


def given(rng, shape, dtype):
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def check(name, arrays, attrs, dtype):
    op = OPS[name]
    attrs = complete(op, {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()})
    (found,) = simulator.execute(op, arrays, attrs)
    expected = op.oracle(*[a.astype(np.float64) for a in arrays], **attrs)
    scale = max(1.0, float(np.abs(expected).max()))
    error = np.abs(found.astype(np.float64) - expected).max() / scale
    assert error < {"f64": 1e-12, "f32": 3e-6, "f16": 2e-3, "bf16": 1e-2}[dtype]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", FORWARD)
def test_forward(case, dtype):
    x, w, attrs = FORWARD[case]
    rng = np.random.default_rng(1)
    arrays = [given(rng, shape, dtype) for shape in (x, w, w[:1])]
    check("conv2d", arrays, attrs, dtype)


@pytest.mark.parametrize("x, w", [
    ((2, 8, 4, 4), (24, 8, 1, 1)), ((3, 70, 3, 5), (5, 70, 1, 1)), ((1, 6, 2, 2), (1, 6, 1, 1)),
])  # fmt: skip
def test_filters_of_one_pixel_are_products_of_halves(x, w):
    rng = np.random.default_rng(9)
    check("conv2d", [given(rng, shape, "bf16") for shape in (x, w)], {}, "bf16")


@pytest.mark.parametrize("dtype", ["f64", "f16"])
def test_other_dtypes(dtype):
    x, w, attrs = FORWARD["a tile"]
    rng = np.random.default_rng(2)
    check("conv2d", [given(rng, shape, dtype) for shape in (x, w)], attrs, dtype)


def test_a_long_sum_is_cut():
    rng = np.random.default_rng(3)
    shapes = ((1, 130, 3, 3), (17, 130, 3, 3), (17,))
    check("conv2d", [given(rng, shape, "f32") for shape in shapes], {"padding": [1, 1]}, "f32")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 18])
def test_back_to_images(channels, stride):
    rng = np.random.default_rng(4)
    arrays = [given(rng, shape, "f32") for shape in ((1, 4, 4, 5), (4, channels, 3, 3))]
    attrs = {"size": [3 * stride + 1, 4 * stride + 1], "stride": [stride] * 2, "padding": [1, 1]}
    check("conv2d_input_grad", arrays, attrs, "f32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_long_sums_of_images_with_strides_are_cut(dtype):
    rng = np.random.default_rng(10)
    arrays = [given(rng, shape, dtype) for shape in ((1, 130, 3, 2), (130, 18, 3, 3))]
    attrs = {"size": [6, 4], "stride": [2, 2], "padding": [1, 1]}
    check("conv2d_input_grad", arrays, attrs, dtype)
    bias = given(rng, (18,), dtype)
    check("conv_transpose2d", [*arrays, bias], {"stride": [2, 2], "padding": [1, 1]}, dtype)


@pytest.mark.parametrize("gy, w, attrs", [
    ((1, 3, 4, 4), (3, 18, 3, 3), {"size": [8, 8], "stride": [2, 2], "padding": [1, 1]}),
    ((2, 24, 4, 4), (24, 8, 1, 1), {"size": [4, 4]}),  # matrix products
    ((2, 5, 3, 5), (5, 70, 1, 1), {"size": [3, 5]}),
])  # fmt: skip
def test_halves_back_to_images(gy, w, attrs):
    rng = np.random.default_rng(6)
    check("conv2d_input_grad", [given(rng, shape, "bf16") for shape in (gy, w)], attrs, "bf16")


@pytest.mark.parametrize("gy, x, kernel", [
    ((2, 2, 4, 5), (2, 1, 4, 5), (3, 3)),  # each number by a block
    ((2, 20, 4, 4), (2, 6, 4, 4), (3, 3)),  # tiles, pixels read four at a time
    ((2, 20, 5, 3), (2, 6, 5, 3), (3, 3)),
])  # fmt: skip
def test_back_to_filters(gy, x, kernel):
    rng = np.random.default_rng(5)
    arrays = [given(rng, shape, "f32") for shape in (gy, x)]
    check("conv2d_weight_grad", arrays, {"kernel": kernel, "padding": [1, 1]}, "f32")


ALONE = {  # op, shapes, attributes: each channel by itself
    "a long line": ("conv1d", [(2, 3, 1100), (3, 1, 3), (3,)], {"padding": [8], "dilation": [8]}),
    "a line, images": (
        "conv1d_input_grad", [(2, 3, 40), (3, 1, 3)],
        {"size": [40], "padding": [16], "dilation": [16]},
    ),
    "a line, filters": (
        "conv1d_weight_grad", [(2, 3, 70), (2, 3, 70)],
        {"kernel": [3], "padding": [8], "dilation": [8]},
    ),
    "filters": (
        "conv2d_weight_grad", [(2, 4, 5, 6), (2, 4, 9, 12)],
        {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", ALONE)
def test_channels_by_themselves(case, dtype):
    op, shapes, attrs = ALONE[case]
    rng = np.random.default_rng(15)
    arrays = [given(rng, shape, dtype) for shape in shapes]
    check(op, arrays, {**attrs, "groups": shapes[0][1]}, dtype)


FILTERS_OF_HALVES = {  # shapes of gy and x, attributes
    "copied": ((2, 20, 4, 4), (2, 6, 4, 4), {"kernel": (3, 3), "padding": [1, 1]}),
    "looked at": ((2, 20, 5, 3), (2, 6, 5, 3), {"kernel": (3, 3), "padding": [1, 1]}),
    "two tiles each way": ((1, 70, 2, 4), (1, 66, 2, 4), {"kernel": (1, 1)}),
    "both copied": ((3, 20, 4, 6), (3, 70, 4, 6), {"kernel": (1, 1)}),
    "both copied, groups": ((2, 40, 4, 4), (2, 36, 4, 4), {"kernel": (1, 1), "groups": 2}),
    "over images": ((5, 33, 3, 5), (5, 16, 6, 9), {"kernel": (1, 1), "stride": [2, 2]}),
    "groups": ((2, 36, 3, 3), (2, 16, 5, 5), {"kernel": (3, 3), "groups": 2}),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("case", FILTERS_OF_HALVES)
def test_halves_back_to_filters(case, dtype):
    gy, x, attrs = FILTERS_OF_HALVES[case]
    rng = np.random.default_rng(8)
    arrays = [given(rng, shape, dtype) for shape in (gy, x)]
    check("conv2d_weight_grad", arrays, attrs, dtype)


# --- in blocks of 64 channels, as architecture 9.0 does -------------------------------------------

BLOCKS = {  # op, shapes, attributes
    "forward": ("conv2d", [(2, 72, 5, 6), (40, 72, 3, 3), (40,)], {"padding": [1, 2]}),
    "forward, groups": ("conv2d", [(1, 64, 5, 5), (72, 32, 3, 3)], {"groups": 2, "stride": [1, 2]}),
    "forward, dilated": (
        "conv2d", [(1, 32, 9, 8), (70, 32, 3, 2)], {"padding": [2, 2], "dilation": [2, 2]}
    ),
    "forward, a pixel": ("conv2d", [(2, 72, 4, 7), (40, 72, 1, 1), (40,)], {"stride": [2, 2]}),
    "forward, odd planes": ("conv2d", [(2, 64, 3, 3), (40, 64, 1, 1)], {}),
    "forward, few filters": ("conv2d", [(2, 32, 4, 4), (3, 32, 3, 3)], {"padding": [1, 1]}),
    "forward, three channels": (
        "conv2d", [(2, 3, 7, 9), (70, 3, 5, 7), (70,)], {"stride": [2, 1], "padding": [2, 3]}
    ),
    "forward, four channels": ("conv2d", [(3, 4, 5, 5), (20, 4, 3, 3)], {"dilation": [2, 1]}),
    "images": ("conv2d_input_grad", [(1, 40, 4, 4), (40, 72, 3, 3)], {"padding": [1, 1]}),
    "images, phases": (
        "conv2d_input_grad", [(2, 72, 3, 4), (72, 24, 3, 3)], {"stride": [2, 2], "padding": [1, 1]}
    ),
    "images, groups": (
        "conv2d_input_grad", [(2, 64, 3, 4), (64, 24, 3, 3)],
        {"stride": [2, 2], "padding": [1, 1], "groups": 2},
    ),
    "images, gaps": ("conv2d_input_grad", [(2, 64, 3, 4), (64, 24, 1, 1)], {"stride": [2, 2]}),
    "images, shorter than strides": (
        "conv2d_input_grad", [(2, 64, 1, 1), (64, 40, 3, 3)], {"stride": [2, 2], "padding": [1, 1]}
    ),
    "images, three channels": (
        "conv2d_input_grad", [(1, 32, 4, 4), (32, 3, 3, 3)], {"padding": [1, 1]}
    ),
    "filters": ("conv2d_weight_grad", [(2, 40, 4, 4), (2, 72, 4, 4)], {"padding": [1, 1]}),
    "filters, pieces of four": (
        "conv2d_weight_grad", [(3, 70, 2, 6), (3, 40, 2, 6)], {"padding": [1, 1]}
    ),
    "filters, odd planes": (
        "conv2d_weight_grad", [(3, 72, 3, 5), (3, 40, 3, 5)], {"padding": [1, 1]}
    ),
    "filters, strides": (
        "conv2d_weight_grad", [(5, 72, 3, 3), (5, 144, 5, 5)], {"kernel": (1, 1), "stride": [2, 2]}
    ),
    "filters, groups": ("conv2d_weight_grad", [(2, 72, 4, 4), (2, 64, 6, 6)], {"groups": 2}),
    "filters of a pixel": (
        "conv2d_weight_grad", [(3, 72, 4, 4), (3, 80, 4, 4)], {"kernel": (1, 1)}
    ),
    "filters of a pixel, groups": (
        "conv2d_weight_grad", [(3, 72, 2, 6), (3, 160, 2, 6)], {"kernel": (1, 1), "groups": 2}
    ),
}  # fmt: skip


def in_blocks(case, dtype="bf16"):
    op, shapes, given_attrs = BLOCKS[case]
    attrs = dict(given_attrs)
    if op == "conv2d_weight_grad":
        attrs.setdefault("kernel", (3, 3))
    if op == "conv2d_input_grad":
        stride, pad = attrs.get("stride", [1, 1]), attrs.get("padding", [0, 0])
        kernel = shapes[1][2:]
        sizes = zip(shapes[0][2:], stride, pad, kernel, strict=True)
        attrs["size"] = tuple((n - 1) * s - 2 * p + k for n, s, p, k in sizes)
    rng = np.random.default_rng(12)
    with targeting("sm_90"):
        check(op, [given(rng, shape, dtype) for shape in shapes], attrs, dtype)


@pytest.mark.parametrize("case", BLOCKS)
def test_in_blocks(case):
    in_blocks(case)


@pytest.mark.parametrize("gap, padding, size", [(1 << 28, 0, 2), (2, 1 << 28, 2), (2, 0, 1 << 28)])
def test_places_far_apart_are_not_for_blocks(gap, padding, size):
    x, g = Arg(TensorType(bf16, (1, 40, 2, size)), 0), cuda_blocks.Geometry
    near = g((2, 2), (1, 1), (0, 2), (0, 1), (2, 2))
    assert cuda_blocks.within_reach(Arg(TensorType(bf16, (1, 40, 4, 3)), 0), near)
    far = near._replace(rows=(-padding, gap - padding))
    assert not cuda_blocks.within_reach(x, far)


@pytest.mark.slow
@pytest.mark.parametrize("tile", cuda_blocks.TOGETHER, ids=lambda t: f"{t.rows}x{t.columns}")
def test_blocks_of_all_tiles(monkeypatch, tile):
    monkeypatch.setattr(cuda_blocks, "cheapest", lambda *_, **given: (tile, 2))
    for case in ("forward", "forward, three channels"):
        in_blocks(case, "f16")


VOLUMES = {  # op, shapes, attributes
    "forward": ("conv3d", [(2, 3, 4, 5, 6), (20, 3, 3, 3, 2), (20,)], {"padding": [1, 0, 2]}),
    "forward, groups": (
        "conv3d", [(1, 4, 5, 4, 6), (36, 2, 2, 3, 3)], {"groups": 2, "stride": [2, 1, 2]}
    ),
    "images": ("conv3d_input_grad", [(1, 4, 3, 3, 4), (4, 18, 2, 3, 3)],
               {"size": (6, 5, 9), "stride": [2, 2, 2], "padding": [0, 1, 0]}),
    "filters": ("conv3d_weight_grad", [(2, 20, 3, 4, 4), (2, 6, 4, 4, 4)],
                {"kernel": (2, 3, 3), "padding": [0, 1, 1]}),
    "a long filter": (
        "conv3d", [(1, 2, 3, 4, 12), (4, 2, 12, 11, 10)], {"padding": [6, 5, 5]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", VOLUMES)
def test_volumes(case, dtype):
    op, shapes, attrs = VOLUMES[case]
    rng = np.random.default_rng(13)
    check(op, [given(rng, shape, dtype) for shape in shapes], attrs, dtype)


TRANSPOSED = {
    "groups": ("conv_transpose2d", [(2, 4, 3, 4), (4, 2, 3, 3), (4,)],
               {"stride": (2, 2), "padding": (1, 1), "groups": 2}),
    "dilated": ("conv_transpose2d", [(2, 3, 3, 4), (3, 3, 3, 3)], {"dilation": (2, 1)}),
    "wide strides": ("conv_transpose2d", [(1, 3, 2, 2), (3, 1, 2, 2)], {"stride": (3, 4)}),
    "tiles": ("conv2d_input_grad", [(1, 4, 4, 5), (4, 18, 3, 3)],
              {"size": (8, 9), "stride": (2, 2), "padding": (1, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_weights_over_nothing_count_for_nothing(case, execute, dtype):
    """Infinite and NaN weights are not multiplied with zeros that lie around the images."""
    name, shapes, attrs = TRANSPOSED[case]
    rng, attrs = np.random.default_rng(7), complete(OPS[name], attrs)
    arrays = [given(rng, shape, dtype) for shape in shapes]
    arrays[1][1, 0, 0, 1], arrays[1][2, -1, 1, 1] = np.inf, np.nan
    (found,) = execute(OPS[name], arrays, attrs)
    with np.errstate(invalid="ignore"):
        expected = OPS[name].oracle(*[a.astype(np.float64) for a in arrays], **attrs)
    assert 0 < np.isfinite(expected).sum() < expected.size
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
