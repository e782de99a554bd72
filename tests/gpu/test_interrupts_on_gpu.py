"""What interrupts runs on a GPU leaves params and states of the last step told, as on the CPU."""

from __future__ import annotations

import signal

import pytest
from interrupting import PLANS, runs_signalled, tasks_cancelled, trajectories_on

ON_GPU = [plan | {"device": "cuda"} for plan in PLANS]


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_on("cuda")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("plan", ON_GPU, ids=str)
def test_interrupts(tmp_path, trajectories, plan):
    """Some sixty in all."""
    runs_signalled(tmp_path, trajectories, plan, 4, signal.SIGINT)
    runs_signalled(tmp_path, trajectories, plan, 2, signal.SIGTERM)
    tasks_cancelled(tmp_path, trajectories, plan, 2)
