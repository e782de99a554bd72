"""Checkpoints of training: whole or not at all, and a run goes on from one with the same bits."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from journalled import NET, Losses, bits, data, journalled, trainer
from waiting import PATIENCE_S

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import checkpoints
from opstep.training import journal
from opstep.training.data import Position
from opstep.training.journal import checkpoint, restore, resume
from opstep.training.recorded import RunRecord

HERE = Path(__file__).parent
STEPS = 24  # 4 epochs of 6 batches


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(scope="module")
def unbroken() -> tuple[dict[str, str], dict[int, bytes]]:
    """What a run without a journal comes to, and its losses."""
    losses = Losses()
    made = trainer(observers=[losses])
    made.run()
    return bits(made.program.params), losses.noted


def kept(path: Path, run: int | str | None = None) -> list[int]:
    with opstep.Workspace(path) as ws:
        return [c.made for c in ws.checkpoints(run)]


def ask(path: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 5, 7])
def test_every_checkpoint_leads_to_the_same_bits(path, unbroken, every):
    journalled(path, checkpoint_every=every, keep=None).run()
    steps = sorted({*range(0, STEPS, every), STEPS})
    assert kept(path) == steps
    for step in steps[:: max(1, len(steps) // 5)]:
        losses = Losses()
        made = journalled(path, f"1@{step}", checkpoint_every=0)
        made.observers.append(losses)
        made.run()
        assert bits(made.program.params) == unbroken[0], step
        assert losses.noted == {k: v for k, v in unbroken[1].items() if k > step}


def test_a_run_knows_what_it_went_on_from(path):
    journalled(path, epochs=2).run()
    journalled(path, "last@10").run()
    journalled(path, "last").run()
    with opstep.Workspace(path) as ws:
        assert [(r.parent, r.parent_step) for r in ws.runs] == [(None, None), (1, 10), (2, STEPS)]
        (line,) = ws.lines("loss where run=2")
        assert line.xs == list(range(STEPS))
        before, after = ws.run(1).metric("loss"), ws.run(2).metric("loss")
        assert line.ys == before[:10] + after
        (line,) = ws.lines("metrics.loss where run=3")
        assert line.ys == before[:10] + after
        ws.prune([1])
        assert [r.parent for r in ws.runs] == [None, 2]


def test_another_size_of_batches_goes_on_at_the_same_row(path):
    journalled(path, checkpoint_every=3, epochs=1).run()
    made = trainer(batch=4)
    resume(made, checkpoint(path, 1, 3))
    assert (made.step, made.position) == (3, Position(0, 6))
    made = trainer(batch=40)
    resume(made, checkpoint(path, 1, 3))
    assert made.position == Position(0, 0)


def test_other_data_that_ends_before(path):
    journalled(path, checkpoint_every=4, epochs=1).run()
    made = trainer(rows=20)
    with pytest.raises(InputError, match=r"goes on with batch 5 of epoch 1; .* has 3"):
        resume(made, checkpoint(path, 1, 4))


def test_an_iterable_that_ends_before(path):
    batches = [{n: a[k : k + 8] for n, a in data().items()} for k in range(0, 40, 8)]
    given = {"graph": "loss", "workspace": path}
    opstep.train(opstep.loads(NET), batches, **given, checkpoint_every=3)
    again = opstep.train(opstep.loads(NET), batches, **given, resume="last@3")
    assert again.step == 5
    with pytest.raises(InputError, match="epoch of the data has 2"):
        opstep.train(opstep.loads(NET), batches[:2], **given, resume="1@3")
    with pytest.raises(InputError, match="no batch 4 in epoch 1"):
        opstep.train(opstep.loads(NET), Uncounted(batches[:2]), **given, resume="1@3")


class Uncounted:
    """Batches that nobody can count."""

    def __init__(self, batches: list):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


# --- which there are ------------------------------------------------------------------------------


class Validated:
    """In place of validations: their losses."""

    def __init__(self, *losses: float):
        self.losses = list(losses)

    def run(self, program, settings) -> dict[str, float]:
        return {"loss": self.losses.pop(0)}


def test_the_first_the_best_and_the_last_stay(path):
    made = journalled(path, checkpoint_every=5, keep=2)
    made.validation = Validated(2.0, 1.0, float("nan"), 3.0)
    made.run()
    assert kept(path) == [0, 12, 20, 24]
    with opstep.Workspace(path) as ws:
        scores = [(c.metric, c.score) for c in ws.checkpoints()]
        assert scores == [(None, None), ("loss", 1.0), (None, None), (None, None)]
        assert ws.checkpoint("last@best").made == 12
        assert ws.checkpoint("last@first").made == 0
        assert ws.checkpoint("1@last").made == STEPS
    held = "select count(*) from tensors where checkpoint not in (select id from checkpoints)"
    assert ask(path, held) == [(0,)]
    unused = "select count(*) from blobs where digest not in (select digest from tensors)"
    assert ask(path, unused) == [(0,)]


def test_what_does_not_change_is_stored_once(path):
    journalled(path, checkpoint_every=1, keep=None, epochs=1, freeze=["b.w"]).run()
    count = "select count(distinct digest), count(distinct checkpoint) from tensors where name = "
    assert ask(path, f"{count} 'b.w'") == [(1, 7)]
    assert ask(path, f"{count} 'a.w.m'")[0][0] == 7


def test_a_newer_format_is_refused(path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", checkpoints.FORMAT + 1)
    journalled(path, epochs=1).run()
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"newer opstep \(format 2; this one knows 1\)") as error:
        checkpoint(path, "last")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("last@7", "run last has no checkpoint at step 7"),
        ("last@best", "run last has no validated checkpoint"),
        ("ffff@1", "there is no run ffff"),
        ("last@1.5", "is no checkpoint"),
        ("@3", "is no checkpoint"),
    ],
)
def test_checkpoints_that_are_not_there(path, reference, message):
    journalled(path, epochs=1).run()
    with pytest.raises(InputError, match=message):
        checkpoint(path, reference)


def test_a_run_without_checkpoints(path):
    trainer(epochs=1, observers=[RunRecord(path)]).run()
    with pytest.raises(InputError, match="run last has no checkpoint"):
        checkpoint(path, "last")
    journalled(path, epochs=1).run()
    trainer(epochs=1, observers=[RunRecord(path)]).run()
    assert checkpoint(path, "last").run == 2
    with pytest.raises(InputError, match="run 3 has no checkpoint"):
        checkpoint(path, 3)


def test_the_best_is_known_to_who_goes_on(path):
    made = journalled(path, epochs=2)
    made.validation = Validated(1.0, 2.0)
    made.run()
    made = journalled(path, "last@best", epochs=4)
    assert (made.step, made.best) == (6, {"loss": 1.0, "step": 6})
    made.validation = Validated(3.0, 1.5, 0.5)
    assert made.run().best == {"loss": 0.5, "step": STEPS}
    with opstep.Workspace(path) as ws:
        assert [c.made for c in ws.checkpoints() if c.score is not None] == [6, STEPS]
        assert ws.best_before(2, 20).reference == ws.checkpoint("1@6").reference
        assert ws.best_before(1, 5) is None


def test_the_best_params_are_those_of_a_run_in_one_go(path):
    """Those of a checkpoint, where no later validation is better."""

    def learned(**options) -> dict[str, str]:
        program = opstep.loads(NET)
        validate = {"x": -data()["x"], "label": data()["label"]}  # it gets worse
        opstep.train(
            program, data(), graph="loss", lr=0.1, best="loss", validate=validate, **options
        )
        return bits(program.params)

    whole = learned(epochs=4)
    learned(epochs=2, workspace=path, checkpoint_every=3)
    assert learned(epochs=4, workspace=path, resume="last") == whole
    with opstep.Workspace(path) as ws:
        assert ws.checkpoint("last@best").run == 1
    assert learned(epochs=2, workspace=path, resume="1") == whole  # no step is left


def test_a_validation_that_was_not_made_any_more(path):
    made = journalled(path)
    made.validation = Validated(1.0, 2.0)
    made.observers.append(Pressed(12))  # before the second
    made.run()
    assert made.step == 12
    made = journalled(path, "last")
    made.validation = Validated(2.0, 3.0, 4.0)
    made.run()
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines("validation.loss")
        assert list(zip(line.xs, line.ys, strict=True)) == [
            (5, 1.0),
            (11, 2.0),
            (17, 3.0),
            (23, 4.0),
        ]
    made = journalled(path, "1@6")  # it had its validation
    made.validation = Validated(2.0, 3.0, 4.0)
    made.run()


# --- other programs -------------------------------------------------------------------------------


def test_a_changed_program_keeps_what_agrees(path):
    journalled(path, epochs=1).run()
    wider = NET.replace("b.w: f32[3, 8]", "b.w: f32[5, 8]").replace("[N, 3]", "[N, 5]")
    wider = wider.replace("param a.b", "param c.w: f32[2] = ones()\nparam a.b")
    made = trainer(net=wider)
    found = checkpoint(path, "last")
    fresh = made.program.params["b.w"]
    loaded = resume(made, found)
    assert loaded.mismatched == ("b.w", "b.w.ema", "b.w.m", "b.w.v")
    assert (loaded.missing, loaded.unexpected) == (("c.w",), ())
    assert (made.program.params["a.w.m"] == found.values["a.w.m"]).all()
    assert (made.program.params["b.w"] == fresh).all()
    assert made.run().steps == STEPS


def test_a_checkpoint_of_another_program(path):
    journalled(path, epochs=1).run()
    other = opstep.loads("param z: f32[2] = ones()\ngraph main() -> f32[2] {\n  return z\n}\n")
    with pytest.raises(InputError, match="is of another program: it has no z; here is no ") as e:
        restore(other, checkpoint(path, "last"))
    assert "a.w" in str(e.value)
    counted = opstep.loads("state step: i64[] = 0\nparam z: f32[2] = ones()\ngraph main() {\n}\n")
    with pytest.raises(InputError, match="is of another program: it has no z; here is no "):
        restore(counted, checkpoint(path, "last"))


# --- whole or not at all --------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from journalled import journalled
from opstep.trace.workspace import checkpoints

path, resumed, where, count = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3], int(sys.argv[4])
left = [count]

def die(*_):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Dies:
    def began(self, trainer): pass
    def stepped(self, trainer, metrics): die()
    def validated(self, trainer, metrics): pass
    def ended(self, trainer, outcome): pass

made = journalled(path, resumed, checkpoint_every=2)
if where == "step":
    made.observers.append(Dies())
else:
    put = checkpoints.put_tensor
    def dying(*arguments):
        die()
        return put(*arguments)
    checkpoints.put_tensor = dying
made.run()
"""


