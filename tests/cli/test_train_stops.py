"""``opstep train --hunt`` and ``--watch``: what ends a run that goes wrong, and what is told."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.cli.common import COMMAND, FOUND, OK

NET = """\
param w: f32[3, 2] = normal(std=0.5)

graph loss(x: f32[N, 2], label: i32[N]) -> f32[] {
  y = linear(x, w)
  p = softmax(y, axis=1)
  lp = log(p)
  l = nll_loss(lp, label)
  return l
}
"""


@pytest.fixture
def net(write):
    return write("net.opg", NET)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(64, 2)).astype("f4"), np.arange(64, dtype="i4") % 3
    np.savez(tmp_path / "good.npz", x=x, label=label)
    x[41] = 1e5
    np.savez(tmp_path / "bad.npz", x=x, label=label)


def test_a_hunt_tells_the_row_of_the_data(cli, net, data):
    ran = cli("train", net, "-d", "bad.npz", "--batch", 16, "--hunt", "-w", "runs.db")
    assert ran.code == FOUND
    lines = ran.out.splitlines()
    assert lines[0].startswith("loss_step: step ") and lines[0].endswith("first in the forward")
    assert lines[2].startswith("origin: infinity born in log lp at loss_grad, net.opg:6: log of 0")
    assert "(row 41 of the data): x[" in ran.out
    (run,) = opstep.Workspace("runs.db").runs
    assert "origin" in {f.kind for f in run.findings}


def test_a_hunt_as_json(cli, net, data):
    ran = cli("train", net, "-d", "bad.npz", "--batch", 16, "--hunt", "--json")
    assert ran.code == FOUND
    told = ran.json
    assert told["outcome"] == "failed" and told["hunt"]["step"] == told["steps"]
    first = told["hunt"]["findings"][0]
    assert (first["phase"], first["op"], first["line"]) == ("forward", "log", 6)
    assert [row["data_row"] for row in first["rows"]] == [41]


def test_a_watch_tells_the_history(cli, net, data):
    ran = cli("train", net, "-d", "good.npz", "--batch", 16, "--epochs", 50, "--optimizer", "sgd",
              "--lr", 5, "--watch", "l2(w) > 3", "--watch", "absmax(d_*) > 1e9",
              "-w", "runs.db")  # fmt: skip
    assert ran.code == FOUND
    lines = ran.out.splitlines()
    assert "l2(w) > 3 holds" in lines[0] and lines[1] == "  l2(w) by step:"
    values = [float(line.split()[1]) for line in lines[2:]]
    assert values[-1] > 3 >= max(values[:-1])
    with opstep.Workspace("runs.db") as ws:
        (run,) = ws.runs
        (finding,) = [f for f in run.findings if f.kind == "condition"]
        assert "l2(w) > 3 holds: l2(w) is" in finding.message
        assert len(run.metric("l2.w")) == len(run.metric("absmax.d_w")) == run.steps
    told = cli("train", net, "-d", "good.npz", "--watch", "loss > 0", "--json").json
    assert told["watch"]["step"] == 0 and "loss" in told["watch"]["conditions"][0]["history"]


def test_a_healthy_run_goes_on_to_its_end(cli, net, data):
    same = []
    for options in ([], ["--hunt", "--watch", "absmax(*) > 1e9"]):
        ran = cli(
            "train", net, "-d", "good.npz", "--batch", 16, "--save", "w.safetensors", *options
        )
        assert ran.code == OK and "4 steps" in ran.out
        with open("w.safetensors", "rb") as file:
            same.append(file.read())
    assert same[0] == same[1]


def test_a_wrong_condition_is_pointed_at_before_training(cli, net, data):
    ran = cli("train", net, "-d", "good.npz", "--watch", "absmax(e_*) > 1")
    assert ran.code == COMMAND
    assert "condition:1:8: error: no value of the step is called e_*" in ran.err
    assert "\n         ^^^\n" in ran.err and "epoch" not in ran.err


def test_a_metric_of_a_watch_is_told_by_why(cli, net, data):
    cli("train", net, "-d", "good.npz", "--batch", 8, "--epochs", 30, "--watch", "l2(w) > 1e9",
        "-w", "runs.db")  # fmt: skip
    ran = cli("ws", "runs.db", "why")
    assert ran.code == OK and "nothing left its usual range" in ran.err
