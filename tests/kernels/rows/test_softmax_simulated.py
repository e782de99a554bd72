"""softmax and losses on CUDA: rows in registers, rows in parts, sequences that are no rows."""

from __future__ import annotations

import numpy as np
import pytest
from rowwise import check, numbers

from opstep.kernels.schedules.cuda import teams

FORWARD = ("softmax", "log_softmax")


@pytest.fixture
def no_registers(monkeypatch):
    """Every row is too long to be held."""
    monkeypatch.setattr(teams, "HELD", 0.001)
    monkeypatch.setattr(teams, "MOST_THREADS", 1)


def gradients(name: str, dtype: str, *shape: int, axis: int = -1) -> None:
    (y,) = check(name, numbers(dtype, *shape), axis=axis)
    check(f"{name}_grad", y, numbers(dtype, *shape, seed=1), axis=axis)


@pytest.mark.parametrize("n", [1, 5, 64, 130, 500])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("name", FORWARD)
def test_rows_in_registers(name, dtype, n):
    gradients(name, dtype, 3, n)


def test_a_row_that_takes_a_whole_block():
    gradients("softmax", "f32", 2, 1100)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", FORWARD)
def test_along_other_axes(name, dtype):
    gradients(name, dtype, 2, 19, 3, axis=1)


@pytest.mark.usefixtures("no_registers")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_long_rows(name, dtype):
    gradients(name, dtype, 2, 150)


@pytest.mark.parametrize("shape", [(4, 9, 1), (2, 9, 2)])
def test_rows_of_special_values(shape):
    x = numbers("f32", *shape)
    x[0, 0], x[0, 3] = -np.inf, np.nan
    x[1, :] = -np.inf
    check("softmax", x, axis=1)
    x[1, 4], x[0, 3] = np.inf, 1.0
    check("log_softmax", x, axis=1)


@pytest.mark.usefixtures("no_registers")
def test_long_rows_of_special_values():
    x = numbers("f32", 3, 150)
    x[0, :70], x[1, 100], x[2, :] = -np.inf, np.nan, -np.inf
    check("softmax", x)


def test_no_rows():
    check("softmax", np.zeros((0, 4), np.float32))
    check("softmax", np.zeros((3, 0), np.float32))


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mse_loss", "l1_loss", "huber_loss", "kl_div", "binary_cross_entropy"]
)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_of_pairs(name, reduction):
    x, target = (np.abs(np.tanh(numbers("f32", 3, 7, seed=k))) * 0.9 + 0.05 for k in range(2))
    check(name, x, target, reduction=reduction)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 4)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "nll_loss"])
def test_losses_of_classifiers(name, reduction, shape):
    x, weight = numbers("f32", *shape), np.linspace(0.5, 1.5, shape[1], dtype=np.float32)
    outside = (shape[0], *shape[2:])
    label = np.random.default_rng(0).integers(0, shape[1], outside)
    label.flat[1] = -100
    gy = numbers("f32", *outside) if reduction == "none" else np.array(1.5, np.float32)
    check(name, x, label, weight, reduction=reduction)
    check(f"{name}_grad", x, label, gy, weight, reduction=reduction)
    label.flat[0] = 99  # no such class
    check(name, x, label, None, reduction=reduction)
    check(f"{name}_grad", x, label, gy, None, reduction=reduction)


@pytest.mark.slow
@pytest.mark.usefixtures("no_registers")
@pytest.mark.parametrize("n", [150, 152])  # read element by element, and in vectors
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_of_long_rows(reduction, n):
    x, weight = numbers("f32", 5, n), np.linspace(0.5, 1.5, n, dtype=np.float32)
    x[0, :70], x[3, 100] = -np.inf, np.nan
    label = np.array([n - 1, -100, 3, 70, 64])
    gy = numbers("f32", 5) if reduction == "none" else np.array(1.5, np.float32)
    for given in ([0, 1, 2, 4], [0, 3]):  # without a NaN, with one
        each = gy[given] if reduction == "none" else gy
        check("softmax_cross_entropy", x[given], label[given], weight, reduction=reduction)
        check(
            "softmax_cross_entropy_grad", x[given], label[given], each, weight, reduction=reduction
        )
    label[2] = n  # no such class
    check("softmax_cross_entropy", x, label, None, reduction=reduction)
    check("softmax_cross_entropy_grad", x, label, gy, None, reduction=reduction)
