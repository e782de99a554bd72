"""Statistics by NumPy have the bits of those by compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.device.cpu.test_statistics import FLOATS, SIZES, UNIT, numbers, spoiled

from opstep.runtime.device.cpu.device import CpuDevice, statistics_words
from opstep.runtime.device.cpu.host_statistics import MOST, Rent
from opstep.runtime.device.cpu.host_statistics import statistics_words as by_host
from opstep.runtime.device.cpu.lowering import Prepared
from opstep.runtime.ir.types import DTYPES, TensorType, dtype_of
from opstep.runtime.statistics import step_for


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels, without which `statistics_words` would be NumPy's, too."""
    for dtype in DTYPES.values():
        for filled in (False, True):
            launches, _ = CpuDevice().prepare(*step_for(TensorType(dtype, (1,)), filled))
            assert all(isinstance(p, Prepared) and p.entry for p in launches)


def same(array: np.ndarray, filled: bool) -> bool:
    with np.errstate(all="ignore"):
        found = by_host(array, filled)
    return found is None or (found == statistics_words(array, filled)).all()


@pytest.mark.parametrize("size", [*SIZES, UNIT + 1, 2 * UNIT + 17])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits(dtype, size):
    array = numbers(dtype, size)
    assert by_host(array, True) is not None
    assert same(array, False) and same(array, True)


@pytest.mark.parametrize("size", [1, 10, 3 * 2048 + 5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_bits_of_special_values(dtype, size):
    array = spoiled(numbers(dtype, size))
    assert same(array, False) and same(array, True)
    assert dtype == "f64" or by_host(array, True) is not None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.binary(max_size=4096))
def test_the_same_bits_of_any_bits(dtype, raw):
    kind = DTYPES[dtype].numpy
    array = np.frombuffer(raw[: len(raw) - len(raw) % kind.itemsize], np.uint8)
    array = (array & 1 if dtype == "bool" else array).view(kind)
    assert dtype_of(array.dtype).name == dtype and same(array, True)


def test_what_only_kernels_can_tell():
    assert by_host(np.array([1e300, 1.0]), False) is None
    assert by_host(np.array([1e-300, 1.0]), False) is None
    assert by_host(np.zeros(MOST + 1, np.float32), False) is None


def test_a_kernel_is_asked_for_when_it_would_have_been_cheaper(monkeypatch):
    """A few small tensors need no compiler; a large one, or many, do."""
    asked = []
    monkeypatch.setattr(CpuDevice, "uncompiled", lambda self, launches: 1)
    monkeypatch.setattr(CpuDevice, "compile_ahead", lambda self, launches: asked.append(launches))
    monkeypatch.setattr(Rent, "paid", 0)
    array = np.ones(1000, np.float32)
    first = statistics_words(array)
    assert not asked
    for _ in range(5000):
        assert (statistics_words(array) == first).all()
        if asked:
            break
    assert asked
    monkeypatch.setattr(Rent, "paid", 0)
    asked.clear()
    for _ in range(4):
        statistics_words(np.ones(MOST, np.float32))
    assert asked
