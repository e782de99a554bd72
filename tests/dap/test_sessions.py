"""Whole sessions: what is shown and set, from the entry to the end and back."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from dap.client import Client, Refused, markers_of

import opstep

INPUT = {"x": [1, 2, 3, 4]}

STATES = """\
state total: f32[4] = zeros()
state runs: i32[] = 0

graph main(x: f32[4], b: f32[4]) -> f32[4] {
  c = add(x, b)  # break: first
  d = mul(x, 2.0)
  e = add(c, d)
  t = add(total, e)  # break: late
  total <- t
  r = add(runs, 1)
  runs <- r
  return t
}
"""
BOTH = {"x": [1, 2, 3, 4], "b": [1, 1, 1, 1]}


def value(client, name):
    frame = client.stack()[0]["id"]
    return client.request("evaluate", expression=name, frameId=frame, context="repl")["result"]


def put(client, name, text):
    return client.request(
        "setExpression", expression=name, value=text, frameId=client.stack()[0]["id"]
    )


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_back_from_the_end_states_are_those_of_where_one_is(client, program, mode):
    path = program(STATES)
    client.start(
        path, inputs=BOTH, steps=3, stopAtEnd=True, mode=mode, breakpoints=["late"]
    )  # fmt: skip
    client.expect_stop("breakpoint")
    for _ in range(2):
        client.go("continue", "breakpoint")
    client.go("continue", "pause")
    assert value(client, "runs") == "3"
    for step in (2, 1, 0):
        client.go("reverseContinue", "breakpoint")
        assert value(client, "runs") == str(step)
    assert value(client, "total") == "[0.0, 0.0, 0.0, 0.0]"
    put(client, "e", "1")
    client.go("next", "step")
    assert value(client, "t") == "[1.0, 1.0, 1.0, 1.0]"


def test_what_was_set_holds_whatever_is_set_then(client, program):
    path = program(STATES)
    client.start(path, inputs=BOTH, breakpoints=["late"])
    client.expect_stop("breakpoint")
    for name, text in (
        ("d", "[1, 2, 3, 4]"), ("total", "9"), ("c[0]", "50"), ("b", "7"), ("x", "0"),
    ):  # fmt: skip
        put(client, name, text)
    assert value(client, "d") == "[1.0, 2.0, 3.0, 4.0]"
    assert value(client, "c") == "[50.0, 7.0, 7.0, 7.0]"
    assert value(client, "total") == "[9.0, 9.0, 9.0, 9.0]"
    client.go("next", "step")
    assert value(client, "t") == "[60.0, 18.0, 19.0, 20.0]"


def test_a_change_that_goes_is_announced(client, loops):
    client.start(
        loops, graph="main", inputs={"x": [1, 2, 3, 9]},
        breakpoints=[{"line": markers_of(loops)["halving"], "hitCondition": "3"}],
    )  # fmt: skip
    client.expect_stop("breakpoint")
    put(client, "x", "4")
    client.set_breakpoints(loops, ["log"])
    client.go("continue", "breakpoint")
    put(client, "a", "0.5")
    assert "No longer as they were set by hand: x." in client.output("console")


def test_a_data_breakpoint_on_what_is_not_computed_yet(client, program):
    path = program(STATES)
    client.start(path, inputs=BOTH, stopOnEntry=True, steps=2)
    client.expect_stop("entry")
    frame = client.stack()[0]["id"]
    ids = [
        client.request("dataBreakpointInfo", name=name, frameId=frame)["dataId"]
        for name in ("c", "e", "max(e) > 3", "t", "runs", "x")
    ]
    assert ids == ["main.c", "main.e", "main.e if max(e) > 3", "main.t", "runs", None]
    wanted = [{"dataId": id} for id in ids[:2]]
    client.request("setDataBreakpoints", breakpoints=wanted)
    client.go("continue", "data breakpoint")
    assert value(client, "c") == "[2.0, 3.0, 4.0, 5.0]"
    client.go("continue", "data breakpoint")
    assert value(client, "e") == "[4.0, 7.0, 10.0, 13.0]"
    client.request("continue", threadId=1)  # in the second step both are what they were
    client.expect_end()


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_every_stop_has_a_stack(client, program, mode):
    path = program(
        'graph main(x: f32[4]) -> f32[4] {\n  m = max(x)\n  fine = less(m, 0.0)\n'
        '  assert fine, "too large"\n  return x\n}\n'
    )  # fmt: skip
    client.start(path, inputs=INPUT, mode=mode)
    client.expect_stop("exception")
    assert client.where()[0] == "main" and value(client, "m") == "4.0"
    client.request("continue", threadId=1)
    client.expect_end(1)
    with Client.over_socket() as other:
        path = program("graph main(x: f32[4]) -> f32[4] {\n  y = neg(x)\n  return y\n}\n", "b.opg")
        other.start(path, inputs=INPUT, mode=mode, stopAtEnd=True)
        other.expect_stop("pause")
        assert other.where()[0] == "main" and value(other, "y") == "[-1.0, -2.0, -3.0, -4.0]"
        other.request("continue", threadId=1)
        other.expect_end()


def test_what_failed_and_was_mended_ends_well(client, program):
    path = program(
        "graph main(x: f32[4]) -> f32[4] {\n  m = max(x)\n  fine = less(m, 0.0)\n"
        '  assert fine, "too large"\n  return x\n}\n'
    )
    client.start(path, inputs=INPUT)
    client.expect_stop("exception")
    put(client, "x", "-1")
    client.request("continue", threadId=1)
    client.expect_end()


def test_a_session_ends_once(client, program):
    path = program(STATES)
    client.start(path, inputs=BOTH, stopAtEnd=True)
    client.expect_stop("pause")
    client.request("restart")
    client.expect_stop("pause")
    assert value(client, "runs") == "1"
    client.request("continue", threadId=1)
    client.expect_end()
    with pytest.raises(Refused, match="the run has ended"):
        client.request("restart")
    ends = [e["event"] for e in client.events if e["event"] in ("terminated", "exited")]
    assert ends == ["exited", "terminated"]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_restart_takes_new_inputs(client, program, nested, whole):
    path = program(STATES)
    client.start(path, inputs=BOTH, stopOnEntry=True)
    client.expect_stop("entry")
    given = {"inputs": BOTH | {"x": [5, 5, 5, 5]}}
    if whole:
        given |= {"program": str(path), "graph": "main", "stopOnEntry": True}
    client.request("restart", {"arguments": given} if nested else given, check=False)
    if nested or not whole:
        client.expect_stop("entry")
        assert value(client, "x") == "[5.0, 5.0, 5.0, 5.0]"


def test_memory_is_for_clients_that_asked(program):
    for asked in (True, False):
        with Client.over_socket() as client:
            client.initialize(supportsMemoryReferences=asked)
            client.start(program(STATES), inputs=BOTH, breakpoints=["late"])
            client.expect_stop("breakpoint")
            frame = client.stack()[0]["id"]
            scopes = client.request("scopes", frameId=frame)["scopes"]
            shown = [
                v
                for s in scopes[:3]
                for v in client.request(
                    "variables", variablesReference=s["variablesReference"]
                )["variables"]
            ]  # fmt: skip
            shown.append(client.request("evaluate", expression="c", frameId=frame))
            shown.append(put(client, "c", "1"))
            assert len(shown) > 6
            assert {"memoryReference" in v for v in shown} == {asked}


def test_breakpoints_move_with_their_lines(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["log", "scaling"])
    client.expect_stop("breakpoint")
    text = loops.read_text(encoding="utf-8").replace(
        "  a = scaled(x)", "  a0 = add(x, 0.0)\n  # and\n  a = scaled(a0)"
    )
    loops.write_text("# one\n" + text, encoding="utf-8")
    marks = markers_of(loops)
    client.request("opstep/reload")
    client.expect_stop("restart")
    told = [e["body"]["breakpoint"]["line"] for e in client.events if e["event"] == "breakpoint"]
    assert sorted(told) == [marks["scaling"], marks["log"]]
    client.go("continue", "breakpoint")
    client.go("continue", "breakpoint")
    assert client.where() == ("main", marks["log"])
    loops.write_text("# zero\n" + loops.read_text(encoding="utf-8"), encoding="utf-8")
    client.request("restart")
    client.expect_stop("breakpoint")
    assert client.where() == ("scaled", marks["scaling"] + 1)
    loops.write_text("# more\n" + loops.read_text(encoding="utf-8"), encoding="utf-8")
    client.set_breakpoints(loops, ["log"])  # by a client that shows the file as it is
    client.request("opstep/reload")
    client.expect_stop("restart")
    client.go("continue", "breakpoint")
    assert client.where() == ("main", marks["log"] + 2)


def test_who_left_or_ended_a_run_can_attach_again(loops):
    port, over, errors = opstep.debug.listen(), threading.Event(), []

    def runs():
        program = opstep.load(loops)
        while not over.is_set():
            try:
                program.run("main", {"x": np.float32([1, 2, 3, 4])})
            except opstep.OpstepError as error:
                errors.append(str(error))
            over.wait(0.01)

    thread = threading.Thread(target=runs)
    thread.start()
    try:
        for how in ("disconnect", "vanish", "terminate", "terminateDebuggee", "relay", "last"):
            direct = how != "relay"
            with Client.connect(port) if direct else Client.over_socket() as client:
                client.attach(**({} if direct else {"port": port}))
                client.set_breakpoints(loops, ["log"])
                client.request("configurationDone")
                client.expect_stop("breakpoint")
                if how == "terminate":
                    client.request("terminate")
                    client.expect("terminated")
                elif how == "terminateDebuggee":
                    client.request("disconnect", terminateDebuggee=True)
                elif how == "vanish":
                    client.vanish()
                    client._ended = True
    finally:
        over.set()
        thread.join(30)
        opstep.debug.stop_listening()
        opstep.api.program.interposed = None
    assert len(errors) == 2 and all("ended from the debugger" in e for e in errors)


def test_data_breakpoints_stop_at_every_write_of_a_loop(client, loops):
    client.start(loops, graph="main", inputs={"x": [1, 2, 3, 9]}, breakpoints=["halving"])
    client.expect_stop("breakpoint")
    number = client.request("scopes", frameId=client.stack()[0]["id"])["scopes"][0]
    found = client.request(
        "dataBreakpointInfo", variablesReference=number["variablesReference"], name="x"
    )
    assert found["dataId"] == "halve.y"  # in the first turn, too, which main gave its x
    client.request("setDataBreakpoints", breakpoints=[{"dataId": found["dataId"]}])
    for turn in range(4):
        client.go("continue", "data breakpoint")
        assert client.where()[0] == f"halve [i={turn}]"
        if turn < 3:
            client.go("continue", "breakpoint")
            assert client.where()[0] == f"halve [i={turn + 1}]"


def test_a_breakpoint_right_behind_a_data_breakpoint_stops(client, loops):
    line = markers_of(loops)["scaling"]
    breakpoints = [{"line": line + 1}]
    client.start(loops, graph="main", inputs={"x": [1, 2, 3, 9]}, breakpoints=breakpoints)
    client.expect_stop("breakpoint")
    client.request("setDataBreakpoints", breakpoints=[{"dataId": "scaled.s"}])
    client.go("continue", "data breakpoint")
    client.go("continue", "breakpoint")
    assert client.where() == ("scaled", line + 1)
