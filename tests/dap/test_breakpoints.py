"""Breakpoints over the wire: what the client is told, and where it stops."""

from __future__ import annotations

import pytest
from dap.client import markers_of

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture
def begun(client, loops):
    client.start(loops, graph="main", inputs=INPUT, stopOnEntry=True)
    client.expect_stop("entry")
    return client


def stops(client) -> int:
    """How often it stops from here to the end."""
    count = 0
    while True:
        client.request("continue", threadId=1)
        if client.expect_any("stopped", "exited") == "exited":
            client.expect("terminated")
            return count
        count += 1


def test_a_line_moves_to_the_next_statement(begun, loops):
    marks = markers_of(loops)
    told = begun.set_breakpoints(loops, [marks["scaling"], marks["scaling"] - 1, 1, 9999])
    assert [b["verified"] for b in told] == [True, True, False, False]
    assert told[1]["line"] == marks["scaling"]
    assert told[2]["message"] and told[2]["reason"] == "failed"
    assert len({b["id"] for b in told}) == 4
    stop = begun.go("continue", "breakpoint")
    assert stop["hitBreakpointIds"] == [told[0]["id"], told[1]["id"]]


def test_a_file_of_another_program(begun, tmp_path):
    other = tmp_path / "other.opg"
    other.write_text("graph g(x: f32[1]) -> f32[1] {\n  y = relu(x)\n  return y\n}\n")
    told = begun.set_breakpoints(other, [2])
    assert told[0]["verified"] is False and told[0]["message"] == "the program has no such file"


def test_locations(begun, loops):
    marks, source = markers_of(loops), {"path": str(loops)}
    found = begun.request("breakpointLocations", source=source, line=1, endLine=100)["breakpoints"]
    assert marks["scaling"] in [b["line"] for b in found]
    one = begun.request("breakpointLocations", source=source, line=marks["log"])["breakpoints"]
    assert [(b["line"], b["column"]) for b in one] == [(marks["log"], 3)]
    assert begun.request("breakpointLocations", source=source, line=2)["breakpoints"] == []


@pytest.mark.parametrize(
    "wanted, count",
    [
        ({}, 2),
        ({"hitCondition": "2"}, 1),
        ({"hitCondition": ">=2"}, 1),
        ({"hitCondition": "%5"}, 0),
        ({"condition": "mean(x) > 2"}, 1),
        ({"condition": "mean(x) > 1000"}, 0),
        ({"condition": ""}, 2),
    ],
)
def test_conditions_and_counts(begun, loops, wanted, count):
    marker = {"line": markers_of(loops)["scaling"], **wanted}
    assert begun.set_breakpoints(loops, [marker])[0]["verified"]
    assert stops(begun) == count


@pytest.mark.parametrize(
    "wanted, what",
    [
        ({"condition": "mean(x"}, "column 7: expected"),
        ({"hitCondition": "often"}, "counts no hits"),
        ({"logMessage": "mean is {mean(}"}, "column 6: expected"),
    ],
)
def test_what_cannot_be_read_is_unverified(begun, loops, wanted, what):
    told = begun.set_breakpoints(loops, [{"line": markers_of(loops)["scaling"], **wanted}])[0]
    assert told["verified"] is False
    assert what in told["message"]


def test_log_messages(begun, loops):
    line = markers_of(loops)["scaling"]
    message = {"line": line, "logMessage": "mean is {mean(x)}, {{so}}"}
    assert begun.set_breakpoints(loops, [message])[0]["verified"]
    assert stops(begun) == 0
    told = [e["body"] for e in begun.events if e["event"] == "output"]
    logged = [b for b in told if b["output"].startswith("mean is")]
    assert [b["output"] for b in logged][:1] == ["mean is 2.5, {so}\n"]
    assert len(logged) == 2
    assert logged[0]["line"] == line and logged[0]["source"]["path"] == str(loops)


