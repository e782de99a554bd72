"""Ranks that are debugged as one, on a GPU that they share."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from rank_sessions_at_random import POLICIES, at_end, begun, fresh, program_of, session


@pytest.mark.parametrize("seed", range(12))
def test_any_session_ends_as_a_fresh_run_with_the_same_changes(seed):
    text, options = program_of(Random(seed)), POLICIES[seed % len(POLICIES)] | {"device": "cuda"}
    debugger, changes = session(text, seed, options)
    assert at_end(debugger) == at_end(fresh(text, changes, device="cuda"))


def test_what_ranks_compute_is_near_what_they_compute_on_the_cpu():
    text = program_of(Random(2))
    found, expected = (at_end(begun(text, device=d)) for d in ("cuda", "cpu"))
    for own, its in zip(found, expected, strict=True):
        assert own.keys() == its.keys()
        for name in own:
            dtype = "i4" if name in ("r", "n") else "f4"
            values = [np.frombuffer(each[name], dtype) for each in (own, its)]
            np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6, err_msg=name)
