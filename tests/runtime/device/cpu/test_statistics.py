"""Statistics of tensors on the CPU against exact sums and NumPy's view of the bits."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opstep.runtime.device.cpu.device import CpuDevice, statistics_of
from opstep.runtime.device.cpu.statistics import BLOCK, UNIT
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import DTYPES, TensorType, dtype_of
from opstep.runtime.statistics import BINS, LOWEST, WORDS, Statistics, step_for, together

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8", "bool")
# around the limits of what is taken at once, and of what a lane takes
SIZES = (0, 1, 2, 7, 8, 9, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)
LARGE = (UNIT - 1, UNIT, UNIT + 1, 3 * UNIT + 17)


def limits(dtype: str):
    """NumPy's or ml_dtypes' facts about a float type."""
    kind: Any = DTYPES[dtype].numpy
    return ml_dtypes.finfo(kind) if dtype == "bf16" else np.finfo(kind)


def exponents(finite: np.ndarray) -> np.ndarray:
    """floor(log2(abs(x))) of what is not 0, exactly."""
    if finite.dtype.kind == "f":
        return np.frexp(finite[finite != 0])[1] - 1
    return np.array([abs(v).bit_length() - 1 for v in finite.tolist() if v], np.int64)


def moments(finite: np.ndarray) -> tuple[float, ...]:
    """(mean, std, l2), from sums that round once, of numbers scaled to be near 1."""
    wide = finite.astype(np.float64)
    exponent = int(np.frexp(np.abs(wide).max())[1])
    near = np.ldexp(np.ldexp(wide, -exponent // 2), -exponent - -exponent // 2)
    mean = math.fsum(near) / near.size
    std = math.sqrt(math.fsum((near - mean) ** 2) / near.size)
    l2 = math.sqrt(math.fsum(near * near))
    with np.errstate(over="ignore"):
        return tuple(np.ldexp([mean, std, l2], exponent).tolist())


def check(array: np.ndarray, found: Statistics, filled: bool = False) -> None:
    """Holds statistics against the array that they are of."""
    dtype = dtype_of(array.dtype)
    flat = array.reshape(-1)
    wide = flat.astype(np.float64) if dtype.is_float else flat.astype(np.int64)
    finite = wide[np.isfinite(wide)]
    assert found.count == flat.size
    assert found.finite == finite.size
    assert found.nan == np.isnan(wide).sum()
    assert (found.posinf, found.neginf) == ((wide == np.inf).sum(), (wide == -np.inf).sum())
    assert found.zero == (finite == 0).sum()
    subnormal, unwritten = 0, None
    if dtype.is_float:
        normal = float(limits(dtype.name).smallest_normal)
        subnormal = ((finite != 0) & (np.abs(finite) < normal)).sum()
        if filled:
            unwritten = (flat.view(f"u{dtype.itemsize}") == payload(dtype)).sum()
    assert (found.subnormal, found.unwritten) == (subnormal, unwritten)
    bins = np.clip(exponents(finite) - LOWEST, 0, BINS - 1)
    assert found.histogram == tuple(np.bincount(bins, minlength=BINS))
    odd = found.nan + found.posinf + found.neginf
    assert found.count == odd + found.zero + sum(found.histogram)
    check_numbers(finite, found)


def check_numbers(finite: np.ndarray, found: Statistics) -> None:
    told = (found.min, found.max, found.mean, found.std, found.l2, found.absmax)
    if not finite.size:
        assert told == (None,) * 6
        return
    low, high = finite.min().item(), finite.max().item()
    absmax = max(abs(low), abs(high))
    assert (found.min, found.max, found.absmax) == (low, high, absmax)
    assert type(found.min) is type(low)
    mean, std, l2 = moments(finite)
    assert found.mean == pytest.approx(mean, rel=1e-13, abs=1e-14 * absmax)
    assert found.std == pytest.approx(std, rel=1e-11, abs=1e-14 * absmax)
    assert found.l2 == pytest.approx(l2, rel=1e-13)


def numbers(dtype: str, size: int, seed: int = 0) -> np.ndarray:
    """Of any sign and many sizes; zeros among them."""
    rng = np.random.default_rng(seed)
    if dtype not in FLOATS:
        low, high = (0, 2) if dtype == "bool" else (-100, 100)
        kind = DTYPES[dtype].numpy
        return rng.integers(low if dtype != "u8" else 0, high, size).astype(kind)
    made = rng.standard_normal(size) * np.exp2(rng.integers(-20, 12, size))
    made[rng.random(size) < 0.1] = 0
    return made.astype(DTYPES[dtype].numpy)


def spoiled(array: np.ndarray, seed: int = 0) -> np.ndarray:
    """A copy in which one of ten elements is NaN, infinite, subnormal, -0.0 or never written."""
    dtype = dtype_of(array.dtype)
    rng, found = np.random.default_rng(seed), array.copy()
    least = float(limits(dtype.name).smallest_subnormal)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, least, -3 * least, 0]).astype(
        array.dtype
    )
    odd[-1:].view(payload(dtype).dtype)[...] = payload(dtype)
    places = rng.random(array.size) < 0.1
    found[places] = odd[rng.integers(0, odd.size, places.sum())]
    return found


# --- against the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_every_dtype_and_size(dtype, size):
    array = numbers(dtype, size)
    check(array, statistics_of(array))


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64"])
def test_of_more_than_one_unit(dtype, size):
    array = numbers(dtype, size)
    check(array, statistics_of(array))


@pytest.mark.parametrize("size", [1, 10, BLOCK + 1, 2 * UNIT + 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("filled", [False, True])
def test_of_special_values(dtype, size, filled):
    array = spoiled(numbers(dtype, size))
    check(array, statistics_of(array, filled=filled), filled)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.binary(max_size=4096), st.integers(1, 5))
def test_of_any_bits(dtype, raw, lanes):
    kind = DTYPES[dtype].numpy
    array = np.frombuffer(raw[: len(raw) - len(raw) % kind.itemsize], np.uint8)
    array = (array & 1 if dtype == "bool" else array).view(kind)
    check(array, statistics_of(array, filled=True, lanes=lanes), filled=True)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.integers(0, 3 * BLOCK),
    st.floats(-(2.0**10), 2.0**10),
    st.integers(-12, 4),
)
def test_of_numbers_far_from_zero(dtype, size, middle, spread):
    array = middle + np.random.default_rng(size).standard_normal(size) * 2.0**spread
    array = array.astype(DTYPES[dtype].numpy)
    check(array, statistics_of(array))


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_one_value_throughout(dtype):
    array = np.full(BLOCK + 3, 1, DTYPES[dtype].numpy)
    found = statistics_of(array)
    assert (found.min, found.max, found.mean, found.std) == (1, 1, 1.0, 0.0)
    check(array, found)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_of_nothing_finite(dtype, value):
    array = np.full(BLOCK + 3, value, DTYPES[dtype].numpy)
    check(array, statistics_of(array))


@pytest.mark.parametrize("dtype", FLOATS)
def test_of_every_exponent(dtype):
    with np.errstate(over="ignore"):
        some = np.ldexp(1.0, np.arange(-140, 120)).astype(DTYPES[dtype].numpy)
    array = np.resize(some, 5 * BLOCK + 3)
    array[::7] = 0
    found = statistics_of(array)
    check(array, found)
    if dtype in ("f32", "bf16"):
        assert all(found.histogram)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_have_signs_and_order(dtype):
    array = np.array([0.0, -0.0] * 9).astype(DTYPES[dtype].numpy)
    found = statistics_of(array)
    assert found.zero == 18
    assert (str(found.min), str(found.max)) == ("-0.0", "0.0")


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_extremes_of_integers_are_exact(dtype):
    info: Any = np.iinfo(str(DTYPES[dtype].numpy))
    array = np.array([info.max - 1, info.max, info.min + 1, info.min, 0], info.dtype)
    found = statistics_of(array)
    assert (found.min, found.max) == (info.min, info.max)
    assert found.absmax == max(info.max, -info.min)
    check(array, found)


def test_any_nan_is_a_nan():
    quiet, loud = 0x7FC00000, 0x7F800001
    bits = np.array([quiet, loud, quiet | 1 << 31, 0x7FFFFFFF, 0xFFFFFFFF, 0x3F800000], np.uint32)
    found = statistics_of(bits.view(np.float32), filled=True)
    assert (found.nan, found.unwritten, found.finite) == (5, 0, 1)


# --- sums -----------------------------------------------------------------------------------------


def test_the_mean_does_not_drown_what_is_around_it():
    noise = np.random.default_rng(0).standard_normal(3 * UNIT)
    array = 1e9 + noise
    check(array, statistics_of(array))
    assert statistics_of(array).std == pytest.approx(noise.std(), rel=1e-6)


def test_few_large_among_many_small():
    array = np.full(2 * UNIT, 1e-3)
    array[[5, UNIT + 7]] = 1e12, -1e12
    check(array, statistics_of(array))


@pytest.mark.parametrize("size", [3, 2 * BLOCK + 1, UNIT + 5])
@pytest.mark.parametrize("scale", [1e200, -1e-200, 1.2e308, 1e-310, 5e-324, 2.0**481, 2.0**-401])
def test_squares_that_f64_cannot_hold(size, scale):
    array = np.random.default_rng(1).uniform(0.5, 1.4, size) * scale
    array[::5] *= -1
    array[1] = np.nan
    check(array, statistics_of(array))


def test_a_norm_that_f64_cannot_hold():
    found = statistics_of(np.full(100, 1.7e308))
    assert found.l2 == math.inf
    assert (found.mean, found.std) == (pytest.approx(1.7e308), 0.0)


# --- how it runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32"])
def test_same_bits_on_any_lanes(dtype):
    array = numbers(dtype, 7 * UNIT + 11)
    if dtype in FLOATS:
        array = spoiled(array)
    found = [statistics_of(array, lanes=lanes) for lanes in (1, 2, 5)]
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_of_views_and_scalars():
    array = numbers("f32", 30).reshape(5, 6)
    check(array[::2, ::-1], statistics_of(array[::2, ::-1]))
    check(np.array(2.5), statistics_of(np.array(2.5)))
    check(np.zeros((3, 0, 2), np.float32), statistics_of(np.zeros((3, 0, 2), np.float32)))


@pytest.mark.parametrize("size", [0, 10, UNIT + 1])
def test_nothing_is_written_where_it_is_not_wanted(size):
    device = CpuDevice(1)
    array = np.full(size, 1e300)
    step, types = step_for(TensorType(dtype_of(array.dtype), array.shape), False)
    launches, workspace = device.prepare(step, types)
    enabled, record = np.zeros((), np.int64), np.full(WORDS, -7, np.int64)
    scratch = device.alloc(workspace)
    addresses = [a.ctypes.data for a in (array, enabled, record)]
    take = device.capture(device.bind(launches, addresses, scratch.address))
    take()
    assert (record == -7).all()
    enabled[...] = 1
    take()
    assert record[0] == size


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32", "bool"])
def test_statistics_of_parts_are_those_of_the_whole(dtype):
    """Also where squares of f64 would overflow, and where a part has nothing finite."""
    rng, kind = np.random.default_rng(4), DTYPES[dtype]
    whole = rng.normal(3, 100, (6, 50)) * (1e300 if dtype == "f64" else 1)
    whole = (whole if kind.is_float else whole > 0).astype(kind.numpy)
    if kind.is_float:
        whole[1, 3], whole[4, 4], whole[2:4] = np.nan, -np.inf, np.inf
    expected = statistics_of(whole)
    found = together([statistics_of(part) for part in np.split(whole, 3)])
    for name in ("mean", "std", "l2"):
        assert math.isclose(getattr(found, name), getattr(expected, name), rel_tol=1e-12)
    exact = [n for n in Statistics.__slots__ if n not in ("mean", "std", "l2")]
    assert [getattr(found, n) for n in exact] == [getattr(expected, n) for n in exact]
    none = together([statistics_of(whole[:0]), statistics_of(whole[:0])])
    assert (none.count, none.mean, none.min) == (0, None, None)
