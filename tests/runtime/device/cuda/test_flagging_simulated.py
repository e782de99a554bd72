"""The CUDA kernel that raises flags, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.runtime.device.cuda.flagging import THREADS, VECTORS
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.flagging import step_for
from opstep.runtime.ir.types import DTYPES, TensorType

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
