"""Plots over the language server: lines by step, few points that look like all of them."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from workspace_client import STEPS, Asking, asking, make

from opstep.trace.workspace.browsing.plots import downsample


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    path = tmp_path_factory.mktemp("workspace") / "runs.db"
    return path, make(path)


@pytest.fixture(scope="module")
def ask(made):
    with asking(made[0]) as asked:
        yield asked


def test_a_figure_by_step_is_what_the_workspace_holds(made, ask: Asking):
    plot = ask("plot", query="p", what="stats.absmax where value=q, run=1")
    (line,) = plot["lines"]
    rows = sqlite3.connect(made[0]).execute(
        "select step, absmax from stat_history where run = 1 and value = 'q' order by step"
    )
    steps, values = zip(*rows, strict=True)
    assert line["xs"] == list(steps)
    assert line["ys"] == pytest.approx(values, rel=1e-6)
    assert (line["label"], line["site"], line["points"]) == ("q", "main/q", STEPS)
    assert (plot["axis"], plot["unit"], plot["all"], plot["odd"]) == ("step", "", 1, [])


def test_runs_stand_beside_each_other(made, ask: Asking):
    plot = ask("plot", query="p", what=f"metrics.loss where run={made[1][0]}|{made[1][1]}")
    assert {line["run"] for line in plot["lines"]} == set(made[1][:2])
    assert {line["label"] for line in plot["lines"]} == {f"loss @{key}" for key in made[1][:2]}


def test_steps_with_nans_are_marked_and_are_gaps(ask: Asking):
    plot = ask("plot", query="p", what="metrics.total")
    assert plot["lines"][0]["ys"] == [None] * 5
    plot = ask("plot", query="p", what="stats.max")
    assert [odd["x"] for odd in plot["odd"]] == [0, 1, 2, 3, 4]
    assert plot["odd"][0] == {"x": 0, "count": 3, "labels": ["root", "twice", "total"]}


@pytest.mark.parametrize(
    "what, unit",
    [
        ("metrics.seconds", "seconds"), ("executions.seconds where op=sqrt", "seconds"),
        ("stats.nan", "elements"), ("stats.mean", ""),
        ("metrics.value where name=seconds", "seconds"),
    ],
)  # fmt: skip
def test_units(ask: Asking, what, unit):
    assert ask("plot", query="p", what=what)["unit"] == unit


@pytest.mark.parametrize(
    "what, message, hint, marked",
    [
        ("stats.absmx where op=relu", "stats has no figure absmx", "did you mean absmax?", "absmx"),
        ("stat.absmax", "expected TABLE.COLUMN", "did you mean stats?", "stat"),
        ("stats.mean where ops=relu", "stats has no ops", "did you mean op?", "ops=relu"),
        ("stats.mean where value=nope", "nothing fits", "", None),
    ],
)
def test_errors_of_a_plot_stand_at_their_place(ask: Asking, what, message, hint, marked):
    problem = ask("plot", query="p", what=what)["problem"]
    assert problem["message"].startswith(message) and hint in problem["hint"]
    if marked:
        assert what[problem["start"] : problem["end"]] == marked


def test_columns_of_an_answer_are_drawn(ask: Asking):
    ask.whole("select step, name, value from metrics where run = 1")
    plot = ask("plotRows", query="q", x=0, ys=[2], by=1)
    assert sorted(line["label"] for line in plot["lines"]) == ["loss", "seconds"]
    assert all(line["xs"] == list(range(STEPS)) for line in plot["lines"])
    ask.whole("select column1 as x, column2 as y from (values (2, 1.0), (1, 9e999), (3, null))")
    plot = ask("plotRows", query="q", x=0, ys=[1])
    assert (plot["lines"][0]["xs"], plot["lines"][0]["ys"]) == ([1, 2, 3], [None, 1.0, None])
    assert plot["odd"] == [{"x": 1, "count": 1, "labels": ["y"]}]
    ask.whole("select 'a' as x, 'b' as y")
    assert "no numbers" in ask("plotRows", query="q", x=0, ys=[1])["problem"]["message"]


def test_all_points_are_exported(tmp_path, ask: Asking):
    target = tmp_path / "plot.csv"
    told = ask("exportPlot", query="e", what="metrics.loss where run=1|2", file=str(target))
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert told["rows"] == len(rows) == 2 * STEPS
    assert list(rows[0]) == ["line", "site", "run", "step", "value"]


def test_many_points_are_thinned_to_what_a_screen_shows(tmp_path, made):
    path = tmp_path / "many.db"
    make(path)
    connection = sqlite3.connect(path)
    count = 200_000
    wave = np.sin(np.arange(count) / 5000)
    wave[123_456] = 50.0
    rows = ((1, k, "wave", None if k == 77_777 else float(y)) for k, y in enumerate(wave))
    connection.executemany("insert into metrics values (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    with asking(path) as ask:
        plot = ask("plot", query="p", what="metrics.wave where run=1", points=1000)
        (line,) = plot["lines"]
        assert plot["points"] == count and len(line["xs"]) <= 1000
        assert max(y for y in line["ys"] if y is not None) == 50, "no peak is lost"
        assert line["ys"][line["xs"].index(77_777)] is None, "nor is a gap"
        assert line["xs"][0] == 0 and line["xs"][-1] == count - 1
        near = ask(
            "plot", query="p", what="metrics.wave where run=1", points=1000, low=1000, high=1500
        )
        (line,) = near["lines"]
        assert line["xs"] == list(range(999, 1502)), "all of a small part, and to its edges"


@pytest.mark.parametrize("count", [0, 1, 3, 999, 1000, 1001, 54_321])
@pytest.mark.parametrize("kind", ["noise", "gaps", "flat", "all gaps", "same x"])
def test_thinning_keeps_ends_order_and_extremes(count, kind):
    random = np.random.default_rng(count)
    xs = np.sort(random.integers(0, 10_000, count)).astype(float)
    ys = random.standard_normal(count)
    if kind == "gaps":
        ys[random.random(count) < 0.3] = np.nan
    elif kind == "flat":
        ys[:] = 1.0
    elif kind == "all gaps":
        ys[:] = np.nan
    elif kind == "same x":
        xs[:] = 5.0
    x, y = downsample(xs, ys, 300)
    assert len(x) == len(y) and (count <= 300) == (len(x) == count)
    assert (np.diff(x) >= 0).all()
    if count:
        assert (x[0], x[-1]) == (xs[0], xs[-1])
        assert len(x) <= max(300, 302)
    if count and not np.isnan(ys).all():
        assert (np.nanmin(y), np.nanmax(y)) == (np.nanmin(ys), np.nanmax(ys))
    known = set(zip(xs.tolist(), np.nan_to_num(ys, nan=99).tolist(), strict=True))
    assert set(zip(x.tolist(), np.nan_to_num(y, nan=99).tolist(), strict=True)) <= known
