"""A short run of the fuzzer, so that it works when it is needed."""

from __future__ import annotations

from fuzz_parser import run


def test_two_thousand_broken_programs_give_messages_and_nothing_else() -> None:
    totals = run(2_000, seed=7)
    assert sum(totals.values()) == 2_000
    assert all(totals.values())  # each kind of input occurred
