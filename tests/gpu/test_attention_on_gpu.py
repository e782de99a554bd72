"""Attention and its gradients on a GPU: beside the oracle in float64, no further from it than
PyTorch, with the same bits in every run.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cuda.device import execute
from opstep.runtime.ir.op import OPS, complete

TORCH = {"f2": torch.float16, "bf16": torch.bfloat16, "f4": torch.float32, "f8": torch.float64}
NUMPY = {"f2": np.float16, "bf16": ml_dtypes.bfloat16, "f4": np.float32, "f8": np.float64}
NEAR = {"f2": 2e-3, "bf16": 1.6e-2, "f4": 1e-5, "f8": 1e-12}
SHAPES = [  # batches and heads, rows, keys, features, columns
    ((2, 3), 64, 64, 64, 64), ((2, 3), 128, 128, 128, 128), ((1, 2), 512, 512, 64, 64),
    ((1, 2), 1000, 1000, 128, 128), ((2,), 197, 197, 64, 64), ((2,), 1, 700, 128, 128),
    ((2,), 7, 33, 16, 16), ((2,), 300, 77, 80, 80), ((2,), 130, 130, 96, 64),
    ((1,), 200, 300, 256, 256), ((1,), 150, 260, 192, 160), ((1,), 70, 70, 33, 65),
    ((2,), 65, 129, 40, 24), ((3,), 9, 5, 8, 6),
]  # fmt: skip
FORMS = ["plain", "causal", "bools", "numbers", "blind", "causal bools"]
IDS: dict[str, Any] = {"ids": str}


def operands(dtype: str, shape, form: str) -> tuple[list[np.ndarray], np.ndarray | None, dict]:
    rng = np.random.default_rng(0)
    batch, rows, keys, features, columns = shape
    sizes = ((rows, features), (keys, features), (keys, columns), (rows, columns))
    given = [rng.standard_normal((*batch, *size)).astype(NUMPY[dtype]) for size in sizes]
    mask = None
    if "bools" in form:
        mask = rng.random((rows, keys)) < 0.7
    elif form == "numbers":
        mask = rng.standard_normal((*batch, 1, keys)).astype(NUMPY[dtype])
    elif form == "blind":  # every third row sees nothing
        mask = np.broadcast_to(np.arange(rows)[:, None] % 3 != 1, (rows, keys)).copy()
    return given, mask, {"causal": "causal" in form}


def wide(array: np.ndarray | None) -> np.ndarray | None:
    return array if array is None or array.dtype == bool else array.astype("f8")


def tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.as_tensor(array.astype("f8"), device="cuda").to(TORCH[dtype])


def by_pytorch(given, mask, dtype: str, causal: bool) -> list[np.ndarray]:
    """The result and the gradients."""
    q, k, v, gy = (tensor(a, dtype) for a in given)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    shape = (q.shape[-2], k.shape[-2])
    own = None
    if mask is not None:
        own = torch.as_tensor(mask, device="cuda") if mask.dtype == bool else tensor(mask, dtype)
    if causal and own is not None:
        own, causal = own & torch.ones(shape, dtype=torch.bool, device="cuda").tril(), False
    y = F.scaled_dot_product_attention(q, k, v, own, is_causal=causal)
    found = [y, *torch.autograd.grad(y, (q, k, v), gy)]
    return [t.detach().double().cpu().numpy() for t in found]


def ours(given, mask, attrs) -> list[np.ndarray]:
    forward, backward = (OPS["scaled_dot_product_attention" + s] for s in ("", "_grad"))
    found = execute(forward, [*given[:3], mask], complete(forward, attrs))
    return [*found, *execute(backward, [*given, mask], complete(backward, attrs))]


def exactly(given, mask, attrs) -> list[np.ndarray]:
    forward, backward = (OPS["scaled_dot_product_attention" + s] for s in ("", "_grad"))
    exact = [wide(a) for a in given]
    y = forward.oracle(*exact[:3], wide(mask), **complete(forward, attrs))
    return [y, *backward.oracle(*exact, wide(mask), **complete(backward, attrs))]


def worst(found: np.ndarray, wanted: np.ndarray) -> float:
    difference = np.abs(found.astype("f8") - wanted)
    assert np.isfinite(difference).all()
    return difference.max(initial=0.0) / max(1.0, np.abs(wanted).max(initial=0.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("shape", SHAPES, **IDS)
def test_values_and_gradients(shape, dtype, form):
    given, mask, attrs = operands(dtype, shape, form)
    wanted, found = exactly(given, mask, attrs), ours(given, mask, attrs)
    again = ours(given, mask, attrs)
    blind = form == "blind" or "causal bools" in form
    theirs = wanted if blind else by_pytorch(given, mask, dtype, attrs["causal"])
    for y, exact, same, peer in zip(found, wanted, again, theirs, strict=True):
        assert y.tobytes() == same.tobytes()
        off = worst(y, exact)
        assert off <= NEAR[dtype]
        if not blind:
            assert off <= max(3 * worst(peer, exact), NEAR[dtype] / 4)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_heads_that_share_keys(dtype):
    rng = np.random.default_rng(1)
    q, k, v, gy = (
        rng.standard_normal((2, heads, 150, 64)).astype(NUMPY[dtype]) for heads in (8, 2, 2, 8)
    )
    attrs = {"enable_gqa": True, "causal": True}
    for y, exact in zip(
        ours([q, k, v, gy], None, attrs), exactly([q, k, v, gy], None, attrs), strict=True
    ):
        assert worst(y, exact) <= NEAR[dtype]


@pytest.mark.parametrize("dtype", ["f2", "bf16", "f4"])
def test_a_model_is_trained_as_by_pytorch(dtype):
    """Through `torch.compile`: forward and backward are the op."""
    torch.manual_seed(0)
    heads = [
        torch.randn(2, 4, 100, 64, device="cuda").to(TORCH[dtype]).requires_grad_() for _ in "qkv"
    ]

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin().sum()

    found = torch.autograd.grad(torch.compile(f, backend="opstep")(*heads), heads)
    for a, b in zip(found, torch.autograd.grad(f(*heads), heads), strict=True):
        torch.testing.assert_close(a, b, rtol=2 * NEAR[dtype], atol=2 * NEAR[dtype])
