"""Attention beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

from opstep.runtime.device.cpu.device import execute  # noqa: E402
from opstep.runtime.ir.op import OPS, complete  # noqa: E402

RNG = np.random.default_rng(0)
sdpa = torch.nn.functional.scaled_dot_product_attention


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


@pytest.mark.parametrize("rows, keys", [(1, 200), (5, 5), (40, 160), (150, 150)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(rows, keys, causal):
    compare(
        f"y = scaled_dot_product_attention(q, k, v, causal={str(causal).lower()})",
        lambda q, k, v: sdpa(q, k, v, is_causal=causal),
        q=data(2, 3, rows, 16),
        k=data(2, 3, keys, 16),
        v=data(2, 3, keys, 8),
        tol=4e-6,
    )


@pytest.mark.parametrize("shape", [(9, 12), (1, 12), (2, 1, 1, 12), (3, 9, 12)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(kind, shape):
    mask = RNG.random(shape) < 0.6 if kind == "bool" else data(*shape)
    if kind == "bool":
        mask[..., 3] = True  # each row sees something
    compare(
        "y = scaled_dot_product_attention(q, k, v, mask, scale=0.3)",
        lambda q, k, v, mask: sdpa(q, k, v, attn_mask=mask, scale=0.3),
        q=data(2, 3, 9, 16),
        k=data(2, 3, 12, 16),
        v=data(2, 3, 12, 16),
        mask=mask,
        tol=4e-6,
    )


@pytest.mark.parametrize("rows", [1, 20])
def test_heads_that_share_keys(rows):
    compare(
        "y = scaled_dot_product_attention(q, k, v, enable_gqa=true)",
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        q=data(2, 6, rows, 16),
        k=data(2, 2, 11, 16),
        v=data(2, 2, 11, 16),
        tol=4e-6,
    )


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_sees_nothing_is_0_as_are_its_gradients(kind, rows):
    mask = np.ones((rows, 7), bool)
    mask[1] = False
    if kind == "float":
        mask = np.where(mask, 0, -np.inf).astype("f4")
    compare(
        "y = scaled_dot_product_attention(q, k, v, mask)",
        lambda q, k, v, mask: sdpa(q, k, v, attn_mask=mask),
        wrt=["q", "k", "v"],
        q=data(rows, 4),
        k=data(7, 4),
        v=data(7, 4),
        mask=mask,
        tol=4e-6,
    )


@pytest.mark.parametrize("rows", [1, 30])
def test_large_scores_overflow_nothing(rows):
    op = OPS["scaled_dot_product_attention"]
    q, k, v = data(rows, 8) * 1e4, data(200, 8) * 1e4, data(200, 4)
    (y,) = execute(op, [q, k, v], complete(op, {}))
    np.testing.assert_allclose(y, v[np.argmax(q.astype("f8") @ k.T.astype("f8"), -1)], rtol=1e-6)


def test_a_nan_stays_in_its_rows():
    op = OPS["scaled_dot_product_attention"]
    q, k, v = data(20, 8), data(300, 8), data(300, 4)
    q[3, 2] = np.nan
    (y,) = execute(op, [q, k, v], complete(op, {}))
    assert np.isnan(y[3]).all()
    assert np.isfinite(np.delete(y, 3, 0)).all()
