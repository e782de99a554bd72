"""Normalisations on CUDA: rows in registers and in parts, channels by planes and by columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rowwise import check, numbers

from opstep.kernels.schedules.cuda import launching, teams
from opstep.runtime.device.cuda.simulator.simulator import execute
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import TensorType, f32


@pytest.fixture
def no_registers(monkeypatch):
    """Every row is too long to be held."""
    monkeypatch.setattr(teams, "HELD", 0.001)
    monkeypatch.setattr(teams, "MOST_THREADS", 1)


def all_of_rows(dtype: str, n: int) -> None:
    x, gy = numbers(dtype, 3, n) + np.array(3, numbers(dtype).dtype), numbers(dtype, 3, n, seed=1)
    scale, bias = numbers(dtype, n), numbers(dtype, n, seed=1)
    check("layer_norm", x, scale, bias, shape=(n,))
    check("layer_norm", x, shape=(n,))
    same_beside_statistics("layer_norm", x, scale, bias, shape=(n,))
    check("layer_norm_grad", x, gy, scale, shape=(n,))
    check("rms_norm", x, scale, shape=(n,))
    check("rms_norm_grad", x, gy, scale, shape=(n,))


def same_beside_statistics(name: str, *given, **attrs) -> None:
    """The result has the same bits where its statistics are wanted."""
    (alone,) = check(name, *given, **attrs)
    beside, *_ = check(f"{name}_with_statistics", *given, **attrs)
    np.testing.assert_array_equal(beside.view(np.uint8), alone.view(np.uint8))


@pytest.mark.parametrize("n", [1, 7, 500])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_rows_in_registers(dtype, n):
    all_of_rows(dtype, n)
    x, gy, scale = numbers(dtype, 3, n), numbers(dtype, 3, n, seed=1), numbers(dtype, n)
    check("layer_norm_affine_grad", x, gy, scale, shape=(n,))


@pytest.mark.usefixtures("no_registers")
def test_long_rows():
    all_of_rows("f32", 150)
    all_of_rows("bf16", 300)


@pytest.mark.parametrize("n, is_one", [(8192, True), (8196, False)])
def test_where_all_gradients_are_one_kernel(n, is_one):
    """A GPU's threads hold rows so long; longer ones are those of the graph."""
    row, x = (TensorType(f32, (n,)), TensorType(f32, (3, n)))
    op: Any = OPS["layer_norm_affine_grad"]
    assert op.has_kernel(True, (x, x, row), complete(op, {"shape": (n,)})) is is_one
    assert op.has_kernel(False, (x, x, row), complete(op, {"shape": (n,)}))


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_gradients_of_many_rows(dtype, monkeypatch):
    """More than have sums of their own, and a last team without a row."""
    monkeypatch.setattr(launching, "PARTS", 20)
    x, gy = numbers(dtype, 3, 23, 24), numbers(dtype, 3, 23, 24, seed=1)
    check("layer_norm_affine_grad", x, gy, numbers(dtype, 24), shape=(24,))


def test_parameters_of_another_type():
    x, scale = numbers("bf16", 3, 24), numbers("f32", 24)
    check("layer_norm", x, scale, shape=(24,))


@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 3, 4, 8), (6, 5), (5, 8)])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_batch_norm(dtype, shape):
    wide = "f64" if dtype == "f64" else "f32"
    x, gy = numbers(dtype, *shape) + np.array(3, numbers(dtype).dtype), numbers(dtype, *shape)
    scale, bias, mean = (numbers(dtype, shape[1], seed=k) for k in range(3))
    var = np.abs(numbers(wide, shape[1])) + 0.5
    check("batch_norm", x, scale, bias, mean, var.astype(x.dtype))
    check("batch_norm_train", x, scale, bias)
    given = (x, scale, gy, numbers(wide, shape[1]), var)
    check("batch_norm_grad", *given)
    check("batch_norm_grad", *given, numbers(wide, shape[1], seed=4), numbers(wide, shape[1]))


def test_channels_far_from_zero():
    """The mean is rounded to f32, and so moves what is near it; the variance loses nothing."""
    x = numbers("f32", 6, 3, 40) + np.float32(1000)
    op = OPS["batch_norm_train"]
    attrs = complete(op, {})
    _, _, var = execute(op, [x, np.ones(3, np.float32), np.zeros(3, np.float32)], attrs)
    np.testing.assert_allclose(var, x.astype(np.float64).var((0, 2)), rtol=1e-6)


def test_a_batch_of_nothing():
    nothing = np.zeros((0, 3, 2), np.float32)
    check("batch_norm_train", nothing, np.ones(3, np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups):
    x = numbers("f32", 2, 6, 5)
    check("group_norm", x, numbers("f32", 6), numbers("f32", 6, seed=1), groups=groups)
    check("group_norm", x, None, None, groups=groups)
    same_beside_statistics("group_norm", x, numbers("f32", 6), None, groups=groups)


@pytest.mark.usefixtures("no_registers")
def test_group_norm_of_large_groups():
    given = (numbers("f32", 2, 4, 12), numbers("f32", 4), None)
    same_beside_statistics("group_norm", *given, groups=2)
