"""Quantiles, counts by sign and figures of channels on CUDA, thread by thread: as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.kernels.statistics import details
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.types import DTYPES

FLOATS = ("f64", "f32", "f16", "bf16")


def words_of(op, array: np.ndarray, attrs: dict, enabled: int = 1) -> np.ndarray:
    """What the kernels write; -7 where they do not."""
    on = np.array(enabled, np.int64)
    step, types, (result,) = one_step(op, [array, on], attrs)
    launches, size = Lowering(step, (*types, result)).prepared()
    words = np.full(result.shape, -7, np.int64)
    workspace = np.full(size + 8, 0xFF, np.uint8)
    memory = [array.reshape(-1), on.reshape(-1), words.reshape(-1)]
    for launch in launches:
        assert isinstance(launch, Prepared)
        simulator.run(launch, [a.view(np.uint8) for a in memory], workspace)
    return words


def check(op, array: np.ndarray, **attrs: int) -> None:
    (wanted,) = execute(op, [array, np.array(1)], attrs)
    np.testing.assert_array_equal(words_of(op, array, attrs), wanted)


def numbers(dtype: str, size: int) -> np.ndarray:
    """Of any sign and many sizes; zeros, NaNs and infinities among them."""
    rng = np.random.default_rng(size)
    if dtype not in FLOATS:
        low, high = {"bool": (0, 2), "u8": (0, 256)}.get(dtype, (-100, 100))
        return rng.integers(low, high, size).astype(DTYPES[dtype].numpy)
    made = rng.standard_normal(size) * np.exp2(rng.integers(-60, 12, size))
    odd = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf]
    places = rng.random(size) < 0.2
    made[places] = np.array(odd)[rng.integers(0, len(odd), places.sum())]
    return made.astype(DTYPES[dtype].numpy)


# Beyond 2048 keys parts are merged, in all dtypes alike.
SIZES = [(dtype, size) for dtype in DTYPES for size in (0, 1, 2, 300)]
SIZES += [(dtype, size) for dtype in ("f32", "f16", "i64") for size in (2100, 5000)]


@pytest.mark.parametrize("dtype, size", SIZES)
def test_quantiles(dtype, size):
    check(details.quantiles, numbers(dtype, size))


@pytest.mark.parametrize("side", [1, -1])
def test_quantiles_of_one_sign(side):
    array = np.abs(np.random.default_rng(0).standard_normal(333, np.float32)) + 1
    check(details.quantiles, side * array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_by_sign(dtype):
    check(details.signed, numbers(dtype, 9000))


@pytest.mark.parametrize(
    "shape, axis", [((3, 4, 50), 1), ((40, 9), 1), ((9001, 2), 1), ((0, 3), 1)]
)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
def test_channels(dtype, shape, axis):
    check(details.channels, numbers(dtype, int(np.prod(shape))).reshape(shape), axis=axis)


@pytest.mark.parametrize("op", [details.quantiles, details.signed, details.channels])
def test_nothing_is_written_where_it_is_not_wanted(op):
    attrs = {"axis": 1} if op is details.channels else {}
    assert (words_of(op, np.ones((50, 60), np.float32), attrs, enabled=0) == -7).all()
