"""How tensors are written in one line, and their elements a page at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opstep.runtime.device.cpu.device import statistics_of
from opstep.runtime.expressions.text import PAGE, Rows, tensor_text, value_text
from opstep.runtime.ir.types import TensorType, dtype_of


class Handle:
    """A tensor on a device that counts what is read of it."""

    def __init__(self, array, filled=False):
        self._array = array
        self.type = TensorType(dtype_of(array.dtype), array.shape)
        self.filled = filled
        self.read = 0

    def array(self):
        self.read += self._array.size
        return self._array

    def part(self, index):
        found = self._array[index]
        self.read += found.size
        return found

    def statistics(self):
        return statistics_of(self._array, self.filled)


def ramp(*shape, dtype="f4"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize(
    "value, text",
    [
        (np.float32(0.1), "0.1"),
        (np.float16(0.1), "0.1"),
        (ml_dtypes.bfloat16(0.5), "0.5"),
        (np.float64(1 / 3), "0.3333333333333333"),
        (np.float32(np.nan), "nan"),
        (-np.inf, "-inf"),
        (np.array(-0.0, "f4"), "-0.0"),
        (np.int8(-3), "-3"),
        (np.bool_(True), "true"),
        (False, "false"),
        (3, "3"),
        ("f32", "f32"),
        ((2, 3), "[2, 3]"),
        (np.array([1, 2.5, np.inf], "f4"), "[1.0, 2.5, inf]"),
        (np.array([[1, 2], [3, 4]], "i4"), "[[1, 2], [3, 4]]"),
        (np.array([True, False]), "[true, false]"),
        (ramp(3, 4, dtype="i4"), "i32[3, 4]  mean 5.5  std 3.452  min 0  max 11"),
        (np.full((2, 8), 1.5, "f2"), "f16[2, 8]  all 1.5"),
        (np.full(9, np.nan, "f4"), "f32[9]  all NaN"),
        (np.zeros((0, 3), "f4"), "f32[0, 3]  no elements"),
        (ramp(10) > 6, "bool[10]  3 true"),
        (np.full(1000, 10**6), "i64[1000]  all 1,000,000"),
    ],
)
def test_values(value, text):
    assert value_text(value) == text


def test_what_is_odd_is_counted():
    array = ramp(2000)
    array[:3], array[5], array[6:8] = np.nan, np.inf, -np.inf
    text = value_text(array)
    assert text.startswith("f32[2000]  3 NaN, 1 inf, 2 -inf of 2,000, mean of the rest ")
    assert text.endswith("min 3  max 1999")
    assert value_text(np.array([1, np.nan] * 8, "f4")) == "f32[16]  8 NaN of 16, the rest 1"


def test_unwritten_elements_are_told():
    from opstep.runtime.device.payload import payload

    array = np.zeros(20, "f4")
    array.view("u4")[4:] = payload(dtype_of(array.dtype)).view("u4")
    assert value_text(Handle(array, filled=True)).endswith("16 NaN of 20, the rest 0  16 unwritten")
    few = Handle(array[3:6].copy(), filled=True)
    assert value_text(few) == "[0.0, nan, nan]  2 unwritten"


def test_a_large_tensor_is_not_read():
    handle = Handle(ramp(8, 128))
    assert value_text(handle) == "f32[8, 128]  mean 511.5  std 295.6  min 0  max 1023"
    assert handle.read == 0


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u1", "?", ml_dtypes.bfloat16])
def test_a_scalar_is_told_by_its_statistics_alone(dtype):
    array = np.array(1, dtype)
    told = tensor_text(TensorType(dtype_of(array.dtype), ()), statistics_of(array))
    assert told == value_text(array[()])


def test_text_of_control_characters():
    text = value_text("a\x1b[2J\nb" + "x" * 5000)
    assert text.isprintable() and len(text) < 2000


def test_rows():
    handle = Handle(ramp(250, 3))
    rows = Rows(handle)
    assert rows.count == 250
    assert rows.ranges() == [(0, 99), (100, 199), (200, 249)]
    page = rows.page(100, 2)
    assert [(r.name, r.text) for r in page] == [
        ("[100]", "[300.0, 301.0, 302.0]"), ("[101]", "[303.0, 304.0, 305.0]"),
    ]  # fmt: skip
    assert handle.read == 6
    assert [r.index for r in rows.page(249, PAGE)] == [249]
    assert rows.page(250, 1) == rows.page(0, 0) == []
    assert [r.text for r in Rows(ramp(3, dtype="i4")).page()] == ["0", "1", "2"]
    assert Rows(np.zeros(())).count == 0
