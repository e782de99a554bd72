"""The CUDA statistics kernels, thread by thread, against those of the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opstep.runtime.device.cpu.device import statistics_of
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.recording.gathering import (
    TOGETHER,
    accumulate_several,
    left_by,
    merge_several,
    step_of,
)
from opstep.runtime.device.cuda.recording.statistics import ALONE, STEP, blocks_for
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import DTYPES, TensorType, dtype_of
from opstep.runtime.statistics import ENABLED, RECORD, WORDS, Statistics, decode, step_for

FLOATS = ("f64", "f32", "f16", "bf16")


def record_of(array: np.ndarray, filled: bool = False, enabled: int = 1) -> np.ndarray:
    """The words that the kernels write; -7 where they do not."""
    step, types = step_for(TensorType(dtype_of(array.dtype), array.shape), filled)
    launches, size = Lowering(step, types).prepared()
    record = np.full(WORDS, -7, np.int64)
    memory = [array.reshape(-1), np.array([enabled], np.int64), record]
    workspace = np.full(size + 8, 0xFF, np.uint8)
    for launch in launches:
        assert isinstance(launch, Prepared)
        simulator.run(launch, [a.view(np.uint8) for a in memory], workspace)
    return record


def check(array: np.ndarray, filled: bool = False) -> Statistics:
    """Holds them against the CPU's: counts and extremes exactly."""
    found = decode(record_of(array, filled), dtype_of(array.dtype))
    wanted = statistics_of(array, filled)
    rounded = ("mean", "std", "l2")
    for name in Statistics.__slots__:
        if name not in rounded:
            assert getattr(found, name) == getattr(wanted, name), name
    for name in rounded:
        if wanted.absmax is not None:
            near = pytest.approx(getattr(wanted, name), rel=1e-12, abs=1e-14 * wanted.absmax)
            assert getattr(found, name) == near, name
    return found


def numbers(dtype: str, size: int) -> np.ndarray:
    """Of any sign and many sizes; zeros among them."""
    rng = np.random.default_rng(size)
    if dtype not in FLOATS:
        low, high = {"bool": (0, 2), "u8": (0, 200)}.get(dtype, (-100, 100))
        return rng.integers(low, high, size).astype(DTYPES[dtype].numpy)
    made = rng.standard_normal(size) * np.exp2(rng.integers(-60, 12, size))
    made[rng.random(size) < 0.1] = 0
    return made.astype(DTYPES[dtype].numpy)


def spoiled(array: np.ndarray) -> np.ndarray:
    """A copy in which one of fifty elements is NaN, infinite, subnormal, -0.0 or never written."""
    rng, found = np.random.default_rng(0), array.copy()
    bits = payload(dtype_of(array.dtype)).dtype
    least = np.array([1], bits).view(array.dtype)[0]
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, least, -least, 0]).astype(array.dtype)
    odd[-1:].view(bits)[...] = payload(dtype_of(array.dtype))
    places = rng.random(array.size) < 0.02
    found[places] = odd[rng.integers(0, odd.size, places.sum())]
    return found


@pytest.mark.parametrize("size", [0, 1, 300, STEP + 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_every_dtype(dtype, size):
    check(numbers(dtype, size))


@pytest.mark.parametrize("size", [10, STEP + 333])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("filled", [False, True])
def test_of_special_values(dtype, size, filled):
    check(spoiled(numbers(dtype, size)), filled)


@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_of_several_blocks(dtype):
    check(numbers(dtype, ALONE + 5))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i16"])
@pytest.mark.parametrize("sizes", [[5], [STEP + 3, 0, ALONE + 5, 9]])
def test_several_tensors_at_once_are_as_each_alone(dtype, sizes):
    arrays = [numbers(dtype, size) for size in sizes]
    filled = dtype == "bf16"
    if filled:
        arrays = [spoiled(a) for a in arrays]
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
    padded = [*types, *types[:1] * (TOGETHER - len(types))]
    left = left_by(sum(map(blocks_for, sizes)))
    taken = step_of(
        accumulate_several, [*padded, ENABLED], left, count=len(sizes), filled=filled
    )  # fmt: skip
    table, first = [], 0
    for place, size in enumerate(sizes):
        kind = filled + 2 * (dtype in FLOATS)
        table += [first, blocks_for(size), size, kind, len(sizes) - 1 - place]
        first += blocks_for(size)
    merged = step_of(merge_several, [ENABLED, *left], [RECORD], table=tuple(table))
    memory = [np.full(math.prod(t.shape), 77, t.dtype.numpy) for t in left]
    records = np.full(WORDS * len(sizes), -7, np.int64)
    enabled = np.array([1], np.int64)
    given = [*arrays, *arrays[:1] * (TOGETHER - len(arrays)), enabled, *memory]
    for (step, all_types), operands in (
        (taken, given), (merged, [enabled, *memory, records]),
    ):  # fmt: skip
        (launch,), _ = Lowering(step, all_types).prepared()
        assert isinstance(launch, Prepared)
        simulator.run(launch, [a.view(np.uint8) for a in operands], np.zeros(8, np.uint8))
    for array, record in zip(arrays, records.reshape(-1, WORDS)[::-1], strict=True):
        assert (record == record_of(array, filled)).all()


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8"])
def test_extremes_of_integers_are_exact(dtype):
    info = np.iinfo(str(DTYPES[dtype].numpy))
    found = check(np.array([info.max - 1, info.max, info.min + 1, info.min, 0], info.dtype))
    assert (found.min, found.max) == (info.min, info.max)


def test_powers_of_two_and_their_neighbours_fall_into_their_bins():
    powers = np.ldexp(1.0, np.arange(-45, 30))
    for dtype in ("f64", "f32"):
        exact = powers.astype(DTYPES[dtype].numpy)
        below = np.nextafter(exact, exact.dtype.type(0))
        check(np.concatenate([exact, below, np.negative(exact), np.negative(below)]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_of_nothing_finite(value):
    assert check(np.full(STEP + 3, value, np.float32)).mean is None


def test_the_first_element_need_not_be_a_number():
    array = (1e6 + np.random.default_rng(0).standard_normal(STEP + 5)).astype(np.float32)
    array[: STEP // 2] = np.nan
    assert check(array).std == pytest.approx(1.0, rel=0.1)


def test_the_mean_does_not_drown_what_is_around_it():
    check(1e9 + np.random.default_rng(0).standard_normal(STEP + 5))


@pytest.mark.parametrize("scale", [1e200, -1e-200, 1.2e308, 1e-310, 5e-324, 2.0**481, 2.0**-401])
def test_squares_that_f64_cannot_hold(scale):
    array = np.random.default_rng(1).uniform(0.5, 1.4, 999) * scale
    array[::5] *= -1
    array[1] = np.nan
    check(array)


def test_a_norm_that_f64_cannot_hold():
    assert check(np.full(STEP + 9, 1.7e308)).l2 == math.inf


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_nothing_is_written_where_it_is_not_wanted(dtype):
    array = np.full(10, 1e30, DTYPES[dtype].numpy)
    assert (record_of(array, enabled=0) == -7).all()
