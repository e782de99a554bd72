"""Elements as CUDA kernels see them, in the simulator: rounding, promotion, vectors, bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opstep.runtime.device.cuda.compiling.compiler import Kernel
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    load4,
    shuffle_down,
    shuffle_xor,
    store4,
)
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.types import DTYPES

HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def scaled(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] * 1.001


def copied(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i]


def too_far(x, y, n):
    i = cuda.grid(1)
    y[i] = x[i + n]


def quads(x, y, n):
    i = 4 * cuda.grid(1)
    if i < n:
        store4(y, i, load4(x, i))


def crooked(x, y, n):
    load4(x, 2)


def exchanged(x, y, n):
    i = cuda.grid(1)
    y[i] = shuffle_xor(x[i], 1) + 100.0 * shuffle_down(x[i], 2)


def run(function, x: np.ndarray, y: np.ndarray, stored: str, seen: str, n: int, threads: int = 32):
    kinds = (f"*{stored}" + (f":{seen}" if stored != seen else ""), f"*{name_of(y)}", "i")
    if name_of(y) != seen:
        kinds = (kinds[0], f"*{name_of(y)}:{seen}", "i")
    kernel = Kernel(function, kinds, DTYPES[seen])
    slots = ((0, 0), (1, 1))
    prepared = Prepared(kernel, (0, 0, n), slots, (), (), (1, 1, 1), (threads, 1, 1), 0)
    simulator.run(prepared, [x.view(np.uint8), y.view(np.uint8)], np.zeros(8, np.uint8))
    return y


def name_of(array: np.ndarray) -> str:
    return next(n for n, t in DTYPES.items() if np.dtype(t.numpy) == array.dtype)


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_rounded_once(name):
    x = np.linspace(-3, 3, 37).astype(HALVES[name])
    found = run(scaled, x, np.zeros_like(x), name, "f32", 37, 64)
    wanted = (x.astype(np.float32) * np.float32(1.001)).astype(HALVES[name])
    assert found.tobytes() == wanted.tobytes()


def test_promoted_elements_are_widened_as_they_are_read():
    x = np.arange(-8, 9, dtype=np.int32)
    found = run(scaled, x, np.zeros(17, np.float32), "i32", "f32", 17)
    np.testing.assert_array_equal(found, x.astype(np.float32) * np.float32(1.001))


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i32", "i16", "i8", "u8"])
def test_plain_elements_keep_their_bits(dtype):
    x = np.arange(21).astype(DTYPES[dtype].numpy)
    assert run(copied, x, np.zeros_like(x), dtype, dtype, 21).tobytes() == x.tobytes()


def test_vectors():
    x = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(run(quads, x, np.zeros_like(x), "f32", "f32", 12), x)


def test_an_index_beyond_the_memory_is_an_error():
    x = np.zeros(32, np.float32)
    with pytest.raises(IndexError, match="of memory of 32 elements"):
        run(too_far, x, np.zeros_like(x), "f32", "f32", 1)


def test_a_vector_that_is_not_aligned_is_an_error():
    x = np.zeros(32, np.float32)
    with pytest.raises(IndexError, match="a vector of 4 at element 2"):
        run(crooked, x, np.zeros_like(x), "f32", "f32", 1)


def test_shuffles():
    x = np.arange(32, dtype=np.float32)
    found = run(exchanged, x, np.zeros_like(x), "f32", "f32", 32)
    lanes = np.arange(32)
    down = np.where(lanes + 2 < 32, lanes + 2, lanes)
    np.testing.assert_array_equal(found, (lanes ^ 1) + 100.0 * down)
