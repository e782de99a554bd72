"""Convolutions of random shapes on a GPU, beside the oracle in float64."""

from __future__ import annotations

import pytest
from random_convolutions import cases, off

from opstep.runtime.device.cuda.device import execute


@pytest.mark.parametrize("seed, case, dtype", [*cases(300), *cases(100, 3)], ids=str)
def test_random_convolutions(seed, case, dtype):
    assert off(execute, case, dtype, seed) <= 1
