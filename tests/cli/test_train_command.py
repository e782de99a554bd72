"""``opstep train``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import opstep
from opstep.cli.common import COMMAND, FOUND, OK, PROGRAM

NET = """\
param w: f32[3, 2] = normal(std=0.5)
param unused: f32[3] = zeros()

graph scores(x: f32[N, 2]) -> f32[N, 3] {
  y = linear(x, w)
  return y
}

graph loss(x: f32[N, 2], label: i32[N]) -> f32[] {
  y = scores(x)
  l = softmax_cross_entropy(y, label)
  return l
}

graph accuracy(x: f32[N, 2], label: i32[N]) -> f32[] {
  y = scores(x)
  found = argmax(y, axis=1)
  right = equal(found, label)
  share = mean(right)
  return share
}

graph rounded(x: f32[N, 2]) -> f32[] {
  y = scores(x)
  r = outside(y)
  l = mean(r)
  return l
}

graph outside(y: f32[N, M]) -> f32[N, M] {
  r: f32[N, M] = torch.aten.log1p(y)
  return r
}

graph far(x: f32[N, 2]) -> f32[] {
  y = scores(x)
  m = mean(y)
  l = log(m)
  return l
}
"""


@pytest.fixture
def net(write):
    return write("net.opg", NET)


@pytest.fixture
def data(tmp_path):
    """Three clouds of points, to tell apart."""
    rng = np.random.default_rng(0)
    label = np.arange(90) % 3
    x = rng.normal(0, 0.3, (90, 2)) + np.array([[2, 0], [-1, 2], [-1, -2]])[label]
    columns = {"train_x": x[:60], "train_label": label[:60], "test_x": x[60:]}
    columns["test_label"] = label[60:]
    path = tmp_path / "clouds.npz"
    np.savez(path, **{n: a.astype("f4") if a.dtype == "f8" else a for n, a in columns.items()})
    return path


COMMON = ("--lr", "0.1", "--batch", "16")


def test_a_network_is_trained_measured_and_saved(cli, net, data):
    said = cli(
        "train", net, "-d", data, "--validate", "test", "--metric", "accuracy", "--epochs", 10,
        *COMMON, "--schedule", "cosine", "--warmup", 4, "--clip-norm", 1, "--weight-decay", "0.01",
        "--emit", "step.opg", "--save", "trained.opg", "--json",
    )  # fmt: skip
    assert said.code == OK
    assert (said.json["outcome"], said.json["steps"], said.json["graph"]) == (
        "finished", 40, "loss_step",
    )  # fmt: skip
    assert said.json["validation"]["accuracy"] == 1
    assert said.json["metrics"].keys() == {"loss", "grad_norm"}
    assert said.json["best"]["loss"] <= said.json["validation"]["loss"]
    lines = said.err.splitlines()
    assert lines[0] == "wrote step.opg: graph loss_step"
    assert lines[1].startswith("epoch 1/10  step 4  loss ")
    assert lines[2].startswith("    validation: loss ") and lines[2].endswith("  (best)")
    assert lines[-1] == "saved trained.opg, trained.safetensors"
    test = np.load(data)
    trained = opstep.load("trained.opg")
    assert list(trained.params) == ["w", "unused"]
    given = {"x": test["test_x"], "label": test["test_label"].astype("i4")}
    assert trained.run("accuracy", given)["share"] == 1


def test_the_same_seed_gives_the_same_bits(cli, net, data):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        said = cli("train", net, "-d", data, *COMMON, "--seed", seed, "--epochs", 3,
                   "--save", f"{name}.safetensors")  # fmt: skip
        assert said.code == OK
    a, b, c = (load_file(f"{name}.safetensors") for name in "abc")
    assert sorted(a) == ["step", "unused", "w", "w.m", "w.v"]
    assert all(a[n].tobytes() == b[n].tobytes() for n in a)
    assert a["w"].tobytes() != c["w"].tobytes()


DEEP = """\
param w: f32[32, 32] = normal(std=0.2)

