"""From a NaN to where it was born: launches that hunt, recorded runs, and going back to an op."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dap.client import Client, Refused

PROGRAM = """\
graph main(x: f32[N]) -> f32[N] {
  y = inner(x)
  z = add(y, 1.0)
  return z
}

graph inner(x: f32[N]) -> f32[N] {
  l = log(x)
  h = mul(x, l)
  return h
}
"""
X = {"x": [0.0, 0.0, 2.0]}


@pytest.fixture
def path(program):
    return program(PROGRAM)


def top(client: Client) -> dict:
    return client.stack()[0]


def report(client: Client, **of: str) -> dict:
    return client.request("opstep/nanReport", frameId=top(client)["id"], **of)


@pytest.mark.parametrize(
    "hunt, line, word",
    [(True, 8, "infinity"), ({"value": "h", "line": 9}, 9, "NaN"), ({"value": "no"}, 8, "log")],
)
def test_a_launch_that_hunts_stops_behind_the_op(client, path, hunt, line, word):
    client.start(path, inputs=X, hunt=hunt)
    stop = client.expect_stop("exception")
    assert word in stop["text"]
    assert (top(client)["name"], top(client)["line"]) == ("y = inner", line)
    link = report(client)["links"][0]
    assert link["kind"] == "origin"
    assert link["through"] == [{"path": str(path), "line": 2}]
    client.go("stepBack", "step")
    assert top(client)["line"] == line


@pytest.mark.parametrize("hunt", [{"lines": 9}, {"value": "h", "Line": 9}])
def test_a_field_of_a_hunt_that_does_not_exist_is_refused(client, path, hunt):
    with pytest.raises(Refused, match=r"hunt has no [lL]ines?; it can have value, line"):
        client.launch(path, inputs=X, hunt=hunt)


UNDERFLOW = """\
graph main(x: f32[2]) -> f32[2] {
  small = exp(x)
  same = identity(small)
  l = log(same)
  return l
}
"""


def test_a_report_says_what_was_lost_before(client, program):
    path = program(UNDERFLOW)
    client.start(path, inputs={"x": [0.0, -200.0]}, hunt=True)
    client.expect_stop("exception")
    (link,) = report(client)["links"]
    before = link["before"]
    assert before["text"] == "small[1] = 0: underflow of f32 to 0"
    assert (before["op"], before["line"], before["path"]) == ("exp", 2, str(path))


def test_what_was_0_to_begin_with_has_nothing_before_it(client, path):
    client.start(path, inputs=X, hunt=True)
    client.expect_stop("exception")
    assert "before" not in report(client)["links"][-1]


def test_a_hunt_that_finds_nothing_stops_at_the_begin(client, path):
    client.start(path, inputs={"x": [1.0, 2.0, 3.0]}, hunt=True)
    client.expect_stop("entry")
    assert "no NaN or infinity came out" in client.output("important")


def test_the_bad_step_of_several_is_the_first_of_the_session(client, program):
    path = program(
        "state s: f32[] = 2.0\n\ngraph main() -> f32[] {\n"
        "  d = sub(s, 1.0)\n  l = log(d)\n  s <- d\n  return l\n}\n"
    )
    client.start(path, steps=5, hunt=True)
    client.expect_stop("exception")
    assert top(client)["line"] == 5
    frame = top(client)["id"]
    assert client.request("evaluate", expression="s", frameId=frame)["result"] == "1.0"


def test_a_recorded_run_is_debugged_with_its_inputs(client, path, tmp_path):
    given = ["-i", "x=-1", "-s", "N=2", "-w", str(tmp_path / "runs.db")]
    subprocess.run([sys.executable, "-m", "opstep", "run", str(path), *given], check=True)
    client.start(path, workspace=str(tmp_path / "runs.db"), run="last", hunt=True)
    client.expect_stop("exception")
    assert (top(client)["line"], top(client)["source"]["path"]) == (8, str(path))
    frame = top(client)["id"]
    assert client.request("evaluate", expression="x", frameId=frame)["result"] == "[-1.0, -1.0]"


def test_a_recorded_run_whose_file_has_changed_shows_the_text_that_ran(client, path, tmp_path):
    given = ["-i", "x=-1", "-s", "N=2", "-w", str(tmp_path / "runs.db")]
    subprocess.run([sys.executable, "-m", "opstep", "run", str(path), *given], check=True)
    path.write_text("# another\n" + PROGRAM)
    client.start(path, workspace=str(tmp_path / "runs.db"), run="last", hunt=True)
    client.expect_stop("exception")
    source = top(client)["source"]
    text = client.request("source", sourceReference=source["sourceReference"], source=source)
    assert text["content"] == PROGRAM


def test_a_recorded_run_needs_its_workspace(client, path):
    client.initialize()
    with pytest.raises(Refused, match="a recorded run is in a workspace"):
        client.request("launch", program=str(path), run="last")
    with pytest.raises(Refused, match="there is no workspace"):
        client.request("launch", program=str(path), run="last", workspace="no.db")


def test_a_run_without_debugging_tells_where_its_nan_was_born(client, path):
    client.start(path, inputs=X, noDebug=True)
    client.expect_end()
    found = [e["body"]["data"]["findings"] for e in client.events if "data" in e.get("body", {})]
    assert [(f["value"], f["line"]) for f in found[0]["findings"]] == [("l", 8), ("h", 9)]
    assert "log of 0" in client.output("console")


def test_the_end_leads_back_to_where_it_was_born(client, path):
    client.start(path, inputs=X)
    client.expect_stop("pause")
    links = report(client, name="z")["links"]
    assert [(link["name"], link["kind"]) for link in links] == [
        ("z", "propagated"), ("h", "origin"), ("l", "origin"),
    ]  # fmt: skip
    assert not any("here" in link for link in links)
    assert [link.get("caused") for link in links] == [[], ["l"], []]
    assert [(link["explained"], link["size"]) for link in links[1:]] == [(2, 3), (2, 3)]
    client.request("opstep/goToOp", memoryReference=links[2]["memoryReference"])
    assert client.events[-1]["event"] == "continued"  # else clients would keep the old reason
    stop = client.expect_stop("exception")
    assert stop["text"] == "l, the result of log: 2 inf of 3 elements; l has run"
    assert top(client)["line"] == 8
    assert report(client)["links"][0]["here"]
    client.go("next", "step")
    assert top(client)["line"] == 9


def test_what_came_from_outside_has_no_op(client, path):
    client.start(path, inputs=X, stopOnEntry=True)
    client.expect_stop("entry")
    client.request("setExpression", expression="x[0]", value="nan", frameId=top(client)["id"])
    (link,) = report(client, name="x")["links"]
    with pytest.raises(Refused, match="came from outside"):
        client.request("opstep/goToOp", memoryReference=link["memoryReference"])


def test_after_a_set_the_report_is_of_the_new_value(client, path):
    client.start(path, inputs=X, filters=["inf-origin"])
    client.expect_stop("exception")
    assert report(client)["links"][0]["count"] == 2
    frame = top(client)["id"]
    client.request("setExpression", expression="x[0]", value="1", frameId=frame)
    assert report(client)["links"][0]["count"] == 1
    frame = top(client)["id"]
    client.request("setExpression", expression="x[1]", value="1", frameId=frame)
    assert report(client) == {"found": False, "text": "l is finite", "links": []}
    assert client.request("exceptionInfo", threadId=1)["description"] == "l is finite"


@pytest.mark.parametrize(
    "size, told",
    [
        (3, "3 of 3 elements born here"),
        (500, "64 of 64 elements looked at, 500 born here"),
    ],
)
def test_a_rule_says_of_how_many_elements_it_tells(client, program, size, told):
    path = program("graph main(x: f32[N]) -> f32[N] {\n  y = log(x)\n  return y\n}\n")
    client.start(path, inputs={"x": [-1.0] * size}, filters=["nan-origin"])
    client.expect_stop("exception")
    assert f"log of a negative number: {told}" in report(client)["text"]
