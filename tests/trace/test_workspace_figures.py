"""What ``plot`` asks for, and what it draws."""

from __future__ import annotations

import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspaces import HALVING, ROOTS, record

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import figures
from opstep.trace.workspace.picture import draw, spread


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("stats.absmax", ("stats", "absmax", {})),
        ("metrics.head.loss where run=*", ("metrics", "head.loss", {"run": ["*"]})),
        (
            " stats.nan  where op=relu|conv*, step = 0..99 and value='conv1.*'",
            ("stats", "nan", {"op": ["relu", "conv*"], "step": ["0..99"], "value": ["conv1.*"]}),
        ),
        ("executions.seconds where op=a, op=b", ("executions", "seconds", {"op": ["a", "b"]})),
    ],
)
def test_what_is_asked_for(text, expected):
    assert tuple(figures.parse(text)) == expected


@pytest.mark.parametrize(
    "text, column, message",
    [
        ("", 1, "expected TABLE.COLUMN"),
        ("stat.mean", 1, "did you mean stats?"),
        ("stats.meen", 7, "did you mean mean?"),
        ("executions.bytes", 12, "there are: seconds"),
        ("stats.mean were op=relu", 12, "expected: where"),
        ("stats.mean where", 12, "expected: where"),
        ("stats.mean where opp=relu", 18, "did you mean op?"),
        ("stats.mean where op=relu, step", 27, "expected KEY=VALUE"),
        ("stats.mean where op=relu, step=x", 27, "step is a number, or two"),
        ("stats.mean where op=|relu", 18, "expected KEY=VALUE"),
        ("metrics.loss where op=relu", 20, "metrics has no op"),
    ],
)
def test_what_is_wrong_is_pointed_at(text, column, message):
    with pytest.raises(InputError) as caught:
        figures.parse(text)
    assert str(caught.value).startswith(f"plot:1:{column}: error:")
    assert message in str(caught.value)


def test_lines_of_statistics(path):
    record(path, steps=4)
    record(path, steps=2)
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines("stats.mean where op=relu, run=1")
        assert (line.name, line.site, line.xs) == ("r", "main/r", [0, 1, 2, 3])
        assert line.ys == [s.statistics.mean for s in ws.run(1).stats("relu")]
        (latest,) = ws.lines("stats.mean where value=r")
        assert latest.xs == [0, 1], "of the last run"
        assert len(ws.lines("stats.mean where value=r|y, run=*")) == 4
        assert [x.name for x in ws.lines("stats.std where op=main/[rq]")] == ["r", "q"]
        (part,) = ws.lines("stats.mean where op=relu, run=1, step=1..2")
        assert part.ys == line.ys[1:3]
        (metric,) = ws.lines("metrics.loss where run=1")
        assert metric.ys == ws.run(1).metric("loss")
        assert {x.name for x in ws.lines("metrics.value")} == {"loss", "seconds"}
        (times,) = ws.lines("executions.seconds where op=relu")
        assert times.ys == [e.seconds for e in ws.run(2).executions("relu")]


def test_turns_of_a_loop_lie_within_the_step(path):
    record(path, opstep.loads(HALVING), {"x": np.array([9.0], np.float32)}, steps=2)
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines("stats.max where op=mul")
        assert line.xs == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]
        assert line.ys == [4.5, 2.25, 1.125, 0.5625] * 2


def test_steps_with_nan_are_marked(path):
    record(path, opstep.loads(ROOTS), {"x": np.array([0.5, 2], np.float32)}, steps=2)
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines("stats.max where value=root")
        assert (line.ys, line.odd) == ([1.0, 1.0], [0, 1])
        (line,) = ws.lines("metrics.total")
        assert (line.ys, line.odd) == ([None, None], [0, 1])


@pytest.mark.parametrize(
    "text, message",
    [
        ("stats.mean where op=reluu", "did you mean relu?"),
        ("metrics.los", "did you mean loss?"),
        ("stats.mean where run=77", "there is no run 77"),
        ("stats.mean where step=99", "nothing fits in run "),
    ],
)
def test_nothing_to_draw(path, text, message):
    record(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError) as caught:
        ws.lines(text)
    assert message in str(caught.value)


