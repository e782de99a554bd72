"""A rank is killed at a random moment: `pytest tests/distributed/test_rank_kills.py --kills 50`."""

from __future__ import annotations

from pathlib import Path

from rank_kills import kills

ROOT = Path(__file__).resolve().parents[2]


def test_all_others_end_and_say_which_rank_was_killed(tmp_path, monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    count = request.config.getoption("--kills")
    found = [*kills(tmp_path, count, seed=count, most=4)]
    assert len(found) == count
    assert all(one.under_way for one in found[:2])
