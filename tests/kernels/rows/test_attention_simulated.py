"""Attention and its gradients on CUDA, by all kernels that there are, in the simulator: on tensor
cores with warps and with groups of four, in register tiles, by rows, by matrix products.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opstep.kernels.rows import cuda_attention_grad_halves, cuda_attention_halves
from opstep.kernels.rows.cuda_attention_tiles import FlashTile
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete

RNG = np.random.default_rng(0)
BF16 = np.dtype(ml_dtypes.bfloat16)
HALF = np.dtype(np.float16)
NEAR = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-13}
MASKS = {
    "none": lambda rows, keys: None,
    "bools": lambda rows, keys: RNG.random((rows, keys)) < 0.5,
    "a row that sees nothing": lambda rows, keys: np.arange(rows)[:, None] != min(3, rows - 1),
    "numbers": lambda rows, keys: RNG.standard_normal((1, keys)),
    "infinities": lambda rows, keys: np.where(np.arange(rows)[:, None] % 3 == 1, -np.inf, 0.0),
}
FORMS = [*((kind, False) for kind in MASKS), ("none", True), ("bools", True)]


def mask_of(kind: str, rows: int, keys: int, dtype: np.dtype) -> np.ndarray | None:
    mask = MASKS[kind](rows, keys)
    return mask if mask is None or mask.dtype == bool else mask.astype(dtype)


def numbers(dtype: np.dtype, *shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def agree(name: str, arch: str, operands: list, mask: np.ndarray | None, **attrs: Any) -> list:
    """The results, which are near the oracle's."""
    op = OPS[name]
    given = complete(op, attrs)
    with targeting(arch):
        found = simulator.execute(op, [*operands, mask], given)
    exact = [a if a is None or a.dtype == bool else a.astype("f8") for a in (*operands, mask)]
    wanted = op.oracle(*exact, **given)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for y, exactly in zip(found, wanted, strict=True):
        assert y.dtype == operands[0].dtype
        worst = np.abs(y.astype("f8") - exactly).max(initial=0.0)
        largest = np.abs(exactly).max(initial=0.0)
        assert worst <= NEAR[y.dtype.name] * max(1.0, largest)
    return found


def forward(arch, dtype, rows, keys, features, columns, kind="none", **attrs):
    q, k = (numbers(dtype, n, features) for n in (rows, keys))
    v = numbers(dtype, keys, columns)
    mask = mask_of(kind, rows, keys, dtype)
    return agree("scaled_dot_product_attention", arch, [q, k, v], mask, **attrs)


def backward(arch, dtype, rows, keys, features, columns, kind="none", **attrs):
    q, k = (numbers(dtype, n, features) for n in (rows, keys))
    v, gy = (numbers(dtype, n, columns) for n in (keys, rows))
    mask = mask_of(kind, rows, keys, dtype)
    return agree("scaled_dot_product_attention_grad", arch, [q, k, v, gy], mask, **attrs)


SIZES = [  # rows, keys, features, columns: multiples of the tiles, and not; several tiles of each
    (64, 64, 64, 64), (1, 70, 16, 16), (5, 3, 8, 24), (9, 130, 80, 72), (130, 65, 20, 6),
    (66, 40, 33, 65), (40, 66, 128, 128), (3, 70, 256, 256), (2, 1, 200, 16),
]  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_on_tensor_cores(arch, sizes):
    forward(arch, HALF, *sizes)
    if max(sizes[2:]) <= 128:
        backward(arch, HALF, *sizes)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rows, keys", [(70, 70), (140, 70), (70, 140)])
