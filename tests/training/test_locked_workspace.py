"""``opstep.train`` into a workspace that is locked: it waits, says so, and loses nothing."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import opstep
from opstep.training import recorded

NET = """
param w: f32[1, 3] = zeros()

graph loss(x: f32[N, 3]) -> f32[] {
  y = linear(x, w)
  d = sub(y, 1.0)
  s = square(d)
  l = mean(s)
  return l
}
"""
DATA = {"x": np.ones((40, 3), np.float32)}


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Another connection to a workspace with a run in it."""
    monkeypatch.setattr(recorded, "SILENT_S", 0.2)
    monkeypatch.setattr(recorded, "LAG_S", 0.2)
    opstep.train(opstep.loads(NET), DATA, batch=8, workspace=tmp_path / "runs.db")
    opened = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    with closing(opened) as connection:
        yield connection


@pytest.fixture
def let_go(holder, monkeypatch):
    """The lock is held until somebody says that he waits for it; gives what was said."""
    told = []

    def say(text):
        told.append(text)
        if holder.in_transaction:
            holder.execute("rollback")

    monkeypatch.setattr(recorded, "say", say)
    return told


def train(tmp_path, **options):
    opstep.train(opstep.loads(NET), DATA, batch=8, workspace=tmp_path / "runs.db", **options)


def test_a_file_that_is_locked_before_the_run(tmp_path, holder, let_go):
    holder.execute("begin immediate")
    train(tmp_path)
    assert let_go == [
        f"waiting to write to {tmp_path}/runs.db: another process locks it, or its disk is slow",
        "  for 600 s at most; Ctrl-C gives up",
    ]
    with opstep.Workspace(tmp_path / "runs.db") as workspace:
        assert len(workspace.run(2).metric("loss")) == 5


@pytest.mark.parametrize("every", [1, 100])
def test_a_file_that_is_locked_during_the_run(tmp_path, holder, let_go, every):
    """Its checkpoints wait, or its metrics alone."""

    class Locking:
        def began(self, trainer): ...
        def validated(self, trainer, metrics): ...
        def ended(self, trainer, outcome): ...
        def stepped(self, trainer, metrics):
            if trainer.step == 2:
                holder.execute("begin immediate")

    holder.execute("pragma busy_timeout = 60000")
    train(tmp_path, observers=[Locking()], checkpoint_every=every, keep=None)
    assert len(let_go) == 2 and "Ctrl-C twice gives up" in let_go[1]
    with opstep.Workspace(tmp_path / "runs.db") as workspace:
        assert len(workspace.run(2).metric("loss")) == 5
        assert [c.made for c in workspace.checkpoints(2)] == (
            [0, 5] if every > 1 else [0, 1, 2, 3, 4, 5]
        )


def test_ctrl_c_while_it_waits(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(recorded, "say", lambda text: signal.raise_signal(signal.SIGINT))
    holder.execute("begin immediate")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
