"""Scans and sorts on CUDA."""

from __future__ import annotations

import numpy as np
import pytest
from rowwise import check, numbers

from opstep.kernels.pick import cuda_segments, cuda_sort
from opstep.kernels.reduce import cuda_scan


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_running_sums(dtype, exclusive, reverse):
    for shape, axis in (((3, 37), 1), ((2, 300), 1), ((3, 37, 5), 1), ((70, 3), 0)):
        check("cumsum", numbers(dtype, *shape), axis=axis, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_row_in_parts(reverse, monkeypatch):
    monkeypatch.setattr(cuda_scan, "LEAST", 64)
    check("cumsum", numbers("f64", 1, 700), axis=1, reverse=reverse)


def test_running_products():
    check("cumprod", numbers("f32", 3, 10), axis=1)
    check("cumprod", numbers("i64", 3, 10), axis=0)


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(cuda_sort, "CHUNK", 64)
    for made in (cuda_sort.network, cuda_sort.sort_chunks):
        made.cache_clear()
    yield
    for made in (cuda_sort.network, cuda_sort.sort_chunks):
        made.cache_clear()


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i64", "i8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_order(dtype, descending):
    x = numbers(dtype, 2, 9)
    if dtype in ("f64", "f32", "bf16"):
        x[0, 2], x[1, 1], x[0, 8], x[1, 3], x[1, 5] = np.nan, np.inf, -np.inf, -0.0, 0.0
    check("sort", x, descending=descending)
    check("argsort", x, descending=descending, axis=0)
    check("top_k", x, k=3, largest=descending)


def test_equal_elements_keep_their_order():
    check("sort", np.random.default_rng(0).integers(0, 4, (1, 150)))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("n", [65, 200])
def test_chunks_are_merged(n):
    x = np.random.default_rng(0).integers(0, 20, (n, 2)).astype(np.float32)
    check("sort", x, axis=0, descending=True)
    check("top_k", np.ascontiguousarray(x.T), k=n // 2)


# --- what goes to one place, in order -------------------------------------------------------------


@pytest.fixture
def always_sorted(short_chunks, monkeypatch):
    monkeypatch.setattr(cuda_segments, "CHUNK", 64)
    monkeypatch.setattr(cuda_segments, "LONG", 4)
    monkeypatch.setattr(cuda_segments, "MANY", 4)
    monkeypatch.setattr(cuda_segments, "order_chunk", cuda_sort.network(64))


@pytest.mark.usefixtures("always_sorted")
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_scatter(dtype):
    x, source = numbers(dtype, 5, 3), numbers(dtype, 30, 3, seed=1)
    index = np.random.default_rng(0).integers(-6, 6, (30, 3))
    check("scatter", x, index, source, axis=0)
    check("scatter_add", x, index, source, axis=0)
    across = [np.ascontiguousarray(a.T) for a in (x, index, source)]
    check("scatter_reduce", *across, axis=1, reduction="max")


@pytest.mark.usefixtures("always_sorted")
def test_gradients_of_picked_elements():
    gy, index = numbers("f32", 30, 3), np.random.default_rng(0).integers(-6, 6, (30, 3))
    check("gather_elements_grad", gy, index, shape=(5, 4), axis=0)
    check("gather_grad", numbers("f32", 70, 5), index.reshape(-1)[:70], size=8)
    check("gather_grad", numbers("f32", 70, 5), index.reshape(-1)[:70], size=8, ignored=1)
