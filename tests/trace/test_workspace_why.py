"""Runs that diverge slowly: what left its usual range first, since when. Healthy ones: nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opstep
from opstep import optim
from opstep.cli.main import main
from opstep.trace.workspace.departures import leaving

STEPS, ONSET = 120, 50
TEXT = """
param a: f32[16, 8] = normal(std=0.3)
param ab: f32[16] = zeros()
param b: f32[1, 16] = normal(std=0.3)

graph loss(x: f32[N, 8], t: f32[N, 1]) -> f32[] {
  h = linear(x, a, ab)
  r = relu(h)
  y = linear(r, b)
  l = mse_loss(y, t)
  return l
}
"""
UNBOUNDED = """
param w: f32[4, 8] = normal(std=0.3)

graph loss(x: f32[N, 8], t: f32[N, 1]) -> f32[] {
  y = linear(x, w)
  s = square(y)
  m = mean(s)
  l = neg(m)
  return l
}
"""


def batches(grow_x=0.0, grow_t=0.0):
    random = np.random.default_rng(0)
    way = random.normal(size=(8, 1))
    for step in range(STEPS):
        x = random.normal(size=(16, 8))
        t = np.tanh(x @ way)
        after = max(0, step - ONSET)
        x = x * (1 + grow_x) ** after
        yield {"x": x.astype("f4"), "t": (t * (1 + grow_t) ** after).astype("f4")}


def recorded(path, text, kind, data=None, **options):
    """A run of training with the statistics of all its tensors."""
    program = opstep.loads(text, "net.opg").with_optimizer("loss", kind, **options)
    recording = opstep.Recording(workspace=path)
    opstep.hunt(program, "loss_step", data or batches(), seed=0, recording=recording)
    recording.close()
    return opstep.Workspace(path)


SLOW = {  # what diverges: the first tensors that are to be named, and since when
    "inputs grow": (TEXT, "adam", {"lr": 1e-3}, {"grow_x": 0.06}, {"h", "r"}, (50, 60)),
    "targets grow": (TEXT, "sgd", {"lr": 0.01}, {"grow_t": 0.1}, {"l", "d_l_sub"}, (50, 75)),
    "the rate rises": (
        TEXT, "sgd", {"lr": optim.Linear(0.01, STEPS, end=3.0)}, {},
        {"change", "a", "b"}, (20, 80),
    ),
    "a loss without a bound": (
        UNBOUNDED, "sgd", {"lr": 0.2}, {}, {"y", "s", "l", "w", "m", "d_w", "d_y", "d_s"}, (3, 30),
    ),
    "a momentum that adds up": (
        UNBOUNDED, "sgd", {"lr": 0.003, "momentum": 0.99}, {}, {"w", "w.momentum", "s"}, (5, 60),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_what_left_its_range_first_is_named(tmp_path, name):
    text, kind, options, data, first, (low, high) = SLOW[name]
    with recorded(tmp_path / "runs.db", text, kind, batches(**data), **options) as ws:
        found = ws.why("last")
    assert found.departures, name
    assert found.departures[0].tensor in first, found.departures[:5]
    assert low <= found.departures[0].step <= high, found.departures[:5]
    steps = [d.step for d in found.departures]
    assert steps == sorted(steps)
    assert all(not d.high >= abs(d.value) for d in found.departures)


HEALTHY = {
    "adam": ("adam", {"lr": 1e-3}),
    "momentum": ("sgd", {"lr": 0.02, "momentum": 0.9}),
    "cosine": (
        "adamw",
        {"lr": optim.Cosine(1e-2, steps=STEPS, warmup=20), "ema": 0.99, "clip_norm": 1.0},
    ),
    "rmsprop": ("rmsprop", {"lr": 1e-3}),
    "lion": ("lion", {"lr": 1e-3, "weight_decay": 0.1}),
    "adafactor": ("adafactor", {"lr": 1e-2}),
    "a rate at the edge": ("sgd", {"lr": 0.3}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_left_its_range_in_a_healthy_run(tmp_path, name):
    kind, options = HEALTHY[name]
    with recorded(tmp_path / "runs.db", TEXT, kind, **options) as ws:
        found = ws.why()
    assert found.departures == []
    assert (found.steps, found.early) == (STEPS, STEPS // 4)


def test_the_command_lists_them(tmp_path, capsys):
    file = str(tmp_path / "runs.db")
    recorded(file, TEXT, "adam", batches(grow_x=0.06), lr=1e-3).close()
    capsys.readouterr()
    assert main(["ws", file, "why", "--top", "3"]) == 5
    heading, columns, first, *_ = capsys.readouterr().out.splitlines()
    assert "120 steps" in heading and "in the first 30 steps" in heading
    assert columns.split() == ["step", "tensor", "figure", "usual", "then", "last", "op", "where"]
    assert first.split()[1] == "h" and "net.opg:7" in first
    assert main(["ws", file, "why", "--json"]) == 5
    data = json.loads(capsys.readouterr().out)
    assert data["departures"][0]["tensor"] == "h" and data["departures"][0]["line"] == 7


def test_a_healthy_run_is_told_as_such(tmp_path, capsys):
    file = str(tmp_path / "runs.db")
    recorded(file, TEXT, "adam", lr=1e-3).close()
    assert main(["ws", file, "why"]) == 0
    assert "nothing left its usual range" in "".join(capsys.readouterr())


def test_of_a_run_without_statistics_metrics_are_looked_at(tmp_path):
    file = tmp_path / "runs.db"
    columns = {"x": np.ones((400, 8), "f4"), "t": np.ones((400, 1), "f4")}
    program = opstep.loads(UNBOUNDED)
    opstep.train(program, columns, optimizer="sgd", lr=0.05, batch=8, workspace=file)
    with opstep.Workspace(file) as ws:
        found = ws.why()
    assert [d.figure for d in found.departures] == ["loss"]
    assert found.departures[0].last < found.departures[0].value < 0


STEADY = np.tile([1.0, 1.2, 0.9, 1.1], 25)
SERIES = {  # how a figure goes: where it leaves its range
    "steady": (STEADY, None),
    "zeros": (np.zeros(100), None),
    "falls": (STEADY * 0.9 ** np.arange(100), None),
    "grows as the steps do": (STEADY * np.arange(1, 101), None),
    "one spike": (np.where(np.arange(100) == 60, 50, STEADY), None),
    "zeros, then steady": (np.r_[np.zeros(20), STEADY[:80]], None),
    "a step up": (np.where(np.arange(100) >= 60, 40, STEADY), 60),
    "grows from 60 on": (STEADY * 1.2 ** np.maximum(0, np.arange(100) - 60), 64),
    "NaNs from 70 on": (np.where(np.arange(100) >= 70, np.nan, STEADY), 70),
    "at the very end": (np.where(np.arange(100) >= 99, 1e6, STEADY), 99),
    "a little at the very end": (np.where(np.arange(100) >= 99, 20, STEADY), None),
    "NaNs at once": (np.full(100, np.nan), 0),
}


@pytest.mark.parametrize("name", SERIES)
def test_where_a_figure_leaves_its_range(name):
    values, expected = SERIES[name]
    found = leaving(np.arange(100), values, 25)
    if expected is None:
        assert found is None
    else:
        assert found is not None and abs(found.at - expected) <= 2
