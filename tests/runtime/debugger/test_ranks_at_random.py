"""Random sessions on several ranks: what is seen at their end is what a fresh run with the same
changes gives, which only goes forward.
"""

from __future__ import annotations

from random import Random

import pytest
from rank_sessions_at_random import POLICIES, at_end, fresh, program_of, session

from opstep.runtime.ir.diagnostics import OpstepError


@pytest.mark.parametrize("seed", range(12))
def test_any_session_ends_as_a_fresh_run_with_the_same_changes(seed):
    text = program_of(Random(seed))
    debugger, changes = session(text, seed, POLICIES[seed % len(POLICIES)])
    try:
        assert at_end(debugger) == at_end(fresh(text, changes))
    except OpstepError as error:
        raise AssertionError(f"{error}\n{text}") from error
