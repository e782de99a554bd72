"""What is shown at a point is what a fresh run to that point with the same changes has.

`OPSTEP_SESSIONS=2000 pytest tests/debugger/test_truth.py` plays so many random sessions.
"""

from __future__ import annotations

import os

import pytest
from debugger.sessions_at_random import POLICIES, Model

SESSIONS = int(os.environ.get("OPSTEP_SESSIONS", "18"))


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_random_sessions(seed, tmp_path, record_property):
    policy = list(POLICIES.values())[seed % len(POLICIES)]
    model = Model(seed, policy, tmp_path / "model.opg", budget=(1 << 30, 1)[seed % 7 == 0])
    points = 0
    for _ in range(40):
        model.command()
        if model.random.random() < 0.1:
            points += model.compare()
    model.do_end()
    points += model.compare()
    assert points > 0
    record_property("points", points)
