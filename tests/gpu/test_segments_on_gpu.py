"""Elements that an index brings together, of sizes that take several levels: exact for integers,
near to NumPy's sums in f64 for floats, with the same bits in each run.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cuda.device import execute
from opstep.runtime.ir.op import OPS, complete

RANDOM = np.random.default_rng(0)
ENTRIES = 1_000_003


def run(name: str, arrays: list, **attrs) -> np.ndarray:
    """Twice, with the same bits."""
    op = OPS[name]
    (found,), (again,) = (execute(op, arrays, complete(op, attrs)) for _ in range(2))
    np.testing.assert_array_equal(found.view(np.uint8), again.view(np.uint8))
    return found


def numbers(dtype: str, *shape: int) -> np.ndarray:
    if dtype == "i64":
        return RANDOM.integers(-1000, 1000, shape)
    return RANDOM.standard_normal(shape).astype(np.float32)


def near(found: np.ndarray, true: np.ndarray) -> None:
    if found.dtype.kind == "i":
        np.testing.assert_array_equal(found, true)
    else:
        np.testing.assert_allclose(found, true, rtol=1e-5, atol=1e-5 * np.abs(true).max())


@pytest.mark.parametrize("places", [1, 7, 100_000, 3_000_000])
@pytest.mark.parametrize("dtype", ["i64", "f32"])
@pytest.mark.parametrize("columns", [1, 3])
def test_rows(dtype, places, columns):
    x, source = numbers(dtype, places, columns), numbers(dtype, ENTRIES, columns)
    index = RANDOM.integers(-places, places + 1, ENTRIES)  # some are out of range
    true = x.astype(np.float64 if dtype == "f32" else np.int64)
    inside = index < places
    np.add.at(true, index[inside], source[inside])
    near(run("index_put_add", [x, source, index]), true)
    last = x.copy()
    last[index[inside]] = source[inside]
    near(run("index_put", [x, source, index]), last)


@pytest.mark.parametrize("shape, axis", [((5000, 300), 0), ((300, 5000), 1), ((7, 4000, 5), 1)])
@pytest.mark.parametrize("dtype", ["i64", "f32"])
@pytest.mark.parametrize("places", [3, 900])
def test_elements(dtype, shape, axis, places):
    target = list(shape)
    target[axis] = places
    x, source = numbers(dtype, *target), numbers(dtype, *shape)
    index = RANDOM.integers(0, places, shape)
    true = x.astype(np.float64 if dtype == "f32" else np.int64)
    where = [*np.indices(shape)]
    where[axis] = index
    np.add.at(true, tuple(where), source)
    near(run("scatter_add", [x, index, source], axis=axis), true)
    largest = x.copy()
    np.maximum.at(largest, tuple(where), source)
    near(run("scatter_reduce", [x, index, source], axis=axis, reduction="max"), largest)


@pytest.mark.parametrize("bags", [1, 3000, 200_000])
def test_bags(bags):
    weight, index = numbers("f32", 1000, 70), RANDOM.integers(0, 1000, 200_000)
    offsets = np.sort(RANDOM.integers(0, 200_000, bags))
    offsets[0] = 0
    ends = np.append(offsets[1:], 200_000)
    true = np.zeros((bags, 70))
    np.add.at(true, np.repeat(np.arange(bags), ends - offsets), weight[index].astype(np.float64))
    near(run("embedding_bag", [weight, index, offsets, None], mode="sum"), true)
    counts = np.maximum(ends - offsets, 1)[:, None]
    near(run("embedding_bag", [weight, index, offsets, None], mode="mean"), true / counts)
