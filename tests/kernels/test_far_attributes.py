"""Strides, dilations, paddings and windows far larger than the tensor cost no more than small ones,
and give what these do.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep
import opstep.kernels
from opstep.runtime.ir.op import OPS, complete

FAR = 16_777_216
HUGE = 10**12


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


X, W = image(1, 2, 8, 8), image(3, 2, 3, 3)


def run(execute, name: str, *operands, **attrs) -> list[np.ndarray]:
    return execute(OPS[name], list(operands), complete(OPS[name], attrs))


def same(first, second) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("far", [FAR, HUGE])
def test_convolutions(execute, far):
    plain = run(execute, "conv2d", X, W, None, stride=(100, 1))
    same(run(execute, "conv2d", X, W, None, stride=(far, 1)), plain)
    middle = np.ascontiguousarray(W[:, :, 1:2])
    spread = {"dilation": (far, 1), "padding": (far, 0)}
    same(run(execute, "conv2d", X, W, None, **spread), run(execute, "conv2d", X, middle, None))
    seen = run(execute, "conv2d", X, middle, None, stride=(8, 1))
    same(run(execute, "conv2d", X, W, None, **spread, stride=(far, 1)), seen)
    gy = image(1, 3, 1, 6)
    given = {"kernel": (3, 3), "stride": (far, 1)}
    gw = run(execute, "conv2d_weight_grad", gy, X, **given)
    same(gw, run(execute, "conv2d_weight_grad", gy, X, kernel=(3, 3), stride=(100, 1)))


def test_transposed_convolutions_visit_only_what_filters_reach(execute):
    """A stride of 300 is 90,000 phases of pixels, of which filters reach 9."""
    x, w, b = image(1, 2, 2, 1), image(2, 3, 3, 3), image(3)
    attrs = {"stride": (300, FAR), "padding": (1, 0), "output_padding": (2, 40)}
    (y,) = run(execute, "conv_transpose2d", x, w, b, **attrs)
    same([y], run(execute, "conv_transpose2d", x, w, b, **attrs | {"stride": (300, 41)}))
    want = OPS["conv_transpose2d"].oracle(x, w, b, **complete(OPS["conv_transpose2d"], attrs))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("far", [FAR, 2 * HUGE])
@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d_with_indices"])
def test_poolings(execute, name, far):
    window = {"kernel": (far, 2), "padding": (far // 2, 0), "stride": (far, 1)}
    small = {"kernel": (8, 2), "stride": (100, 1)}
    same(run(execute, name, X, **window), run(execute, name, X, **small))
    gy = image(1, 2, 1, 7)
    gx = run(execute, "max_pool2d_grad", gy, X, **window)
    same(gx, run(execute, "max_pool2d_grad", gy, X, **small))
    apart = {"kernel": (3, 2), "dilation": (far, 1), "padding": (far, 0), "stride": (1, 1)}
    same(run(execute, name, X, **apart), run(execute, name, X, kernel=(1, 2), stride=(1, 1)))


@pytest.mark.parametrize(
    "statement", ["conv2d(x, w, padding=[1000000000, 1])", "upsample2d(x, scale=[1000000, 100000])"]
)
def test_results_that_fit_no_memory_are_refused_before_work_is_laid_out(statement):
    text = f"graph g(x: f32[1, 2, 8, 8], w: f32[3, 2, 3, 3]) -> f32[] {{\n  y = {statement}\n"
    program = opstep.loads(text + "  s = sum(y)\n  return s\n}\n")
    with pytest.raises(opstep.OpstepError, match="out of memory"):
        program.run(inputs={"x": X, "w": W})
