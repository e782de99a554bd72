"""What interrupts runs on a GPU leaves params and states of the last step told, as on the CPU."""

from __future__ import annotations

import signal

import pytest
from interrupting import runs_signalled, tasks_cancelled, trajectories_on


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_on("cuda")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number, count", [(signal.SIGINT, 32), (signal.SIGTERM, 16)])
def test_signals(tmp_path, trajectories, number, count):
    assert runs_signalled(tmp_path, trajectories, count, number, "cuda") >= count / 3


def test_cancelled_tasks(tmp_path, trajectories):
    assert tasks_cancelled(tmp_path, trajectories, 16, "cuda")
