"""Convolutions whose images have their channels last, on a GPU: the same bits as with channels
first.
"""

from __future__ import annotations

import pytest

import opstep
from opstep.runtime.plan import fusing
from tests.kernels.pointwise.fused_programs import NetworkWriter, outcome


@pytest.fixture(autouse=True)
def every_group(monkeypatch):
    """Groups of any size are worth a kernel."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)


@pytest.mark.parametrize("kernels", ["numba", "auto"])
@pytest.mark.parametrize("scale", [1, 5])
@pytest.mark.parametrize("seed", range(60))
def test_same_bits_in_random_networks(seed, scale, kernels):
    writer = NetworkWriter(seed, scale=scale)
    text, arrays = writer.text(), writer.arrays()
    how = {"device": "cuda", "kernels": kernels}
    assert outcome(text, arrays, **how) == outcome(text, arrays, sync="op", **how)


def test_they_are_taken():
    plans = [
        opstep.loads(NetworkWriter(seed).text()).plan(device="cuda", fuse=True)
        for seed in range(20)
    ]
    taken = [any("layout" in s.attrs for s in plan.steps) for plan in plans]
    assert sum(taken) >= 5