def killed(path: Path, resumed: str, where: str, count: int) -> None:
    """A process that trains, killed after so many steps, or tensors of checkpoints."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}/shared"}
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), resumed, where, str(count)],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, process.stderr


def test_kill_9_and_the_same_bits(path, unbroken):
    """Killed behind a step, then in the middle of a checkpoint; then it goes on to the end."""
    killed(path, "", "step", 9)
    killed(path, "last", "tensor", 60)
    assert ask(path, "pragma integrity_check") == [("ok",)]
    names = set(trainer().program.params)
    rows = ask(path, "select id, (select count(*) from tensors where checkpoint = checkpoints.id) "
                     "from checkpoints where kind = 'train'")  # fmt: skip
    assert rows and all(count == len(names) for _, count in rows)
    made = journalled(path, "last")
    assert 0 < made.step < STEPS
    made.run()
    assert bits(made.program.params) == unbroken[0]
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines("loss")
        assert np.array(line.ys).tobytes() == b"".join(unbroken[1].values())
        assert [r.status for r in ws.runs] == ["running", "running", "done"]


@pytest.mark.slow
def test_the_command_killed_at_random_moments():
    process = subprocess.run(
        [sys.executable, str(HERE / "kill.py"), "2"],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "the same bits" in process.stdout


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(path, monkeypatch, unbroken):
    said, calls = [], []
    put = checkpoints.put_tensor

    def full(connection, name, *rest):
        calls.append(name)
        if 30 < len(calls) < 34:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(connection, name, *rest)

    monkeypatch.setattr(checkpoints, "put_tensor", full)
    made = journalled(path, checkpoint_every=2, keep=None, say=said.append)
    assert made.run().kind == "finished"
    assert bits(made.program.params) == unbroken[0]
    journal_ = made.observers[-1]
    assert journal_.missed == 3
    (told,) = said
    assert "a checkpoint could not be written" in told and "make room" in told
    found = kept(path)
    assert found[0] == 0 and found[-1] == STEPS and len(found) == 13 - journal_.missed
    counts = ask(path, "select distinct (select count(*) from tensors where checkpoint = c.id) "
                       "from checkpoints c where kind = 'train'")  # fmt: skip
    assert counts == [(len(list(made.program.params)),)]


def test_a_file_that_may_not_grow(path, monkeypatch, unbroken):
    """SQLite itself has no room: nothing but checkpoints is lost."""
    said = []
    opened = journal.open_writing

    def small(path):
        connection = opened(path)
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages + 2}")
        return connection

    monkeypatch.setattr(journal, "open_writing", small)
    made = journalled(path, say=said.append)
    assert made.run().kind == "finished"
    assert bits(made.program.params) == unbroken[0]
    assert made.observers[-1].missed > 0 and len(said) == 1
    assert made.observers[0].report.problem is None
    with opstep.Workspace(path) as ws:
        assert ws.run().status == "done"
        assert len(ws.run().metric("loss")) == STEPS


# --- ends -----------------------------------------------------------------------------------------


class Pressed:
    """Ctrl-C after a step."""

    def __init__(self, step: int):
        self.at = step

    def began(self, trainer):
        pass

    def stepped(self, trainer, metrics):
        if trainer.step == self.at:
            signal.raise_signal(signal.SIGINT)

    def validated(self, trainer, metrics):
        pass

    def ended(self, trainer, outcome):
        pass


def test_ctrl_c_leaves_a_checkpoint_of_the_last_step(path, unbroken):
    made = journalled(path, checkpoint_every=100)
    made.observers.append(Pressed(13))
    assert made.run().kind == "interrupted"
    assert kept(path) == [0, 13]
    made = journalled(path, "last")
    made.run()
    assert bits(made.program.params) == unbroken[0]


class Fails(Pressed):
    def stepped(self, trainer, metrics):
        if trainer.step == self.at:
            raise ValueError("no more")


def test_a_failed_run_has_its_last_step_too(path):
    made = journalled(path, checkpoint_every=100)
    made.observers.append(Fails(3))
    with pytest.raises(ValueError, match="no more"):
        made.run()
    assert kept(path) == [0, 3]