def test_names_of_graphs_ops_and_values(begun, loops):
    names = [{"name": n} for n in ("scaled", "log", "main.b", "rleu")]
    told = begun.request("setFunctionBreakpoints", breakpoints=names)["breakpoints"]
    assert [b["verified"] for b in told] == [True, True, True, False]
    assert "relu" in told[3]["message"]
    stop = begun.go("continue", "function breakpoint")
    assert stop["hitBreakpointIds"] == [told[0]["id"]] and begun.where()[0] == "scaled"
    assert stops(begun) >= 2
    assert begun.request("setFunctionBreakpoints", breakpoints=[])["breakpoints"] == []


def test_predicates_on_tensors(begun, loops):
    given = [
        {"dataId": "main.c", "condition": "max(value) < 1"},
        {"dataId": "* if max(abs(value)) > 1e6"},
        {"dataId": "nothing"},
    ]
    told = begun.request("setDataBreakpoints", breakpoints=given)["breakpoints"]
    assert [b["verified"] for b in told] == [True, True, False]
    stop = begun.go("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [told[0]["id"]]
    assert stops(begun) == 0


def test_trouble(client, program):
    path = program(
        "graph main(x: f32[2]) -> f32[2] {\n  y = log(x)\n  z = add(y, 1.0)\n"
        "  i = div(z, 0.0)\n  return i\n}\n"
    )
    client.start(path, inputs={"x": [-1.0, 2.0]}, filters=["nan"])
    assert "1 NaN of 2" in client.expect_stop("exception")["text"]
    assert "1 NaN of 2" in client.go("continue", "exception")["text"]
    client.request("setExceptionBreakpoints", filters=["nan-origin", "inf"])
    assert "inf" in client.go("continue", "exception")["text"]
    stop = client.go("continue", "pause")
    assert stop["text"] == "the graph has returned; i has 1 NaN and 1 infinite of 2 elements"
    assert client.where() == ("main", 5)
    client.request("continue", threadId=1)
    client.expect_end()


@pytest.mark.parametrize(("value", "asked"), [(1.0, None), (-1.0, False)])
def test_a_run_ends_without_a_stop(client, program, value, asked):
    path = program("graph main(x: f32[2]) -> f32[2] {\n  y = log(x)\n  return y\n}\n")
    more = {} if asked is None else {"stopAtEnd": asked}
    client.start(path, inputs={"x": value}, **more)
    client.expect_end()


def test_a_filter_with_a_condition(client, program):
    path = program("graph main(x: f32[2]) -> f32[2] {\n  y = log(x)\n  return y\n}\n")
    client.launch(path, inputs={"x": -1})
    given = [
        {"filterId": "nan", "condition": "size(value) > 5"},
        {"filterId": "inf", "condition": "size(value"},
        {"filterId": "what"},
    ]
    told = client.request("setExceptionBreakpoints", filters=[], filterOptions=given)["breakpoints"]
    assert [b["verified"] for b in told] == [True, False, False]
    client.request("configurationDone")
    assert "2 NaN of 2" in client.expect_stop("pause")["text"]
    client.request("continue", threadId=1)
    client.expect_end()


def test_defaults_are_among_the_filters(client):
    filters = client.initialize()["exceptionBreakpointFilters"]
    on = [f["filter"] for f in filters if f["default"]]
    assert on == ["nan-origin", "inf-origin", "uninitialised", "assert", "device"]
    assert all(f["description"].endswith(".") for f in filters)


def test_breakpoints_follow_an_edit(begun, loops):
    marks = markers_of(loops)
    told = begun.set_breakpoints(loops, ["log"])
    text = loops.read_text(encoding="utf-8")
    loops.write_text("# a line more\n" + text, encoding="utf-8")
    begun.request("opstep/reload")
    begun.expect_stop("restart")
    stop = begun.go("continue", "breakpoint")
    assert stop["hitBreakpointIds"] == [told[0]["id"]]
    assert begun.where()[1] == marks["log"] + 1
