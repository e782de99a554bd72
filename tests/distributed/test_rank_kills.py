"""A rank is killed at a random moment: `pytest tests/distributed/test_rank_kills.py --kills 50`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_kills import COMMANDS, children, is_under_way, kills, write
from waiting import runs, wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_all_others_end_and_say_which_rank_was_killed(tmp_path, monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    count = request.config.getoption("--kills")
    found = [*kills(tmp_path, count, seed=count, most=4)]
    assert len(found) == count
    assert all(one.under_way for one in found[:2])


@pytest.mark.slow
def test_ranks_end_with_who_started_them_in_the_background(tmp_path, monkeypatch):
    """A shell starts what runs in the background with Ctrl-C ignored, which ranks inherit."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path)
    command, more = COMMANDS[1], ("--ranks", "2", "--save", "end.safetensors")
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", *map(str, command), *more], cwd=tmp_path,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    try:
        wait_until(lambda: is_under_way("train", tmp_path, 2))
        found = children(process.pid)
        process.terminate()
        _, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert not [pid for pid in found if runs(pid)]
    assert (tmp_path / "end.safetensors").exists()
