"""Ops in the kernel of the product before them, on a GPU: the same bits as one after the other."""

from __future__ import annotations

import pytest

import opstep
from opstep.runtime.plan import fusing
from tests.kernels.pointwise.fused_programs import ProductWriter, Writer, outcome


@pytest.fixture(autouse=True)
def every_group(monkeypatch):
    """Groups of any size are worth a kernel."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)


@pytest.mark.parametrize("kernels", ["numba", "auto"])
@pytest.mark.parametrize("seed", range(150))
def test_same_bits_in_random_programs(seed, kernels):
    writer = ProductWriter(seed)
    text, arrays = writer.text(), writer.arrays()
    how = {"device": "cuda", "kernels": kernels}
    assert outcome(text, arrays, **how) == outcome(text, arrays, sync="op", **how)


@pytest.mark.parametrize("seed", range(100))
def test_same_bits_in_random_programs_of_elementwise_ops(seed):
    writer = Writer(seed)
    text, arrays = writer.text(), writer.arrays()
    assert outcome(text, arrays, device="cuda") == outcome(text, arrays, sync="op", device="cuda")


def test_they_are_taken():
    taken = [
        any(len(s.members) > 1 and s.members[0].op.traits.epilogues for s in plan.steps)
        for plan in (
            opstep.loads(ProductWriter(seed).text()).plan(device="cuda", fuse=True)
            for seed in range(40)
        )
    ]
    assert sum(taken) >= 8