graph loss(x: f32[N, 32], label: i32[N]) -> f32[] {
  h0 = linear(x, w)
LINES
  l = softmax_cross_entropy(h8, label)
  return l
}
""".replace(
    "LINES", "\n".join(f"  t{k} = linear(h{k}, w)\n  h{k + 1} = tanh(t{k})" for k in range(8))
)


def test_a_step_within_a_budget(cli, write):
    """The sizes of its symbols are those of the data, and of the batches; the bits are the same."""
    net, rng = write("deep.opg", DEEP), np.random.default_rng(0)
    rows = {"x": rng.standard_normal((96, 32), np.float32), "label": np.arange(96) % 32}
    np.savez("rows.npz", **rows)
    common = ("train", net, "-d", "rows.npz", "--batch", 32, "--epochs", 2)
    assert cli(*common, "--save", "all.safetensors", "--emit", "all.opg").code == OK
    little = (*common, "--save", "less.safetensors", "--emit", "less.opg")
    assert cli(*little, "--memory", "60KiB").code == OK
    full, written = (Path(f"{n}.opg").read_text(encoding="utf-8") for n in ("all", "less"))
    assert "# Within 60.0 KiB where N = 32: computes " in written
    assert "Within" not in full
    found = load_file("all.safetensors"), load_file("less.safetensors")
    assert found[0].keys() == found[1].keys()
    assert all(a.tobytes() == found[1][n].tobytes() for n, a in found[0].items())
    said = cli(*common, "--memory", "5KiB")
    assert said.code == COMMAND and said.out == ""
    assert "loss_step takes at least " in said.err and "where N = 32, not 5.0" in said.err


def test_a_budget_for_batches_that_nobody_knows(data):
    program = opstep.loads(NET, "net.opg")
    arrays = np.load(data)
    batch = {"x": arrays["train_x"][:16], "label": arrays["train_label"][:16].astype("i4")}
    with pytest.raises(opstep.OpstepError, match="sizes that nobody knows") as raised:
        opstep.train(program, [batch], graph="loss", memory="1MiB")
    assert "symbols=" in str(raised.value)
    trainer = opstep.train(program, [batch], graph="loss", memory="1MiB", symbols={"N": 16})
    assert trainer.step == 1


def test_the_text_of_a_step_is_trained_directly(cli, net, data):
    """With what was learned so far: two runs of an epoch are the steps of two, in other orders."""
    emitted = cli("train", net, "-d", data, *COMMON, "--epochs", 0, "--emit", "step.opg")
    assert emitted.code == OK and "0 steps" in emitted.out
    first = cli("train", "step.opg", "-d", data, "--batch", 16, "--save", "one.safetensors")
    assert "loss_step is a step of training already" in first.err
    again = cli("train", "step.opg", "-d", data, "--batch", 16, "--params", "one.safetensors",
                "--save", "two.safetensors", "--step-graph", "loss_step")  # fmt: skip
    assert again.code == OK
    assert (load_file("one.safetensors")["step"], load_file("two.safetensors")["step"]) == (4, 8)
    refused = cli("train", "step.opg", "-d", data, "--lr", "0.1")
    assert refused.code == COMMAND and "lr is for a step that is written here" in refused.err


def test_metrics_are_in_the_workspace(cli, net, data):
    said = cli("train", net, "-d", data, *COMMON, "--epochs", 2, "--validate", "0.2", "-w",
               "runs.db", "--name", "clouds", "--tag", "lr=0.1")  # fmt: skip
    assert said.code == OK
    with opstep.Workspace("runs.db") as workspace:
        (run,) = workspace.runs
        assert (run.name, run.steps, run.status, run.graph) == ("clouds", 6, "done", "loss_step")
    others = "select step, name from metrics where name not in ('seconds', 'loss') order by 1, 2"
    rows = cli("ws", "runs.db", "sql", others, "--json").json
    assert [(r["step"], r["name"]) for r in rows] == [
        (2, "epoch"), (2, "validation.loss"), (5, "epoch"), (5, "validation.loss"),
    ]  # fmt: skip
    losses = cli("ws", "runs.db", "sql", "select step from metrics where name = 'loss'", "--csv")
    assert losses.out.split() == ["step", *map(str, range(6))]
    assert cli("ws", "runs.db", "load", "w", "-o", "w.npy").code == OK
    assert cli("ws", "runs.db").code == OK


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (["--graph", "scores"], COMMAND, "graph scores gives f32[N, 3]; a loss is a scalar"),
        (["--graph", "rounded"], PROGRAM, "has no gradient, and is on the way from w to the loss"),
        (["--wrt", "unused"], COMMAND, "graph loss does not depend on unused"),
        (["--wrt", "w", "--freeze", "w"], COMMAND, "wrt and freeze leave nothing to train"),
        (["--batch", "61"], COMMAND, "a batch of 61 rows is larger than the data"),
        (["--validate", "none.npz"], COMMAND, "none.npz: there is no such file"),
        (["--validate", "tset"], COMMAND, "and no such part of "),
        (["--validate", "1.5"], COMMAND, "1.5 is no share"),
        (["--metric", "accuracy"], COMMAND, "metrics, and the best of them, are of validations"),
        (["--validate", "test", "--metric", "scores"], COMMAND, "a metric is a scalar"),
        (["--validate", "test", "--metric", "none"], COMMAND, "there is no graph none"),
        (["--best", "accuracy"], COMMAND, "metrics, and the best of them, are of validations"),
        (["--best", "loss"], COMMAND, "metrics, and the best of them, are of validations"),
        (["--device", "null"], COMMAND, "null"),
        (["--optimizer", "adamm"], COMMAND, "there is no optimizer adamm"),
        (["--set", "beta=1"], COMMAND, "adamw has no hyperparameter beta"),
        (["--schedule", "cosin"], COMMAND, "schedule is 'cosin'; it can be constant, linear"),
        (["--save", "x.npz"], COMMAND, "--save x.npz: write to a .opg or .safetensors file"),
        (["--save", "none/x.opg"], COMMAND, "there is no folder none"),
        (["--step-graph", "none"], COMMAND, "there is no graph none"),
        (["--save", "net.opg"], COMMAND, "--save net.opg: net.opg is a file that this run reads"),
        (
            ["--emit", "./net.opg"],
            COMMAND,
            "--emit ./net.opg: net.opg is a file that this run reads",
        ),
        (["--params", "none.safetensors"], COMMAND, "there is no such file"),
        (["-d", "label=2.5"], COMMAND, "input label is i32[N]: a number is no data for it"),
    ],
)
def test_what_cannot_be_trained(cli, net, data, arguments, code, told):
    said = cli("train", net, "-d", data, *arguments)
    assert (said.code, said.out) == (code, "")
    assert told in said.err
    assert len(said.err.splitlines()) < 15


def test_validation_data_that_is_not_finite(cli, net, data, tmp_path):
    x, label = np.full((3, 2), np.nan, np.float32), np.arange(3)
    np.savez(tmp_path / "odd.npz", x=x, label=label)
    said = cli("train", net, "-d", data, "--validate", "odd.npz")
    assert said.code == OK
    assert "warning: odd.npz: x: 3 rows have a NaN or an infinity, first row 0" in said.err


def test_a_loss_that_is_not_finite(cli, net, data):
    said = cli("train", net, "--graph", "far", "-d", f"x={data}:train_x", "--save", "x.opg")
    assert said.code == FOUND
    assert "error: the loss is NaN at step 2 (epoch 1)" in said.err
    assert "--hunt finds where it came from" in said.err
    assert not os.path.exists("x.opg")


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_and_twice_does_not(net, data, tmp_path, times):
    """After the step under way; a batch takes longer than the signals do."""
    script = f"""
