"""Scans and sorts on CUDA."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rowwise import check, close, execute, numbers

from opstep.kernels.pick import cuda_select, cuda_sort
from opstep.kernels.reduce import cuda_scan
from opstep.runtime.device.cpu.device import execute as cpu_execute
from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES


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


# (shape, axis) of a vector an element, of several, of several rounds, and of sequences side by side
RUNNING = (((3, 37), 1), ((2, 40), 1), ((2, 9000), 1), ((3, 12, 5), 1), ((70, 3), 0))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("least", [64, cuda_scan.LEAST])
def test_gradients_of_running_products(least, exclusive, reverse, monkeypatch):
    monkeypatch.setattr(cuda_scan, "LEAST", least)
    for shape, axis in RUNNING:
        shape = tuple(min(n, 2200) for n in shape)
        x = 1 + numbers("f64", *shape) / 20
        x[(slice(None),) * axis + (slice(5, None, 900),)] = 0
        gy = numbers("f64", *shape, seed=1)
        for dtype in ("f64", "f32", "bf16") if max(shape) < 100 else ("f64", "f32"):
            given = [a.astype(DTYPES[dtype].numpy) for a in (x, gy)]
            check_products(given, axis, exclusive, reverse)


def check_products(given: list, axis: int, exclusive: bool, reverse: bool) -> None:
    """Against the products of all elements but one where rows are short, else against the CPU."""
    attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    if given[0].shape[axis] < 100:
        check("cumprod_grad", *given, **attrs)
        return
    (own,), (true,) = (run(OPS["cumprod_grad"], given, attrs) for run in (execute, cpu_execute))
    close(own, true.astype(np.float64))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("least", [64, cuda_scan.LEAST])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i64", "i8"])
def test_running_extremes(dtype, least, name, monkeypatch):
    monkeypatch.setattr(cuda_scan, "LEAST", least)
    for shape, axis in RUNNING:
        check(name, numbers(dtype, *shape), axis=axis)
        x = with_ties(dtype, *shape)
        if dtype in FLOATS:
            x[np.isnan(x)] = 7
            x[0, shape[1] // 2] = np.nan
        with np.errstate(invalid="ignore"):
            check(name, x, axis=axis)


@pytest.mark.parametrize("least", [64, cuda_scan.LEAST])
def test_running_logarithms(least, monkeypatch):
    monkeypatch.setattr(cuda_scan, "LEAST", least)
    for shape, axis in RUNNING:
        for dtype in ("f64", "f32", "bf16"):
            x = numbers(dtype, *shape)
            check("logcumsumexp", x, axis=axis)
            x[0] *= 200
            x[1, 0] = -np.inf
            x[1, 1:3] = np.inf
            x[-1, 2] = np.nan
            check("logcumsumexp", x, axis=axis)


FLOATS = ("f64", "f32", "f16", "bf16")


def with_ties(dtype: str, *shape: int) -> np.ndarray:
    """Every number twice or more; of floats, NaNs, infinities and both zeros among them."""
    x = np.random.default_rng(0).integers(0, 40, shape).astype(DTYPES[dtype].numpy)
    if dtype in FLOATS:
        for k, special in enumerate((np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan)):
            x.reshape(-1)[k::13] = special
    return x


def check_sorts(x: np.ndarray, **attrs) -> None:
    """Orders as the oracle has them, and of what is sorted every bit."""
    axis = attrs.get("axis", -1)
    for descending in (False, True):
        values, places = check("sort", x, descending=descending, **attrs)
        picked = np.take_along_axis(x, places, axis)
        np.testing.assert_array_equal(values.view(np.uint8), picked.view(np.uint8))


@pytest.fixture
def by_digits(monkeypatch):
    """Rows of more than 16 elements are sorted by digits."""
    for itemsize in cuda_sort.SHORT:
        monkeypatch.setitem(cuda_sort.SHORT, itemsize, 16)


@pytest.fixture
def short_tiles(by_digits, monkeypatch):
    """A block sorts 64 elements, and a tile has one element a thread."""
    for itemsize in cuda_sort.CHUNK:
        monkeypatch.setitem(cuda_sort.CHUNK, itemsize, 64)
    monkeypatch.setattr(cuda_sort, "ITEMS", 1)
    monkeypatch.setattr(cuda_select, "ITEMS", 1)
    monkeypatch.setattr(cuda_select, "BLOCKS", 5)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i64", "i8", "u8", "bool"])
def test_order(dtype):
    x = with_ties(dtype, 2, 30)
    check_sorts(x)
    for descending in (False, True):
        check("argsort", x, descending=descending, axis=0)
        check("top_k", x, k=3, largest=descending)


@pytest.mark.parametrize("rows, n", [(1, 1), (19, 32), (3, 33), (5, 128), (2, 300)])
def test_several_short_rows_in_a_block(rows, n):
    check_sorts(with_ties("bf16", rows, n))
    check("sort", with_ties("f32", n, rows), axis=0, descending=True)
    check("top_k", with_ties("i8", rows, n), k=1)


@pytest.mark.usefixtures("by_digits")
@pytest.mark.parametrize("dtype, n", [("f64", 17), ("f32", 300), ("f16", 256), ("u8", 257)])
def test_rows_in_one_block(dtype, n):
    check_sorts(with_ties(dtype, 1, n))
    check("top_k", with_ties(dtype, n, 2), k=5, axis=0)


@pytest.mark.usefixtures("short_tiles")
@pytest.mark.parametrize("dtype, n, few", [("bf16", 300, 8), ("u8", 513, 2), ("i8", 512, 2)])
def test_rows_of_several_tiles(dtype, n, few, monkeypatch):
    monkeypatch.setattr(cuda_sort, "FEW", few)
    check_sorts(with_ties(dtype, n, 2), axis=0)
    check("argsort", with_ties(dtype, 1, n))
    check("top_k", with_ties(dtype, 1, n), k=n // 2)


@pytest.mark.usefixtures("short_tiles")
def test_long_rows_of_wide_keys():
    check("sort", with_ties("i64", 1, 257) - 20)
    check("sort", with_ties("f32", 1, 257), descending=True)


@pytest.mark.usefixtures("short_tiles")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "u8"])
def test_the_best_of_long_rows(dtype):
    check("top_k", with_ties(dtype, 1, 1100), k=33)
    check("top_k", with_ties(dtype, 600, 2), k=7, axis=0, largest=False)


@pytest.mark.usefixtures("short_tiles")
def test_the_best_of_equal_elements():
    x = np.zeros((1, 700), np.float16)
    x[0, ::3] = -0.0
    values, places = check("top_k", x, k=50)
    np.testing.assert_array_equal(places[0], np.arange(50))
    np.testing.assert_array_equal(np.signbit(values), np.signbit(x[:, :50]))
    check("top_k", np.full((1, 600), np.nan, np.float16), k=1, largest=False)


@pytest.mark.parametrize("dtype", ["i8", "f16", "f64"])
def test_tiles_fit_in_shared_memory(dtype):
    """That which a block gets without asking, whatever comes with the keys."""
    op, kind = OPS["scatter_add"], DTYPES[dtype].numpy
    index = np.zeros(70000, np.int64)
    arrays = [np.zeros(9, kind), index, np.zeros(70000, kind)]
    step, stored, results = one_step(op, arrays, complete(op, {}))
    launches, _ = Lowering(step, (*stored, *results)).prepared()
    kernels = {launch.kernel for launch in launches if isinstance(launch, Prepared)}
    assert "sort_tiles" in {kernel.function.__name__ for kernel in kernels}
    for kernel in kernels:
        ptx, _ = compiler.to_ptx(kernel, "sm_80")
        arrays_of_block = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx)
        assert sum(map(int, arrays_of_block)) <= 48 << 10


# --- what goes to one place, in order -------------------------------------------------------------
