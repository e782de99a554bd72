"""What the cycle collector does behind a pause."""

from __future__ import annotations

import gc

import pytest

from opstep.runtime.ir import collector
from opstep.runtime.ir.collector import collector_paused


@pytest.fixture(autouse=True)
def pythons_own_settings():
    """Those of all tests are others."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()


def collections_while(build, times: int) -> list[int]:
    """By generation, how often it was collected."""
    before, kept = [s["collections"] for s in gc.get_stats()], []
    for _ in range(times):
        with collector_paused():
            kept.append(build())
        kept.append([set() for _ in range(100)])  # it looks when something is made
    return [s["collections"] - n for s, n in zip(gc.get_stats(), before, strict=True)]


def many() -> list[set]:
    return [set() for _ in range(2 * collector._LARGE)]


@pytest.mark.slow
def test_a_large_tree_is_not_looked_at_at_once():
    gc.collect()
    assert collections_while(many, 1) == [0, 0, 0]


@pytest.mark.slow
def test_a_small_one_is_collected_as_ever():
    gc.collect()
    small = 2 * gc.get_threshold()[0]
    found = collections_while(lambda: [set() for _ in range(small)], 20)
    assert sum(found) >= 20


@pytest.mark.slow
def test_the_collector_looks_again_however_many_there_are(monkeypatch):
    monkeypatch.setattr(collector, "_LARGE", gc.get_threshold()[0])
    gc.collect()
    assert sum(collections_while(many, 100)) >= 100 - collector._MOST


def test_who_has_paused_it_finds_it_paused():
    gc.disable()
    try:
        assert collections_while(many, 1) == [0, 0, 0]
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_another_froze_stays_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        collections_while(many, 1)
        assert gc.get_freeze_count() > frozen // 2
    finally:
        gc.unfreeze()
