"""Attention that reads heads where they are, on a GPU: the same bits as of copies."""

from __future__ import annotations

import pytest

import opstep
from tests.kernels.pointwise.fused_programs import outcome
from tests.runtime.plan.heads import attention_of_heads


@pytest.mark.parametrize("seed", range(150))
def test_same_bits_in_random_programs(seed):
    text, arrays = attention_of_heads(seed)
    assert outcome(text, arrays, device="cuda") == outcome(text, arrays, device="cuda", sync="op")


def test_they_are_taken():
    plans = [
        opstep.loads(attention_of_heads(seed)[0]).plan(device="cuda", fuse=True)
        for seed in range(40)
    ]
    assert sum(any("views" in s.attrs for s in plan.steps) for plan in plans) >= 20
