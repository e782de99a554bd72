"""Pooling and upsampling beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

from opstep.runtime.device.cpu import device as cpu  # noqa: E402
from opstep.runtime.ir.op import OPS, complete  # noqa: E402

F = torch.nn.functional
RNG = np.random.default_rng(0)


def data(*shape: int, dtype="f8") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def attributes(given: dict) -> str:
    def text(value) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)

    return ", ".join(f"{k}={text(v)}" for k, v in given.items())


def in_torch(given: dict) -> dict:
    return {{"kernel": "kernel_size"}.get(k, k): v for k, v in given.items()}


WINDOWS = [
    ((2, 3, 8, 8), {"kernel": (2, 2)}),
    ((2, 3, 9, 7), {"kernel": (3, 3), "stride": (2, 2)}),
    ((1, 2, 9, 70), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    ((1, 2, 9, 40), {"kernel": (3, 2), "stride": (1, 1), "padding": (1, 1)}),
    ((1, 2, 9, 10), {"kernel": (2, 3), "stride": (3, 4), "padding": (1, 0)}),
    ((1, 1, 8, 8), {"kernel": (3, 3), "stride": (2, 2), "ceil_mode": True}),
    ((1, 1, 7, 6), {"kernel": (2, 3), "stride": (3, 2), "padding": (1, 1), "ceil_mode": True}),
    ((1, 1, 7, 7), {"kernel": (2, 2), "stride": (3, 3), "ceil_mode": True}),
]
DILATED = [
    ((1, 2, 10, 50), {"kernel": (3, 3), "stride": (2, 3), "dilation": (2, 2), "padding": (1, 1)}),
    ((1, 2, 10, 11), {"kernel": (2, 3), "stride": (1, 1), "dilation": (3, 1)}),
]


@pytest.mark.parametrize("shape, given", WINDOWS + DILATED)
def test_max_pool2d(shape, given):
    text, options = attributes(given), in_torch(given)
    compare(f"y = max_pool2d(x, {text})", lambda x: F.max_pool2d(x, **options), x=data(*shape))
    compare(
        f"y, i = max_pool2d_with_indices(x, {text})",
        lambda x: F.max_pool2d(x, **options, return_indices=True),
        x=data(*shape, dtype="f4"),
    )


@pytest.mark.parametrize("shape, given", WINDOWS + DILATED)
def test_max_pool2d_with_ties_nans_and_infinities(shape, given):
    x = RNG.integers(0, 3, shape).astype("f4")
    x.flat[::7], x.flat[::5], x.flat[::3] = np.nan, np.inf, -np.inf
    text, options = attributes(given), in_torch(given)
    compare(
        f"y, i = max_pool2d_with_indices(x, {text})",
        lambda x: F.max_pool2d(x, **options, return_indices=True),
        x=x,
    )
    compare(f"y = max_pool2d(x, {text})", lambda x: F.max_pool2d(x, **options), x=x)


@pytest.mark.parametrize("shape, given", WINDOWS)
@pytest.mark.parametrize(
    "more", [{}, {"count_include_pad": False}, {"divisor_override": 3}], ids=str
)
def test_avg_pool2d(shape, given, more):
    given = given | more
    compare(
        f"y = avg_pool2d(x, {attributes(given)})",
        lambda x: F.avg_pool2d(x, **in_torch(given)),
        x=data(*shape),
    )


IN_OTHER_DIMENSIONS = [
    ((2, 3, 8), {"kernel": (2,)}),
    ((1, 2, 70), {"kernel": (3,), "stride": (2,), "padding": (1,)}),
    ((1, 2, 7), {"kernel": (3,), "stride": (2,), "padding": (1,), "ceil_mode": True}),
    ((2, 3, 4, 6, 8), {"kernel": (2, 2, 2)}),
    ((1, 2, 5, 7, 9), {"kernel": (3, 2, 3), "stride": (2, 1, 2), "padding": (1, 1, 0)}),
    ((1, 2, 6, 7, 8), {"kernel": (3, 3, 2), "stride": (2, 3, 2), "ceil_mode": True}),
    (
        (1, 1, 5, 4, 7),
        {"kernel": (3, 2, 3), "stride": (3, 2, 2), "padding": (1, 1, 1), "ceil_mode": True},
    ),
]
DILATED_IN_OTHER_DIMENSIONS = [
    ((1, 2, 20), {"kernel": (3,), "stride": (2,), "dilation": (3,), "padding": (1,)}),
    ((1, 2, 7, 6, 9), {"kernel": (3, 2, 2), "stride": (2, 1, 2), "dilation": (2, 3, 1)}),
]


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("shape, given", IN_OTHER_DIMENSIONS + DILATED_IN_OTHER_DIMENSIONS)
def test_max_pools_in_other_dimensions(shape, given, odd):
    name, x = f"max_pool{len(shape) - 2}d", data(*shape)
    if odd:
        x = RNG.integers(0, 3, shape).astype("f4")
        x.flat[::7], x.flat[::5], x.flat[::3] = np.nan, np.inf, -np.inf
    text, peer = attributes(given), getattr(F, name)
    compare(f"y = {name}(x, {text})", lambda x: peer(x, **in_torch(given)), x=x)
    compare(
        f"y, i = {name}_with_indices(x, {text})",
        lambda x: peer(x, **in_torch(given), return_indices=True),
        x=x,
    )


@pytest.mark.parametrize("shape, given", IN_OTHER_DIMENSIONS)
@pytest.mark.parametrize(
    "more", [{}, {"count_include_pad": False}, {"divisor_override": 3}], ids=str
)
def test_average_pools_in_other_dimensions(shape, given, more):
    name, given = f"avg_pool{len(shape) - 2}d", given | more
    options = in_torch(given)
    if len(shape) == 3 and options.pop("divisor_override", None):
        pytest.skip("PyTorch's has no such attribute")
    compare(
        f"y = {name}(x, {attributes(given)})",
        lambda x: getattr(F, name)(x, **options),
        x=data(*shape),
    )


@pytest.mark.parametrize(
    "shape, size",
    [
        ((2, 3, 8), (4,)),
        ((2, 3, 7), (3,)),
        ((2, 3, 8, 8), (2, 4)),
        ((2, 3, 7, 9), (3, 4)),
        ((1, 1, 3, 2), (5, 7)),
        ((2, 3, 4, 4, 6), (2, 2, 3)),
        ((1, 2, 5, 7, 4), (3, 2, 5)),
    ],
)
def test_adaptive_pools(shape, size):
    axes, text = len(size), ", ".join(map(str, size))
    average, largest = f"adaptive_avg_pool{axes}d", f"adaptive_max_pool{axes}d"
    compare(
        f"y = {average}(x, output_size=[{text}])",
        lambda x: getattr(F, average)(x, size),
        x=data(*shape),
    )
    compare(
        f"y, i = {largest}(x, output_size=[{text}])",
        lambda x: getattr(F, largest)(x, size, return_indices=True),
        x=data(*shape),
    )


@pytest.mark.parametrize(
    "shape, size", [((2, 3, 8, 8), (1, 1)), ((2, 3, 7, 9), (3, 4)), ((1, 1, 3, 2), (5, 7))]
)
def test_adaptive_avg_pool2d(shape, size):
    compare(
        f"y = adaptive_avg_pool2d(x, output_size=[{size[0]}, {size[1]}])",
        lambda x: F.adaptive_avg_pool2d(x, size),
        x=data(*shape),
    )


def test_global_avg_pool2d():
    compare("y = global_avg_pool2d(x)", lambda x: x.mean((2, 3), keepdim=True), x=data(2, 3, 5, 7))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "corners"])
@pytest.mark.parametrize(
    "shape, given",
    [
        ((2, 3, 4, 5), {"scale": (2, 2)}),
        ((2, 3, 4, 5), {"scale": (3, 1)}),
        ((1, 2, 4, 5), {"size": (7, 3)}),
        ((1, 1, 1, 1), {"size": (3, 3)}),
        ((1, 1, 40, 33), {"size": (17, 70)}),
    ],
)
def test_upsample2d(mode, shape, given):
    size = given.get("size") or tuple(n * f for n, f in zip(shape[2:], given["scale"], strict=True))
    text = attributes(given)
    options = {"mode": mode}
    if mode == "corners":
        text += ", align_corners=true"
        options = {"mode": "bilinear", "align_corners": True}
    compare(
        f'y = upsample2d(x, {text}, mode="{options["mode"]}")',
        lambda x: F.interpolate(x, size, **options),
        x=data(*shape),
    )


RESIZED = [
    ("nearest", (2, 3, 7), {"scale": (2,)}),
    ("linear", (2, 3, 7), {"size": (11,)}),
    ("linear", (2, 3, 7), {"scale": (1.7,)}),
    ("nearest-exact", (2, 3, 7), {"size": (11,)}),
    ("bilinear", (2, 3, 5, 7), {"scale": (1.7, 0.6)}),
    ("nearest", (2, 3, 5, 7), {"scale": (1.7, 0.6)}),
    ("nearest-exact", (2, 3, 5, 7), {"scale": (1.7, 2.0)}),
    ("bicubic", (2, 3, 5, 7), {"scale": (2, 3)}),
    ("bicubic", (2, 3, 5, 7), {"scale": (1.7, 0.6)}),
    ("bicubic", (2, 3, 15, 7), {"size": (4, 12)}),
    ("nearest", (1, 2, 3, 4, 5), {"scale": (2, 1, 3)}),
    ("nearest-exact", (1, 2, 3, 4, 5), {"size": (5, 3, 7)}),
    ("trilinear", (1, 2, 3, 4, 5), {"size": (5, 3, 7)}),
    ("trilinear", (1, 2, 3, 4, 5), {"scale": (1.5, 0.75, 2.0)}),
]


@pytest.mark.parametrize("mode, shape, given", RESIZED)
@pytest.mark.parametrize("corners", [False, True])
def test_upsampling(mode, shape, given, corners):
    if corners and mode.startswith("nearest"):
        corners = None
    text = attributes(given) + (", align_corners=true" if corners else "")
    compare(
        f'y = upsample{len(shape) - 2}d(x, {text}, mode="{mode}")',
        lambda x: F.interpolate(
            *(x, given.get("size"), given.get("scale"), mode),
            align_corners=corners if "linear" in mode or "cubic" in mode else None,
        ),
        x=data(*shape),
    )


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode, size, out", [
    ("linear", (5,), (10,)),
    ("bilinear", (5, 6), (10, 12)),
    ("bilinear", (4, 6), (3, 9)),
    ("bicubic", (5, 6), (10, 12)),
    ("trilinear", (3, 4, 5), (6, 4, 7)),
])  # fmt: skip
def test_an_infinite_gradient_times_a_weight_of_0_is_nan(mode, size, out, corners):
    name = f"upsample{len(size)}d_grad"
    x = torch.zeros(1, 1, *size, dtype=torch.float64, requires_grad=True)
    y = F.interpolate(x, out, mode=mode, align_corners=corners)
    attrs = complete(OPS[name], {"size": size, "mode": mode, "align_corners": corners})
    for place in range(0, y.numel(), 3):
        gy = data(*y.shape)
        gy.flat[place] = np.inf
        (wanted,) = torch.autograd.grad(y, x, torch.from_numpy(gy), retain_graph=True)
        (found,) = cpu.execute(OPS[name], [gy], attrs)
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-12)


def test_upsampling_to_a_size_by_a_scale():
    compare(
        'y = upsample2d(x, size=[8, 4], scale=[1.7, 0.6], mode="bilinear")',
        lambda x: torch.ops.aten.upsample_bilinear2d(x, [8, 4], False, 1.7, 0.6),
        x=data(2, 3, 5, 7),
    )


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample2d(mode, padding, corners):
    text = f'mode="{mode}", padding_mode="{padding}", align_corners={str(corners).lower()}'
    compare(
        f"y = grid_sample2d(x, grid, {text})",
        lambda x, grid: F.grid_sample(x, grid, mode, padding, corners),
        x=data(2, 3, 5, 7),
        grid=2 * data(2, 4, 6, 2),
    )


def test_second_derivatives():
    """The derivative of the derivative of max pooling."""
    x = data(2, 3, 6, 6)
    compare(
        "gx = max_pool2d_grad(gy, x, kernel=[3, 3], stride=[2, 2])",
        lambda gy, x: torch.ops.aten.max_pool2d_with_indices_backward(
            gy, x, [3, 3], [2, 2], [0, 0], [1, 1], False,
            F.max_pool2d(x, 3, 2, return_indices=True)[1],
        ),
        wrt=["gy"],
        gy=data(2, 3, 2, 2),
        x=x,
    )  # fmt: skip