import signal, sys, time
from opstep.cli.main import main
from opstep.training import recorded
stepped = recorded.RunRecord.stepped
def pressed(self, trainer, metrics):
    stepped(self, trainer, metrics)
    if trainer.step == 3:
        for _ in range({times}):
            signal.raise_signal(signal.SIGINT)
recorded.RunRecord.stepped = pressed
sys.exit(main(sys.argv[1:]))
"""
    words = ["train", net, "-d", data, *COMMON, "--epochs", 50, "-w", "runs.db"]
    words += ["--save", "learned.safetensors"]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 128 + signal.SIGINT
    assert ran.stderr.splitlines()[-1] == "interrupted"
    assert (tmp_path / "learned.safetensors").exists() == (times == 1)
    if times == 1:
        assert load_file(tmp_path / "learned.safetensors")["step"] == 3


def test_the_line_on_a_terminal(cli, net, data, monkeypatch):
    monkeypatch.setattr("opstep.training.progress.TICK_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    said = cli("train", net, "-d", data, *COMMON, "--epochs", 2, "--validate", "test")
    assert said.code == OK
    last = said.err[said.err.rindex("epoch 2/2") :]
    assert 0 < last.index("validation: loss") < last.index("rows/s")


def test_the_line_on_a_narrow_terminal_has_what_was_asked_for(cli, net, data, monkeypatch):
    monkeypatch.setattr("opstep.training.progress.TICK_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("--validate", "test", "--metric", "accuracy")
    said = cli("train", net, "-d", data, *COMMON, "--epochs", 2, *asked)
    assert said.code == OK
    assert re.search(r"epoch 2/2  loss [0-9.]+  validation: accuracy [0-9.]+ ", said.err)


@pytest.mark.slow
def test_a_first_run_says_how_many_kernels_it_compiles(net, data, tmp_path):
    """Not on a terminal, and without a word where they are kept."""
    environment = {
        **os.environ, "OPSTEP_CACHE": str(tmp_path / "kernels"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    command = [sys.executable, "-m", "opstep", "train", net, "-d", data, *COMMON, "--epochs", "1"]
    command += ["--optimizer", "sgd"]
    said = [
        subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        ).stderr
        for _ in range(2)
    ]
    first, *_, last = said[0].splitlines()
    assert first == "compiling kernels (once: they are kept)"
    assert re.search(r"^compiling \d+ kernels \(once: they are kept\)$", said[0], re.MULTILINE)
    assert last.startswith("epoch 1/1")
    assert "compiling" not in said[1] and "epoch 1/1" in said[1]


def test_the_ops_of_some_steps_are_in_a_timeline(cli, net, data):
    ways = {"plain": (), "traced": ("--trace", "t.pftrace", "--trace-steps", "3:5")}
    for name, more in ways.items():
        target = ("--save", f"{name}.safetensors")
        said = cli("train", net, "-d", data, *COMMON, "--epochs", 2, *target, *more)
        assert said.code == OK, said.err
        assert ("wrote t.pftrace" in said.err) == (name == "traced")
    plain, traced = load_file("plain.safetensors"), load_file("traced.safetensors")
    assert all(plain[n].tobytes() == traced[n].tobytes() for n in plain)
    told = cli("trace", "t.pftrace", "summary", "--json")
    (run,) = told.json["runs"]
    assert (run["graph"], run["steps"]) == ("loss_step", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trace-steps", "1:2"), "--trace-steps needs a timeline"),
        (("--trace", "t.pftrace", "--trace-steps", "2:1"), "expected LO:HI"),
        (("--trace", "t.pftrace", "--hunt"), "--trace and --hunt do not go together"),
        (("--trace", "no/such/t.pftrace"), "no/such"),
    ],
)
def test_timelines_that_cannot_be(cli, net, data, options, message):
    refused = cli("train", net, "-d", data, *COMMON, *options)
    assert refused.code == COMMAND and message in refused.err
