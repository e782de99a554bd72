"""Reductions on CUDA, thread by thread: rows, columns, both in one, in one launch and in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstep.kernels.reduce import cuda_columns, cuda_reduction
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES, TensorType, dtype_of
from opstep.runtime.transforms.composite import Composite

SHAPES = [
    ((3, 5), None),
    ((3, 40), (1,)),
    ((3, 40), (0,)),
    ((4, 5, 6), (0, 2)),
    ((4, 5, 6), (1,)),
    ((2, 3, 8), (1,)),
    ((2, 3, 4, 5), (0, 2)),
    ((), None),
    ((300, 3), (0,)),
    ((2, 1500), (1,)),
    ((5, 1), (1,)),
    ((3000,), None),
]
FOLDS = ["sum", "prod", "mean", "max", "min", "var", "std", "logsumexp", "norm"]


def check(name: str, x: np.ndarray, near: float, **attrs) -> None:
    op: Any = OPS[name]
    given = complete(op, attrs)
    types = (TensorType(dtype_of(x.dtype), x.shape),)
    if issubclass(op, Composite) and not op.has_kernel(True, types, given):
        return  # it is a call
    (found,) = simulator.execute(OPS[name], [x], given)
    exact = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    wanted = np.asarray(OPS[name].oracle(exact, **given))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=near, atol=near
    )


def numbers(shape, dtype: str) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("shape, axes", SHAPES)
def test_folds(shape, axes, name):
    check(name, numbers(shape, "f32"), 3e-6, axes=axes)
    check(name, numbers(shape, "bf16"), 1.6e-2, axes=axes)


@pytest.mark.parametrize("name", ["sum", "max", "var"])
@pytest.mark.parametrize("shape, axes", SHAPES[:6])
def test_wide_floats(shape, axes, name):
    check(name, numbers(shape, "f64"), 1e-13, axes=axes)


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "bool"])
@pytest.mark.parametrize("name", ["sum", "any", "all"])
@pytest.mark.parametrize("shape, axes", SHAPES[:6])
def test_integers(shape, axes, name, dtype):
    x = np.random.default_rng(3).integers(0, 2, shape).astype(DTYPES[dtype].numpy)
    check(name, x, 0, axes=axes)


@pytest.mark.parametrize("name", ["sum", "max", "var", "logsumexp", "argmax"])
@pytest.mark.parametrize("shape, axis", [((700,), 0), ((300, 3), 0), ((200, 16), 0), ((2, 700), 1)])
def test_several_blocks_share_a_result(monkeypatch, shape, axis, name):
    monkeypatch.setattr(cuda_reduction, "PIECE", 64)
    monkeypatch.setattr(cuda_reduction, "LEAST", 64)
    monkeypatch.setattr(cuda_columns, "LEAST", 64)
    attrs = {"axis": axis} if name == "argmax" else {"axes": (axis,)}
    check(name, numbers(shape, "f32"), 3e-6, **attrs)


@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_is_the_extreme(name):
    x = numbers((4, 20), "f32")
    x[1, 3] = np.nan
    (found,) = simulator.execute(OPS[name], [x], complete(OPS[name], {"axes": (1,)}))
    assert np.isnan(found).tolist() == [False, True, False, False]


def test_infinities_of_exponentials():
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [3, -np.inf]], np.float32)
    (found,) = simulator.execute(OPS["logsumexp"], [x], complete(OPS["logsumexp"], {"axes": (0,)}))
    assert found[0] == np.inf
    assert np.isclose(found[1], 1)


def test_far_from_zero_the_variance_is_exact():
    x = (numbers((2, 900), "f64") + 1e4).astype(np.float32)
    check("var", x, 1e-5, axes=(1,))
    check("var", np.ascontiguousarray(x.T), 1e-5, axes=(0,))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i32"])
@pytest.mark.parametrize(
    "shape, axis", [((5, 7), 1), ((5, 7), 0), ((9,), None), ((3, 4, 5), 1), ((4, 64), 0)]
)
def test_the_first_of_equals(shape, axis, dtype, name):
    x = np.random.default_rng(5).integers(-4, 4, shape).astype(DTYPES[dtype].numpy)
    check(name, x, 0, axis=axis)
    if DTYPES[dtype].is_float:
        x.reshape(-1)[[3, 5]] = np.nan
        check(name, x, 0, axis=axis)
