"""What a run is found by, and what is kept so that a repeat can begin in its middle."""

from __future__ import annotations

import hashlib
import sqlite3

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.errors import InputError

TRAIN = """\
param w: f32[4] = normal()
state seen: i64[] = 0

graph main(x: f32[4], lr: f32[]) -> f32[] {
  d = sub(w, x)
  sq = square(d)
  loss = sum(sq)
  step = mul(d, lr)
  w2 = sub(w, step)
  n = add(seen, 1)
  w <- w2
  seen <- n
  return loss
}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def looped(path, steps: int, **options) -> str:
    """A loop in Python that gives each step inputs of its own; the run's key."""
    program = opstep.loads(TRAIN, "train.opg")
    with opstep.Recording(workspace=path, **options) as recording:
        for k in range(steps):
            x = np.linspace(k, k + 1, 4, dtype=np.float32)
            program.run("main", {"x": x, "lr": 0.25}, recording=recording)
    return recording.runs[0].key


def test_which_learning_rate_had_this_run(path):
    tags = {"lr": 0.1, "schedule": "cosine", "build": "007"}
    key = looped(path, 2, name="baseline", tags=tags)
    query = "select s.value from runs r join settings s on s.run = r.id where r.key = ? and s.kind "
    with sqlite3.connect(path) as connection:
        assert connection.execute(f"{query} = 'tag' and s.name = 'lr'", (key,)).fetchall() == [
            (0.1,)
        ]
        assert connection.execute(f"{query} = 'input'", (key,)).fetchall() == [(0.25,)]
    with opstep.Workspace(path) as ws:
        run = ws.run("baseline")
        assert (run.key, run.name, run.tags, run.scalars) == (key, "baseline", tags, {"lr": 0.25})
        assert run.digest == hashlib.sha256(TRAIN.encode()).hexdigest()
        assert run.command


def test_a_name_means_the_last_run_that_has_it(path):
    keys = [looped(path, 1, name="sweep") for _ in range(2)]
    with opstep.Workspace(path) as ws:
        assert ws.run("sweep").key == keys[1]
        ws.prune([keys[1]])
        assert ws.run("sweep").key == keys[0]
        assert len(ws.sql("select * from settings").rows) == 1


def test_a_repeat_begins_where_the_inputs_were_kept(path):
    key = looped(path, 10, keep_inputs=3)
    with opstep.Workspace(path) as ws:
        for step in (0, 3, 6, 9):
            again = ws.rerun(key, step=step)
            assert (again.steps, again.identical) == (1, True), step
            assert "loss" in again.same
            assert ({"w", "seen"} <= set(again.same)) == (step == 9)
        with pytest.raises(InputError, match="from step 4 on: what that needs was not kept"):
            ws.rerun(key, step=4)


def test_a_repeat_of_steps_that_had_the_same_inputs(path):
    """From the middle to the end."""
    program = opstep.loads(TRAIN)
    x = {"x": np.ones(4, np.float32), "lr": 0.5}
    with opstep.Recording(workspace=path, keep_inputs=4) as recording:
        program.run("main", x, steps=10, recording=recording)
    with opstep.Workspace(path) as ws:
        again = ws.rerun("last", step=8)
        assert (again.steps, again.identical) == (2, True)
        assert {"w", "seen", "loss"} <= set(again.same)
        assert ws.rerun("last").steps == 10


def test_damage_is_told_of_settings(path):
    from opstep.trace.workspace.damage import damage

    looped(path, 1, tags={"a": "text", "b": 1})
    assert damage(path) is None


def test_a_program_with_a_seed_that_no_switch_takes_runs_again(path):
    program = opstep.loads(TRAIN, "train.opg")
    program.seed = -1
    with opstep.Recording(workspace=path) as recording:
        program.run("main", {"x": np.zeros(4, np.float32), "lr": 0.25}, recording=recording)
    with opstep.Workspace(path) as ws:
        repeated = ws.rerun("last")
    assert repeated.same == ["loss", "seen", "w"]
    assert not repeated.different
