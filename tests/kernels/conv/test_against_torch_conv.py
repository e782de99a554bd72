"""Matrix products and convolutions beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

F = torch.nn.functional
RNG = np.random.default_rng(0)


def data(*shape: int, dtype="f8") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "a, b",
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((7,), (7,)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (3, 4, 2)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((0, 4), (4, 3)),
        ((70, 300), (300, 110)),
    ],
)
def test_matmul(a, b):
    compare("y = matmul(a, b)", lambda a, b: a @ b, a=data(*a), b=data(*b))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_transposed_operands(left, right, batch):
    a = data(*batch, *((4, 3) if left else (3, 4)))
    b = data(3, *((5, 4) if right else (4, 5)))
    compare(
        f"y = matmul(a, b, transpose_a={str(left).lower()}, transpose_b={str(right).lower()})",
        lambda a, b: (a.mT if left else a) @ (b.mT if right else b),
        a=a,
        b=b,
    )


@pytest.mark.parametrize("shape", [(9,), (1, 9), (6, 9), (2, 3, 9), (0, 9)])
@pytest.mark.parametrize("out", [1, 5])
def test_linear(shape, out):
    x, w, b = data(*shape), data(out, 9), data(out)
    compare("y = linear(x, w)", lambda x, w: F.linear(x, w), x=x, w=w)
    compare("y = linear(x, w, b)", lambda x, w, b: F.linear(x, w, b), x=x, w=w, b=b)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
        ("ijk,kil->jl", [(2, 3, 4), (4, 2, 5)]),
        ("ij,jk->k", [(2, 3), (3, 4)]),
        ("ij,jk,kl", [(2, 3), (3, 4), (4, 5)]),
        ("ijk->ki", [(2, 3, 4)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = dict(zip("abc", (data(*s) for s in shapes), strict=False))
    names = ", ".join(inputs)
    compare(
        f'y = einsum({names}, equation="{equation}")',
        lambda **xs: torch.einsum(equation, *xs.values()),
        **inputs,
    )


CONVOLUTIONS = [
    ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    ((2, 3, 9, 8), (4, 3, 3, 3), {"padding": (1, 2)}),
    ((2, 3, 9, 8), (4, 3, 3, 2), {"padding": (1, 0), "stride": (2, 3)}),
    ((1, 2, 11, 12), (3, 2, 3, 2), {"dilation": (2, 3), "padding": (2, 1)}),
    ((1, 2, 11, 12), (3, 2, 2, 3), {"dilation": (3, 2), "stride": (2, 2), "padding": (1, 2)}),
    ((2, 6, 7, 7), (4, 3, 3, 3), {"groups": 2, "padding": (1, 1)}),
    ((2, 6, 7, 8), (12, 1, 3, 3), {"groups": 6, "stride": (2, 1), "padding": (1, 1)}),
    ((3, 20, 5, 5), (17, 20, 1, 1), {}),
    ((1, 1, 31, 31), (9, 1, 11, 11), {"stride": (4, 4)}),
    ((1, 18, 9, 16), (16, 18, 3, 3), {"padding": (1, 1)}),
    ((2, 58, 9, 8), (9, 58, 1, 1), {"stride": (2, 1)}),
    ((2, 9, 9, 8), (58, 9, 1, 1), {}),
    ((2, 18, 11, 9), (20, 9, 3, 2), {"groups": 2, "stride": (2, 1), "dilation": (1, 2)}),
    ((1, 8, 5, 530), (8, 8, 3, 3), {"padding": (2, 1), "stride": (2, 1)}),
    ((3, 8, 60, 50), (8, 8, 2, 3), {"padding": (0, 1)}),
]


def attributes(given: dict) -> str:
    def text(value) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)

    return "".join(f", {k}={text(v)}" for k, v in given.items())


@pytest.mark.parametrize("x, w, given", CONVOLUTIONS)
def test_conv2d(x, w, given):
    compare(
        f"y = conv2d(x, w, b{attributes(given)})",
        lambda x, w, b: F.conv2d(x, w, b, **given),
        x=data(*x),
        w=data(*w),
        b=data(w[0]),
    )


@pytest.mark.parametrize("x, w, given", CONVOLUTIONS)
def test_conv2d_of_f32(x, w, given):
    compare(
        f"y = conv2d(x, w{attributes(given)})",
        lambda x, w: F.conv2d(x, w, **given),
        x=data(*x, dtype="f4"),
        w=data(*w, dtype="f4"),
    )


LINES = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 3, 40), (16, 3, 5), {"padding": (2,), "stride": (3,), "dilation": (2,)}),
    ((2, 6, 17), (12, 1, 3), {"groups": 6, "padding": (1,)}),
    ((1, 18, 33), (17, 18, 1), {"stride": (2,)}),
]
VOLUMES = [
    ((2, 3, 4, 5, 6), (4, 3, 3, 3, 3), {"padding": (1, 1, 1)}),
    ((2, 3, 5, 6, 7), (4, 3, 3, 2, 3), {"padding": (1, 0, 2), "stride": (2, 1, 3)}),
    ((1, 2, 7, 6, 9), (3, 2, 2, 3, 2), {"dilation": (3, 2, 1), "padding": (2, 1, 0)}),
    ((2, 4, 3, 5, 4), (6, 2, 2, 3, 1), {"groups": 2, "padding": (0, 1, 0)}),
    ((1, 17, 3, 6, 16), (18, 17, 3, 3, 3), {"padding": (1, 1, 1)}),
    ((2, 18, 3, 4, 5), (16, 9, 2, 1, 3), {"groups": 2, "padding": (1, 0, 1), "stride": (2, 1, 1)}),
    ((2, 3, 2, 3, 4), (9, 3, 1, 1, 1), {}),
]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("x, w, given", LINES + VOLUMES)
def test_other_dimensions(x, w, given, dtype):
    name = f"conv{len(x) - 2}d"
    compare(
        f"y = {name}(x, w, b{attributes(given)})",
        lambda x, w, b: getattr(F, name)(x, w, b, **given),
        x=data(*x, dtype=dtype),
        w=data(*w, dtype=dtype),
        b=data(w[0], dtype=dtype),
    )


@pytest.mark.parametrize(
    "shape, given",
    [
        ((2, 3, 5, 6), {"kernel": (3, 2)}),
        ((1, 2, 9, 8), {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 2)}),
        ((1, 2, 9, 8), {"kernel": (3, 2), "dilation": (2, 3), "stride": (1, 2)}),
    ],
)
def test_windows_as_columns(shape, given):
    options = {{"kernel": "kernel_size"}.get(k, k): v for k, v in given.items()}
    columns = F.unfold(torch.zeros(shape), **options).shape
    compare(
        f"y = im2col(x{attributes(given)})",
        lambda x: F.unfold(x, **options),
        x=data(*shape),
    )
    compare(
        f"y = col2im(x{attributes({'size': shape[2:]} | given)})",
        lambda x: F.fold(x, shape[2:], **options),
        x=data(*columns),
    )


def test_padding_on_one_side_of_a_pixel():
    compare(
        "y = conv2d(x, w, padding=[0, 0, 1, 2], stride=[2, 1])",
        lambda x, w: F.conv2d(F.pad(x, (0, 2, 0, 1)), w, stride=(2, 1)),
        x=data(2, 9, 4, 5),
        w=data(10, 9, 1, 1),
    )


def test_padding_of_six_sides():
    compare(
        "y = conv3d(x, w, padding=[1, 0, 2, 3, 0, 1], stride=[2, 1, 1])",
        lambda x, w: F.conv3d(F.pad(x, (2, 1, 0, 0, 1, 3)), w, stride=(2, 1, 1)),
        x=data(2, 3, 4, 5, 6),
        w=data(4, 3, 3, 2, 3),
    )


@pytest.mark.parametrize(
    "x, w, given",
    [
        ((2, 3, 4), (3, 4, 3), {"stride": (2,), "padding": (1,), "output_padding": (1,)}),
        ((1, 4, 5), (4, 3, 2), {"groups": 2, "dilation": (3,), "output_padding": (2,)}),
        ((2, 3, 2, 3, 4), (3, 4, 3, 3, 2), {"stride": (2, 2, 3), "padding": (1, 0, 1)}),
        ((1, 2, 3, 2, 3), (2, 2, 2, 1, 2), {"stride": (3, 2, 2), "output_padding": (2, 1, 0)}),
        (
            (1, 4, 2, 3, 3),
            (4, 3, 2, 2, 3),
            {"groups": 2, "dilation": (3, 1, 2), "output_padding": (2, 0, 1)},
        ),
    ],
)
def test_transposed_in_other_dimensions(x, w, given):
    name = f"conv_transpose{len(x) - 2}d"
    compare(
        f"y = {name}(x, w, b{attributes(given)})",
        lambda x, w, b: getattr(F, name)(x, w, b, **given),
        x=data(*x),
        w=data(*w),
        b=data(w[1] * given.get("groups", 1)),
    )


def test_padding_of_four_sides():
    compare(
        "y = conv2d(x, w, padding=[1, 0, 2, 3], stride=[2, 1])",
        lambda x, w: F.conv2d(F.pad(x, (0, 3, 1, 2)), w, stride=(2, 1)),
        x=data(2, 3, 6, 7),
        w=data(4, 3, 3, 2),
    )


@pytest.mark.parametrize(
    "x, w, given",
    [
        ((1, 1, 3, 3), (1, 1, 3, 3), {}),
        ((2, 3, 4, 5), (3, 4, 3, 3), {"stride": (2, 2), "padding": (1, 1)}),
        ((2, 3, 4, 5), (3, 4, 3, 2), {"stride": (3, 2), "output_padding": (2, 1)}),
        ((1, 4, 4, 5), (4, 3, 3, 2), {"groups": 2, "dilation": (2, 1), "padding": (1, 0)}),
        ((1, 2, 3, 3), (2, 2, 2, 2), {"dilation": (3, 3), "output_padding": (2, 1)}),
        ((1, 2, 3, 3), (2, 2, 1, 1), {"stride": (3, 2), "output_padding": (2, 1)}),
        ((2, 16, 6, 8), (16, 8, 2, 2), {"stride": (2, 2)}),
    ],
)
def test_conv_transpose2d(x, w, given):
    compare(
        f"y = conv_transpose2d(x, w, b{attributes(given)})",
        lambda x, w, b: F.conv_transpose2d(x, w, b, **given),
        x=data(*x),
        w=data(*w),
        b=data(w[1] * given.get("groups", 1)),
    )


def test_gradients_have_gradients():
    """The rules of conv2d, conv2d_input_grad and conv2d_weight_grad are written with each other."""
    x, w = torch.from_numpy(data(2, 3, 6, 7)), torch.from_numpy(data(4, 3, 3, 3))
    given = {"stride": (2, 1), "padding": (1, 1)}
    gy = F.conv2d(x, w, **given)
    written = "stride=[2, 1], padding=[1, 1]"
    compare(
        f"gx = conv2d_input_grad(gy, w, size=[6, 7], {written})",
        lambda gy, w: torch.nn.grad.conv2d_input(x.shape, w, gy, **given),
        gy=data(*gy.shape),
        w=w.numpy(),
    )
    compare(
        f"gw = conv2d_weight_grad(gy, x, kernel=[3, 3], {written})",
        lambda gy, x: torch.nn.grad.conv2d_weight(x, w.shape, gy, **given),
        gy=data(*gy.shape),
        x=x.numpy(),
    )
