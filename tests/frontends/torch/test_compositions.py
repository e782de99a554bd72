"""Definitions of ops by others, against PyTorch's own kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from opstep.frontends.torch.compositions import COMPOSITIONS

aten = torch.ops.aten


def numbers(*shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape)


def agree(op, *args, **kwargs) -> None:
    """The same seed gives both the same random numbers."""
    found = []
    for function in (COMPOSITIONS[op], op):
        torch.manual_seed(0)
        given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        found.append(function(*given, **kwargs))
    torch.testing.assert_close(*found)


ATTENTION = (8, 2, numbers(24, 8), numbers(24), numbers(8, 8), numbers(8))
BLOCKED = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS = [
    (None, None), (BLOCKED, 0), (PADDED, 1),
    ((BLOCKED | PADDED[:, None, None, :]).expand(2, 2, 5, 5), 2),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "kind"), MASKS)
def test_attention_in_eval_mode(mask, kind):
    x = numbers(2, 5, 8)
    for average in (True, False):
        agree(aten._native_multi_head_attention.default, x, x, x, *ATTENTION, mask, True, average,
              kind)  # fmt: skip
    norm, wide = (numbers(8) + 1, numbers(8)), (numbers(16, 8), numbers(16), numbers(8, 16))
    for gelu, first in ((True, False), (False, True)):
        agree(aten._transformer_encoder_layer_fwd.default, x, *ATTENTION, gelu, first, 1e-5, *norm,
              *norm, *wide, numbers(8), mask, kind)  # fmt: skip


@pytest.mark.parametrize("axis", [0, 2])
def test_gradient_of_weight_norm(axis):
    v = numbers(4, 3, 5)
    g = numbers(*(n if k == axis else 1 for k, n in enumerate(v.shape)))
    w, norms = aten._weight_norm_interface(v, g, axis)
    agree(aten._weight_norm_interface_backward.default, w.cos(), v, g, norms, axis)


def test_gradients_of_pools():
    for op, pool, x in (
        (aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool2d, numbers(2, 3, 7, 6)),
        (aten.adaptive_max_pool3d_backward.default, aten.adaptive_max_pool3d, numbers(3, 4, 7, 6)),
    ):
        y, places = pool(x, [2, 3, 2][: 2 + (op._schema.name.endswith("3d_backward"))])
        agree(op, y.cos(), x, places)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, torch.inf])
def test_gradient_of_distances(p):
    x, other = numbers(2, 5, 3), numbers(2, 4, 3).cos()
    x[1, 2] = other[1, 3]
    y = aten._cdist_forward(x, other, p, None)
    agree(aten._cdist_backward.default, y.cos(), x, other, p, y)


def test_random_numbers_are_those_of_pytorch():
    p = numbers(4, 6).softmax(1)
    agree(aten.multinomial.default, p, 1)
    agree(aten.multinomial.default, p, 1, True)
    agree(aten.multinomial.default, p[0], 4)
    agree(aten.rrelu_with_noise_functional.default, p - 0.2, torch.zeros_like(p))


def test_quantisation_that_is_learned():
    x, scale, zero = numbers(4, 6), torch.tensor(0.07), torch.tensor(3, dtype=torch.int32)
    agree(aten.fake_quantize_per_tensor_affine_cachemask.default, x, 0.013, 2, -16, 15)
    by_tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    for on in (0, 1):
        agree(by_tensors, x, scale, zero, torch.tensor([on]), -16, 15)
    agree(aten.fake_quantize_per_channel_affine_cachemask.default, x, torch.rand(6) + 0.01,
          zero.expand(6), 1, -16, 15)  # fmt: skip


@pytest.mark.parametrize("op", ["bilinear", "bicubic"])
def test_resizing_with_a_filter(op):
    x = numbers(2, 3, 9, 12)
    for size, *how in (
        ([5, 17], False),
        ([20, 6], True),
        ([4, 6], False, 0.5, 0.5),
        ([1, 1], True),
    ):
        y = getattr(aten, f"_upsample_{op}2d_aa")(x, size, *how)
        agree(getattr(aten, f"_upsample_{op}2d_aa").default, x, size, *how)
        backward = getattr(aten, f"_upsample_{op}2d_aa_backward").default
        agree(backward, y.cos(), size, x.shape, *how)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 4])
def test_gradients_of_embedding_bags(mode, padding):
    table, index, offsets = numbers(7, 3), torch.tensor([1, 4, 4, 5, 0, 3]), torch.tensor([0, 1, 3])
    rest = (False, mode, False, torch.rand(6) if mode == 0 else None, False, padding)
    y, *saved = aten._embedding_bag(table, index, offsets, *rest)
    agree(aten._embedding_bag_backward.default, y.cos(), index, offsets, *saved, 7, False, mode,
          False, rest[3], padding)  # fmt: skip
    if mode == 0:
        agree(aten._embedding_bag_per_sample_weights_backward.default, y.cos(), table, index,
              offsets, saved[0], mode, padding)  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
def test_where_the_largest_rows_of_bags_are(last):
    table, index = numbers(7, 3).round(), torch.tensor([1, 4, 4, 5, 0, 3])
    offsets = torch.tensor([0, 2, 2, 3, 6])
    found, expected = (
        f(table, index, offsets, False, 2, False, None, last, 4)
        for f in (COMPOSITIONS[aten._embedding_bag.default], aten._embedding_bag)
    )
    gy = expected[0].cos()
    torch.testing.assert_close(found[0], expected[0])
    gradients = [
        aten._embedding_bag_dense_backward(gy, index, *saved[1:], 7, False, 2, None, 4)
        for saved in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_gradient_of_scattered_values():
    gy, mask = numbers(3, 4), torch.tensor([True, False, True, True])
    for sizes in ([9], [2, 6]):
        agree(aten.masked_scatter_backward.default, gy, mask.expand(3, 4), sizes)
