"""Triangular matrices of several panels, by the CPU's kernels and by CUDA's thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete

RNG = np.random.default_rng(0)


def on_cpu(name: str, operands: list[np.ndarray], attrs: dict[str, Any]) -> np.ndarray:
    (found,) = execute(OPS[name], operands, complete(OPS[name], attrs))
    return found


def simulated(name: str, operands: list[np.ndarray], attrs: dict[str, Any]) -> np.ndarray:
    (found,) = simulator.execute(OPS[name], operands, complete(OPS[name], attrs))
    return found


def positive(*shape: int) -> np.ndarray:
    """Matrices whose upper triangles, which nobody may read, are NaNs."""
    x = RNG.standard_normal(shape)
    a = x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])
    return np.where(np.tri(shape[-1], dtype=bool), a, np.nan)


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    scale = np.nanmax(np.abs(wanted))
    allowed = {"f8": 1e-13, "f4": 1e-5, "f2": 3e-3}[found.dtype.str[1:]]
    assert np.nanmax(np.abs(found - wanted)) <= allowed * scale


@pytest.mark.parametrize("run", [on_cpu, simulated])
@pytest.mark.parametrize("n, dtype", [(9, "f4"), (33, "f4"), (64, "f4"), (132, "f4"), (70, "f8"),
                                      (70, "f2")])  # fmt: skip
def test_roots(run: Callable, n: int, dtype: str):
    a = positive(1, n, n).astype(dtype)
    found = run("cholesky", [a], {})
    agree(found, OPS["cholesky"].oracle(a.astype(float)))


@pytest.mark.parametrize("run", [on_cpu, simulated])
@pytest.mark.parametrize("pivot", [-1.0, 0.0])
def test_a_matrix_that_is_not_positive_definite(run: Callable, pivot: float):
    a = np.eye(72, dtype=np.float32)
    a[67, 67] = pivot
    agree(run("cholesky", [a], {}), OPS["cholesky"].oracle(a.astype(float)))


@pytest.mark.parametrize("run", [on_cpu, simulated])
@pytest.mark.parametrize("upper, transpose, unit", list(product([False, True], repeat=3)))
def test_equations(run: Callable, upper: bool, transpose: bool, unit: bool):
    n = 70
    a = RNG.standard_normal((n, n)) / n + 2 * np.eye(n)
    unread = np.tri(n, k=-1, dtype=bool)
    a[unread if upper else unread.T] = np.nan
    if unit:
        np.fill_diagonal(a, np.nan)
    a, b = a.astype(np.float32), RNG.standard_normal((n, 67)).astype(np.float32)
    attrs = {"upper": upper, "transpose": transpose, "unit": unit}
    wanted = OPS["solve_triangular"].oracle(a.astype(float), b.astype(float), **attrs)
    agree(run("solve_triangular", [a, b], attrs), wanted)


@pytest.mark.parametrize("run", [on_cpu, simulated])
def test_halves_are_rounded_once(run: Callable):
    a = (np.tril(RNG.standard_normal((130, 130))) / 130 + 2 * np.eye(130)).astype(np.float16)
    b = RNG.standard_normal((130, 3)).astype(np.float16)
    attrs = {"upper": False, "transpose": False, "unit": False}
    wanted = OPS["solve_triangular"].oracle(a.astype(float), b.astype(float), **attrs)
    agree(run("solve_triangular", [a, b], attrs), wanted)
