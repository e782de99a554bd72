"""Convolutions of random shapes on the CPU and in the simulator, beside the oracle in float64."""

from __future__ import annotations

import pytest
from random_convolutions import cases, off

from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.simulator import simulator

BESIDE_PADDING = 162  # gradients of filters by themselves, with an infinity
IN_VOLUMES = 60


def test_on_the_cpu():
    for seed, case, dtype in cases(400):
        assert off(execute, case, dtype, seed) <= 1, (seed, case, dtype)


@pytest.mark.parametrize("seed, case, dtype", cases(16, 3) + cases(61, 3)[IN_VOLUMES:], ids=str)
def test_volumes_simulated(seed, case, dtype):
    with targeting("sm_90" if seed % 3 else "sm_80"):
        assert off(simulator.execute, case, dtype, seed) <= 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("seed, case, dtype", cases(12) + cases(163)[BESIDE_PADDING:], ids=str)
def test_simulated(seed, case, dtype, arch):
    with targeting(arch):
        assert off(simulator.execute, case, dtype, seed) <= 1