def test_what_another_run_has(path):
    first = record(path)
    last = record(path, opstep.loads(ROOTS), {"x": np.ones(3, np.float32)})
    with opstep.Workspace(path) as ws:
        for text, hint in (
            (
                "stats.absmax where op=relu",
                f"run {first} (main) has some: add run={first}, or run=*",
            ),
            ("stats.absmax where op=conv*", "there are ops input, mul, sqrt, sub, sum"),
        ):
            with pytest.raises(InputError) as caught:
                ws.lines(text)
            assert f"nothing fits in run {last} (main)" in str(caught.value)
            assert hint in str(caught.value)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "text, shown",
    [
        ("stats.absmax where run=*", ["stats.absmax where run=*", "step", "absmax", "q @"]),
        ("metrics.loss where run=1", ["loss", "main of train.opg, run "]),
        ("stats.mean where step=0", ["mean", "step 0", "loss", "bias"]),
        ("executions.seconds where op=relu", ["µs an execution"]),
        ("metrics.seconds", ["a step"]),
    ],
)
def test_pictures_say_what_they_show(path, tmp_path, text, shown):
    pytest.importorskip("matplotlib")
    for _ in range(2):
        record(path, steps=3)
    wanted = figures.parse(text)
    with opstep.Workspace(path) as ws:
        draw(tmp_path / "a.svg", wanted, ws.lines(wanted), text)
    texts = "\n".join(
        t.text or "" for t in ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")
    )
    assert all(word in texts for word in shown), texts


def test_one_step_is_points_with_their_values(path, tmp_path):
    pytest.importorskip("matplotlib")
    record(path, steps=1)
    wanted = figures.parse("metrics.loss")
    with opstep.Workspace(path) as ws:
        (line,) = ws.lines(wanted)
        draw(tmp_path / "a.svg", wanted, [line], "loss")
    picture = ElementTree.parse(tmp_path / "a.svg")
    texts = [t.text for t in picture.iter(f"{SVG}text")]
    assert f"{line.ys[0]:.4g}" in texts and "loss" in texts
    parts = [g.get("id", "") for g in picture.iter(f"{SVG}g")]
    assert any(p.startswith("PathCollection") for p in parts)  # and no bar, which is a patch
    assert len([p for p in parts if p.startswith("patch_")]) == 4


def test_logarithmic_scales_have_plain_numbers(path, tmp_path):
    pytest.importorskip("matplotlib")
    record(path, steps=3)
    wanted = figures.parse("metrics.loss")
    with opstep.Workspace(path) as ws:
        run = ws.lines(wanted)[0].run
    for ys in ([1000.0, 0.5, 0.01], [0.02, 0.07], [2000.0]):
        line = figures.Line("loss", "loss", run, list(range(len(ys))), list(ys))
        draw(tmp_path / "a.svg", wanted, [line], "loss", log=True)
        texts = {t.text for t in ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")}
        assert texts & {"0.1", "0.03", "1000"}
        assert not any("{" in (text or "") for text in texts), texts


@pytest.mark.parametrize("text", ["metrics.total", "stats.max where step=0", "stats.nan"])
def test_pictures_of_what_is_not_finite(path, tmp_path, text):
    pytest.importorskip("matplotlib")
    record(path, opstep.loads(ROOTS), {"x": np.array([0.5], np.float32)}, steps=3)
    wanted = figures.parse(text)
    with opstep.Workspace(path) as ws:
        draw(tmp_path / "a.svg", wanted, ws.lines(wanted), text)
        draw(tmp_path / "a.png", wanted, ws.lines(wanted), text)
    assert "NaN or inf" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_same_picture_has_the_same_bytes(path, tmp_path):
    pytest.importorskip("matplotlib")
    record(path, steps=3)
    wanted = figures.parse("stats.absmax")
    with opstep.Workspace(path) as ws:
        for name in ("a.svg", "b.svg"):
            draw(tmp_path / name, wanted, ws.lines(wanted), "x")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_matplotlib(path, tmp_path, monkeypatch):
    record(path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    wanted = figures.parse("stats.mean")
    with (
        opstep.Workspace(path) as ws,
        pytest.raises(InputError, match=r"pip install .opstep\[viewer\]"),
    ):
        draw(tmp_path / "a.png", wanted, ws.lines(wanted), "x")


@given(st.lists(st.floats(0, 100), max_size=12), st.floats(0.1, 8))
def test_names_stand_apart(wanted, gap):
    wanted.sort()
    found = spread(wanted, gap, 0, 100)
    assert len(found) == len(wanted)
    assert all(b - a >= gap * 0.999 for a, b in pairwise(found))
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in found)
    loose = all(b - a > gap * 1.001 for a, b in pairwise(wanted))
    if loose:
        assert found == wanted
