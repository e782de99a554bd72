"""Data breakpoints in sessions on Python scripts: other values, writes by ops, what turns true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dap.client import markers_of
from dap.test_python_sessions import Session

pytest.importorskip("torch")

SCRIPT = """\
import torch


def run(x, n):
    h = x  # break: first
    for k in range(n):
        h = h * 10  # break: product
        bound = k > 5
    h.add_(1)  # break: write
    torch.nn.functional.relu(h, inplace=True)  # break: relu
    return h  # break: return


layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for turn in range(2):  # break: loop
    count = turn  # break: count
    run(layer(torch.ones(2)), 3).sum().backward()  # break: calling
    optimizer.step()  # break: step
print("done")
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def watch(session: Session, *points: dict[str, Any]) -> list[dict[str, Any]]:
    """Watches expressions of the top frame."""
    frame = session.frames[0]["id"]
    wanted = []
    for one in points:
        info = session.request("dataBreakpointInfo", name=one["name"], frameId=frame)
        assert info["accessTypes"] == ["write"] and info["description"] == one["name"]
        rest = {k: v for k, v in one.items() if k != "name"}
        wanted.append({"dataId": info["dataId"], **rest})
    return session.request("setDataBreakpoints", breakpoints=wanted)["breakpoints"]


def go(session: Session, reason: str = "data breakpoint") -> tuple[int, dict[str, Any]]:
    session.request("continue", threadId=1)
    return session.at(reason)


def test_a_predicate_turns_true(session, script):
    lines = markers_of(script)
    session.begin(script, "first")
    session.at("breakpoint")
    session.set_breakpoints(script, [])
    (answer,) = watch(session, {"name": "op.absmax(h) > 50 * op.absmax(x)"})
    assert answer["verified"]
    line, stop = go(session)
    assert line == lines["product"] + 1 and session.evaluate("k") == "1"
    assert stop["hitBreakpointIds"] == [answer["id"]]
    assert stop["text"] == "op.absmax(h) > 50 * op.absmax(x) has become true"
    assert go(session)[0] == lines["product"] + 1 and session.evaluate("turn") == "1"
    session.request("setDataBreakpoints", breakpoints=[])
    session.request("continue", threadId=1)
    session.expect_end(0)


def test_other_values_and_writes_of_a_tensor(session, script):
    lines = markers_of(script)
    session.begin(script, "write")
    session.at("breakpoint")
    watch(session, {"name": "h"})
    line, stop = go(session)  # within the line: the op has run
    assert line == lines["write"] and stop["text"] == "aten::add_ has written h"
    line, stop = go(session)
    assert line == lines["relu"] and stop["text"] == "aten::relu_ has written h"
    line, stop = go(session)
    assert line == lines["first"] + 1 and stop["text"] == "h has another value"
    assert go(session)[0] == lines["product"] + 1
    session.request("setDataBreakpoints", breakpoints=[])
    session.request("continue", threadId=1)
    line, _ = session.at("breakpoint")  # the client's own are as they were
    assert line == lines["write"]


def test_a_variable_is_watched_by_its_place(session, script):
    lines = markers_of(script)
    session.begin(script, "count")
    session.at("breakpoint")
    scopes = session.request("scopes", frameId=session.frames[0]["id"])["scopes"]
    reference = scopes[0]["variablesReference"]
    found = session.request("variables", variablesReference=reference)["variables"]
    (layer,) = (v for v in found if v["name"] == "layer")
    session.request("variables", variablesReference=layer["variablesReference"])
    asked = {"variablesReference": layer["variablesReference"], "name": "weight"}
    info = session.request("dataBreakpointInfo", **asked)
    assert info["description"] == "layer.weight"
    count = session.request("dataBreakpointInfo", name="count", variablesReference=reference)
    wanted = [
        {"dataId": info["dataId"], "condition": "turn == 1"},
        {"dataId": count["dataId"], "condition": "count == 1"},
    ]
    answers = session.request("setDataBreakpoints", breakpoints=wanted)["breakpoints"]
    session.set_breakpoints(script, [])
    line, stop = go(session)
    assert (line, stop["hitBreakpointIds"]) == (lines["calling"], [answers[1]["id"]])
    line, stop = go(session)
    assert (line, stop["hitBreakpointIds"]) == (lines["step"], [answers[0]["id"]])
    assert stop["text"] == "aten::add_ has written layer.weight"


def test_breakpoints_of_the_client_on_watched_lines(session, script):
    lines = markers_of(script)
    session.begin(script, "first")
    session.at("breakpoint")
    points = ({"name": "h", "condition": "op.isnan(h)"}, {"name": "1 +"}, {"name": "x > 1"})
    good, *bad = watch(session, *points)
    assert good["verified"] and [b["verified"] for b in bad] == [False, False]
    assert "invalid syntax" in bad[0]["message"]
    assert bad[1]["message"].startswith("cannot be evaluated: RuntimeError: Boolean value of")
    session.request("setDataBreakpoints", breakpoints=[])
    watch(session, points[0])
    points = [
        {"line": lines["product"], "condition": "k == 2"}, {"line": lines["return"]},
        {"line": lines["write"], "logMessage": "h is {h.shape}"},
    ]  # fmt: skip
    source = {"path": str(script)}
    answers = session.request("setBreakpoints", source=source, breakpoints=points)["breakpoints"]
    assert [a["line"] for a in answers] == [p["line"] for p in points]
    assert go(session, "breakpoint")[0] == lines["product"] and session.evaluate("k") == "2"
    assert go(session, "breakpoint")[0] == lines["return"]
    assert "h is torch.Size([2])" in session.output("stdout")


def test_ids_that_it_did_not_give(session, script):
    """They are not verified; those beside them hold."""
    session.begin(script, "count")
    session.at("breakpoint")
    frame = session.frames[0]["id"]
    count = session.request("dataBreakpointInfo", name="turn", frameId=frame)["dataId"]
    strange = ["", "a", "[]", '{"expression": "turn", "path": 1, "line": 2, "frame": 3}']
    given = [{"dataId": one} for one in (strange[0], count, *strange[1:])]
    found = session.request("setDataBreakpoints", breakpoints=given)["breakpoints"]
    assert [one["verified"] for one in found] == [False, True, False, False, False]


PARTS = """\
import torch

x = torch.zeros(4)
for k in range(3):
    x += 1  # break: add
    y = k
    z = y
print("done")
"""


@pytest.mark.parametrize("name", ["x[0]", "x[1:]", "x.sum()", "x[0].item()", "x.tolist()[0]"])
def test_parts_and_sums_stop_where_they_change(session, script, name):
    script.write_text(PARTS)
    add = markers_of(script)["add"]
    session.begin(script, "add")
    session.at("breakpoint")
    session.set_breakpoints(script, [])
    watch(session, {"name": name})
    for k in range(3):
        line, stop = go(session)
        assert line in (add, add + 1) and stop["text"].endswith("has another value"), (k, line)
    session.request("continue", threadId=1)
    session.expect_end(0)
