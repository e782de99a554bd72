"""The CUDA kernel that raises flags, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.runtime.device.cuda.flagging import THREADS, VECTORS
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.flagging import step_for, step_for_several
from opstep.runtime.ir.types import DTYPES, TensorType
from opstep.runtime.plan.internal import TOGETHER

FLOATS = ("f64", "f32", "f16", "bf16")


def flags_of(array: np.ndarray, dtype: str) -> list[int]:
    launches, _ = Lowering(*step_for(TensorType(DTYPES[dtype], array.shape))).prepared()
    flags = np.zeros(2, np.int64)
    for launch in launches:
        assert isinstance(launch, Prepared)
        memory = [array.reshape(-1).view(np.uint8), flags.view(np.uint8)]
        simulator.run(launch, memory, np.zeros(8, np.uint8))
    return flags.tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_flags_say_what_there_is(dtype):
    kind = DTYPES[dtype].numpy
    block = THREADS * VECTORS * 16 // DTYPES[dtype].itemsize
    largest = np.array([-1, 1]).astype(kind) * np.array(3e4).astype(kind)
    for size in (1, 7, block, block + 5):
        x = np.resize(largest, size).astype(kind)
        assert flags_of(x, dtype) == [0, 0]
        for place in {0, size // 2, size - 1}:
            for value, flags in ((np.nan, [1, 0]), (np.inf, [0, 1]), (-np.inf, [0, 1])):
                bad = x.copy()
                bad[place] = value
                assert flags_of(bad, dtype) == flags
    both = np.resize(largest, 64).astype(kind)
    both[3], both[60] = -np.nan, -np.inf
    assert flags_of(both, dtype) == [1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_launch_looks_at_several_tensors(dtype):
    kind = DTYPES[dtype].numpy
    block = THREADS * VECTORS * 16 // DTYPES[dtype].itemsize
    sizes = [5, block + 1, 1, 2 * block, *range(10, 22)]
    rows = list(range(len(sizes)))[::-1]
    for count in (1, 3, len(sizes)):
        arrays = [np.ones(n, kind) for n in sizes[:count]]
        types = [TensorType(DTYPES[dtype], a.shape) for a in arrays]
        expected = np.zeros((len(sizes), 2), np.int64)
        step = step_for_several(types, rows[:count], expected.size)
        assert several(arrays, *step) == expected.tolist()
        arrays[0][-1], arrays[count - 1][-1] = np.inf, np.nan
        expected[rows[0], 1], expected[rows[count - 1], 0] = count > 1, 1
        assert several(arrays, *step) == expected.tolist()


def several(arrays: list[np.ndarray], step, types) -> list[list[int]]:
    (launch,), _ = Lowering(step, types).prepared()
    assert isinstance(launch, Prepared)
    flags = np.zeros(types[-1].shape, np.int64)
    padded = [*arrays, *arrays[:1] * (TOGETHER - len(arrays))]
    memory = [a.view(np.uint8) for a in (*padded, flags)]
    simulator.run(launch, memory, np.zeros(8, np.uint8))
    return flags.reshape(-1, 2).tolist()
