"""The kernel that looks for elements never written, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.cuda.unwritten import EACH, THREADS, search_for
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import DTYPES


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "u8"])
@pytest.mark.parametrize("size", [0, 5, THREADS * EACH + 5])
def test_it_is_found_wherever_it_is(dtype, size):
    pattern = payload(DTYPES[dtype])
    for place in (None, 0, size // 2, size - 6, size - 1)[: size or 1]:
        array = np.zeros(size + 9, pattern.dtype)
        array[size:] = pattern  # what lies behind the tensor
        if place is not None:
            array[max(place, 0)] = pattern
        (launch,), _ = Lowering(*search_for(DTYPES[dtype], size)).prepared()
        assert isinstance(launch, Prepared)
        words = np.zeros(2, np.int64)
        simulator.run(launch, [array.view(np.uint8), words.view(np.uint8)], np.zeros(8, np.uint8))
        assert list(words) == [1, place is not None]