def test_causal_on_tensor_cores(arch, rows, keys):
    forward(arch, BF16, rows, keys, 32, 32, causal=True)
    backward(arch, BF16, rows, keys, 32, 32, causal=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kind, causal", FORMS)
def test_masks_on_tensor_cores(arch, kind, causal):
    rows = 66 if causal else 9
    forward(arch, BF16, rows, 70, 16, 16, kind, causal=causal, scale=0.3)
    backward(arch, BF16, rows, 70, 16, 16, kind, causal=causal, scale=-0.3)


@pytest.mark.parametrize("arch, dtype", [("sm_80", HALF), ("sm_90", HALF), ("sm_80", "f4")])
def test_heads_that_share_keys(arch, dtype):
    dtype = np.dtype(dtype)
    q, k, v = (numbers(dtype, heads, 9, 8) for heads in (4, 2, 2))
    options = {"enable_gqa": True, "causal": True}
    mask = mask_of("bools", 9, 9, dtype)
    agree("scaled_dot_product_attention", arch, [q, k, v], mask, **options)
    gy = numbers(dtype, 4, 9, 8)
    agree("scaled_dot_product_attention_grad", arch, [q, k, v, gy], mask, **options)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_batches_that_share_operands(arch):
    q, k, v = numbers(HALF, 3, 2, 5, 16), numbers(HALF, 1, 2, 9, 16), numbers(HALF, 9, 16)
    agree("scaled_dot_product_attention", arch, [q, k, v], numbers(HALF, 2, 1, 1))


@pytest.mark.parametrize("held, streamed", [(128, 64), (64, 128), (192, 128), (64, 32)])
@pytest.mark.parametrize("groups", [False, True])
def test_other_tiles(monkeypatch, held, streamed, groups):
    """What another GPU could be faster with."""
    tile = FlashTile(held, streamed, 64, 64, groups)
    monkeypatch.setattr(cuda_attention_halves, "tile_for", lambda *_: tile)
    rows, keys = held + 2, streamed + 2
    forward("sm_90", HALF, rows, keys, 60, 52, causal=True)
    if held <= 128:
        monkeypatch.setattr(cuda_attention_grad_halves, "tile_for", lambda *_: tile)
        backward("sm_90", HALF, rows, keys, 60, 52, causal=True)


@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_120"])
def test_less_shared_memory(arch):
    """Tiles of long rows have fewer keys."""
    with targeting(arch):
        assert cuda_attention_halves.shared_limit() == 99 << 10
    forward(arch, HALF, 70, 130, 256, 256, causal=True)


TILED = [(9, 3, 8, 24), (70, 66, 33, 65), (9, 70, 16, 130), (33, 130, 150, 12), (8, 64, 300, 300)]


@pytest.mark.parametrize("sizes", TILED, ids=str)
def test_register_tiles(sizes):
    forward("sm_80", np.dtype("f4"), *sizes)


def test_long_rows_in_register_tiles():
    forward("sm_80", np.dtype("f4"), 35, 70, 256, 256, "bools", causal=True)


@pytest.mark.parametrize("kind, causal", FORMS)
def test_masks_in_register_tiles(kind, causal):
    forward("sm_80", np.dtype("f4"), 9, 70, 16, 16, kind, causal=causal, scale=-0.3)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind, causal", FORMS)
def test_gradients_by_products(dtype, kind, causal):
    backward("sm_80", np.dtype(dtype), 10, 37, 6, 5, kind, causal=causal, scale=0.3)


@pytest.mark.parametrize("kind, causal", [("none", False), ("bools", True)])
def test_gradients_of_long_rows_of_halves(kind, causal):
    backward("sm_90", HALF, 9, 12, 16, 136, kind, causal=causal)


@pytest.mark.parametrize("arch, dtype", [("sm_80", HALF), ("sm_90", HALF), ("sm_80", "f4")])
def test_nan_and_infinity_stay_in_their_rows(arch, dtype):
    q, k, v = (numbers(np.dtype(dtype), n, 16) for n in (9, 70, 70))
    q[3, 2], q[5] = np.nan, np.inf
    k = np.abs(k)
    op = OPS["scaled_dot_product_attention"]
    with targeting(arch):
        (y,) = simulator.execute(op, [q, k, v, None], complete(op, {}))
    assert np.isnan(y[[3, 5]]).all()
    assert np.isfinite(np.delete(y, [3, 5], 0)).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_large_scores_overflow_nothing(arch):
    q, k, v = numbers(BF16, 9, 8) * 1e4, numbers(BF16, 70, 8) * 1e4, numbers(BF16, 70, 8)
    op = OPS["scaled_dot_product_attention"]
    with targeting(arch):
        (y,) = simulator.execute(op, [q.astype(BF16), k.astype(BF16), v, None], complete(op, {}))
    exact = q.astype(BF16).astype("f8") @ k.astype(BF16).astype("f8").T
    np.testing.assert_array_equal(y, v[np.argmax(exact, -1)])


def test_no_keys_give_zeros():
    q, k = numbers(HALF, 2, 5, 16), numbers(HALF, 2, 0, 16)
    for arch in ("sm_80", "sm_90"):
        (y,) = agree("scaled_dot_product_attention", arch, [q, k, k], None)
        assert not y.any()
        gq, gk, gv = agree("scaled_dot_product_attention_grad", arch, [q, k, k, q], None)
        assert not gq.any() and not gk.size and not gv.size
