"""``opstep train``: checkpoints, going on from them, and what ``opstep ws`` makes of them."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import opstep
from opstep.cli.common import COMMAND, INTERRUPTED, OK, UNRECORDED
from opstep.trace.workspace import checkpoints
from opstep.training import journal, loop

NET = """\
param w: f32[3, 2] = normal(std=0.5)
state seen: i64[] = 0
state step: i64[] = 0

graph scores(x: f32[N, 2]) -> f32[N, 3] {
  y = linear(x, w)
  return y
}

graph loss(x: f32[N, 2], label: i32[N]) -> f32[] {
  d = dropout(x, step, p=0.2, seed=3)
  y = scores(d)
  l = softmax_cross_entropy(y, label)
  n = add(seen, 1)
  seen <- n
  return l
}
"""


@pytest.fixture
def train(cli, write, tmp_path, monkeypatch):
    """``train(*more)``: four epochs of four batches, with a workspace."""
    monkeypatch.chdir(tmp_path)
    write("net.opg", NET)
    label = np.arange(64, dtype=np.int32) % 3
    x = np.random.default_rng(0).normal(label[:, None], 1, (64, 2)).astype(np.float32)
    np.savez("data.npz", x=x, label=label)

    def run(*more: str, epochs: int = 4, net: str = "net.opg"):
        common = ("--data", "data.npz", "--lr", "0.1", "--batch", "16", "-w", "runs.db")
        return cli("train", net, *common, "--epochs", str(epochs), *more)

    return run


def kept(run=None) -> list[str]:
    with opstep.Workspace("runs.db") as ws:
        return [f"{c.run}@{c.made}" for c in ws.checkpoints(run)]


def last_bits() -> dict[str, bytes]:
    with opstep.Workspace("runs.db") as ws:
        values = ws.checkpoint_values(ws.checkpoint("last"))
        return {name: array.tobytes() for name, array in values.items()}


def test_going_on_gives_the_bits_of_a_run_in_one_go(train):
    assert train("--seed", "7").code == OK
    whole = last_bits()
    assert train("--seed", "7", "--checkpoint-every", "3", "--keep", "2", epochs=2).code == OK
    assert kept(2) == ["2@0", "2@6", "2@8"]
    outcome = train("--resume", "2@6")
    assert outcome.code == OK, outcome.err
    assert "going on from " in outcome.err and "@6: epoch 2, batch 3" in outcome.err
    assert "is not that of the run" not in outcome.err
    assert last_bits() == whole
    assert kept(3) == ["3@6", "3@16"]
    outcome = train("--resume", "last")
    assert outcome.code == OK
    assert "nothing is left of --epochs 4: more go on" in outcome.err
    assert "\n0 steps in " in f"\n{outcome.out}"
    outcome = train("--resume", "last", "--weight-decay", "0.5", epochs=5)
    assert "the text of the program, or of its step, is not that of the run" in outcome.err


def test_what_begins_anew_is_said(train, write):
    train(epochs=1)
    wider = NET.replace("w: f32[3, 2]", "w: f32[4, 2]").replace("[N, 3]", "[N, 4]")
    write("wider.opg", f"param b: f32[4] = zeros()\n{wider}")
    outcome = train("--resume", "last", net="wider.opg")
    assert outcome.code == OK, outcome.err
    told = [line.strip() for line in outcome.err.splitlines()]
    assert "begin anew, not in the checkpoint: b" in told
    (types,) = [line for line in told if "of another type" in line]
    assert types.endswith(": w (f32[4, 2] now), w.m (f32[4, 2] now), w.v (f32[4, 2] now)")
    other = NET.replace("seen", "met").replace("state step", "state count")
    other = write("other.opg", other.replace("dropout(x, step", "dropout(x, count"))
    outcome = train("--resume", "1", "--optimizer", "sgd", net=other)
    assert outcome.code == OK  # the optimizer's own step agrees, too
    assert "begin anew, not in the checkpoint: met, count" in outcome.err
    (only,) = [line for line in outcome.err.splitlines() if "in the checkpoint only: " in line]
    assert set(only.partition(": ")[2].split(", ")) == {"seen", "w.m", "w.v"}
    foreign = write("foreign.opg", NET.replace("param w", "param v").replace("(x, w)", "(x, v)"))
    outcome = train("--resume", "1", net=foreign)  # only counters agree
    assert outcome.code == COMMAND and "is of another program: it has no v" in outcome.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--resume", "last@5"), "run last has no checkpoint at step 5"),
        (("--resume", "last", "--seed", "3"), "--seed 3: run"),
        (("--resume", "nothing"), "there is no run nothing"),
        (("--keep", "some"), "some"),
        (("--checkpoint-every", "0"), "0 is not in the range"),
    ],
)
def test_wrong_options(train, more, message):
    train(epochs=1)
    outcome = train(*more)
    assert outcome.code == COMMAND
    assert message in outcome.err


@pytest.mark.parametrize("switch", ["--resume", "--checkpoint-every", "--keep"])
def test_checkpoints_need_a_workspace(train, cli, switch):
    outcome = cli("train", "net.opg", "--data", "data.npz", switch, "5")
    assert outcome.code == COMMAND
    assert f"{switch} needs a workspace" in outcome.err


def test_a_newer_checkpoint_is_refused_in_one_line(train, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(checkpoints, "FORMAT", 9)
        train(epochs=1)
    outcome = train("--resume", "last")
    assert outcome.code == COMMAND
    assert outcome.err.count("\n") == 1 and "newer opstep (format 9" in outcome.err


def test_a_full_disk_has_its_own_exit_code(train, monkeypatch):
    opened = journal.open_writing

    def small(path, patience):
        connection = opened(path, patience)
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages}")
        return connection

    monkeypatch.setattr(journal, "open_writing", small)
    monkeypatch.setattr(checkpoints, "put_tensor", filled(checkpoints.put_tensor))
    outcome = train("--checkpoint-every", "1")
    assert outcome.code == UNRECORDED
    assert outcome.err.count("a checkpoint could not be written") == 1
    assert "could not be written\n" in outcome.err
    with opstep.Workspace("runs.db") as ws:
        assert ws.run().status == "done"
        assert len(ws.run().metric("loss")) == 16


def filled(put):
    """What stores a tensor, and a megabyte more with it."""

    def putting(connection, name, *rest):
        put(connection, f"{name}.more", np.zeros(1 << 20, np.uint8), *rest[1:])
        return put(connection, name, *rest)

    return putting


def test_ctrl_c_keeps_the_last_step(train, monkeypatch):
    count = loop.Trainer.count

    def pressed(self):
        count(self)
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop.Trainer, "count", pressed)
    outcome = train()
    assert outcome.code == INTERRUPTED
    assert "  --resume " in outcome.err
    assert kept() == ["1@0", "1@5"]


# --- opstep ws ------------------------------------------------------------------------------------


def test_checkpoints_are_listed_and_pruned(train, cli):
    train("--checkpoint-every", "2", "--keep", "all", "--validate", "0.25")
    outcome = cli("ws", "runs.db", "checkpoints")
    assert outcome.code == OK
    head, *rows = outcome.out.splitlines()
    assert head.split("  ")[0] == "checkpoint" and "goes on with" in head
    assert "epoch 1, batch 3" in rows[1]
    steps = [0, 2, 3, 4, 6, 8, 9, 10, 12]
    assert [int(row.split()[0].split("@")[1]) for row in rows] == steps
    listed = cli("ws", "runs.db", "checkpoints", "--run", "last", "--json").json
    assert [c["made"] for c in listed] == steps
    assert {c["metric"] for c in listed if c["score"] is not None} == {"loss"}
    best = max(c["made"] for c in listed if c["score"] is not None)
    outcome = cli("ws", "runs.db", "prune", "--checkpoints", "1", "--dry-run")
    stay = sorted({0, best, 12})
    assert f"would remove {9 - len(stay)} checkpoints" in outcome.err
    assert len(kept()) == 9
    outcome = cli("ws", "runs.db", "prune", "--checkpoints", "1", "--yes")
    assert f"removed {9 - len(stay)} checkpoints" in outcome.err
    assert kept() == [f"1@{made}" for made in stay]
    assert "nothing to remove" in cli("ws", "runs.db", "prune", "--checkpoints", "1").err
    outcome = cli("ws", "runs.db")
    assert "checkpoints --run" in outcome.out and "rerun" not in outcome.out
    assert "plot" in outcome.out


def test_a_checkpoint_becomes_params(train, cli):
    train("--checkpoint-every", "3")
    outcome = cli("ws", "runs.db", "checkpoint", "last@9", "-o", "p.safetensors")
    assert outcome.code == OK, outcome.err
    found = load_file("p.safetensors")
    assert sorted(found) == ["seen", "step", "w"]  # what the loss uses
    assert (found["seen"], found["step"]) == (9, 9)
    outcome = cli("run", "net.opg", "-g", "scores", "--params", "p.safetensors", "-i", "x=ones",
                  "--symbol", "N=4", "-o", "y.npy")  # fmt: skip
    assert outcome.code == OK, outcome.err
    assert np.allclose(np.load("y.npy"), found["w"].sum(1))
    cli("ws", "runs.db", "checkpoint", "last@9", "--all", "-o", "all.npz")
    with np.load("all.npz") as file:
        assert sorted(file) == ["seen", "step", "w", "w.m", "w.v"]
    names = {line.split("@")[0] for line in cli("ws", "runs.db", "list").out.splitlines()}
    assert "w" in names
    outcome = cli("ws", "runs.db", "checkpoint", "last@4", "-o", "p.safetensors")
    assert outcome.code == COMMAND and "it has some at 0, 6, 9, 12, 15, 16" in outcome.err


def test_a_metric_alone_is_drawn(train, cli, tmp_path):
    train("--name", "first", epochs=1)
    train("--resume", "last", "--name", "second", epochs=2)
    outcome = cli("ws", "runs.db", "plot", "loss", "-o", "one.svg")
    assert outcome.code == OK and "1 line, 8 points" in outcome.err
    outcome = cli("ws", "runs.db", "plot", "loss where run=*", "-o", "both.svg")
    assert "2 lines, 12 points" in outcome.err
    picture = (tmp_path / "both.svg").read_text()
    assert "loss @first" in picture and "loss @second" in picture
    train("--resume", "last", epochs=3)
    cli("ws", "runs.db", "plot", "loss where run=*", "-o", "both.svg")
    picture = (tmp_path / "both.svg").read_text()
    assert "loss @first" in picture and picture.count("loss @") == 3
    outcome = cli("ws", "runs.db", "plot", "los", "-o", "one.svg")
    assert outcome.code == COMMAND and "did you mean loss?" in outcome.err
    outcome = cli("ws", "runs.db", "plot", "stats.absmax where op=linear", "-o", "one.svg")
    assert outcome.code == COMMAND and "there are metrics epoch, loss, " in outcome.err


# --- TensorBoard ----------------------------------------------------------------------------------


def test_tensorboard(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--tensorboard", "board", "--name", "a", "--validate", "0.25").code == OK
    (folder,) = (tmp_path / "board").iterdir()
    assert folder.name.startswith("a-")
    found = EventAccumulator(str(folder))
    found.Reload()
    assert found.Tags()["scalars"] == ["loss", "validation/loss"]
    with opstep.Workspace("runs.db") as ws:
        losses = ws.run().metric("loss")
    events = found.Scalars("loss")
    assert [(e.step, e.value) for e in events] == list(enumerate(losses))
    assert [e.step for e in found.Scalars("validation/loss")] == [2, 5, 8, 11]


def test_tensorboard_that_is_not_there(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    outcome = train("--tensorboard", "board")
    assert outcome.code == COMMAND
    assert "tensorboard is not there" in outcome.err
    assert "pip install 'opstep[tensorboard]'" in outcome.err


def test_a_folder_that_cannot_be_written(train, write):
    write("board", "a file")
    outcome = train("--tensorboard", "board")
    assert outcome.code == COMMAND
    assert "board" in outcome.err and "internal error" not in outcome.err
