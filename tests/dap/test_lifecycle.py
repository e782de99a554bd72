"""From the first word to the last, with what can go wrong on the way."""

from __future__ import annotations

import re
import threading

import pytest
from dap.client import Client, Refused, markers_of
from waiting import wait_until

from opstep.dap.registry import MACHINE, capabilities

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}


def test_a_whole_session(client, loops):
    assert client.initialize() == capabilities()
    client.start(loops, graph="main", inputs=INPUT)
    client.expect_end()
    assert "d = f32[4]  [" in client.output("stdout")


def test_the_first_word_is_initialize(client, loops):
    for command, arguments in (("launch", {"program": str(loops)}), ("threads", None)):
        with pytest.raises(Refused, match="initialize comes first"):
            client.request(command, arguments)
    client.initialize()
    with pytest.raises(Refused, match="initialize is not possible"):
        client.initialize()


@pytest.mark.parametrize("command", ["next", "continue", "configurationDone", "restart"])
def test_what_needs_a_launch(client, command):
    client.initialize()
    with pytest.raises(Refused, match="nothing is launched"):
        client.request(command, {"threadId": 1} if command in ("next", "continue") else None)


def test_an_unknown_request(client):
    client.initialize()
    with pytest.raises(Refused, match="did you mean stepIn") as refused:
        client.request("stepin", check=False)
    assert refused.value.id == 1003


@pytest.mark.parametrize(
    "arguments, what",
    [
        ({}, "arguments.program is missing"),
        ({"program": 3}, "arguments.program must be a string"),
        ({"program": "no/such.opg"}, "no/such.opg"),
        ({"mode": "fast"}, "mode is 'fast'; it can be async or debug"),
        ({"graph": "mian"}, "did you mean main"),
        ({"steps": 0}, "steps is 0"),
        ({"device": "tpu"}, "there is no device tpu"),
        ({"device": "null"}, "the null device computes nothing"),
        ({"inputs": {}}, r'\(give "inputs": \{"x": "FILE.npy"\}, or "inputs": "random" for all'),
        ({"inputs": {"x": "no.npy"}}, "no.npy"),
        ({"inputs": {"x": [1, "a"]}}, "input x"),
        ({"inputs": {"y": 1}}, "the graph has no input y"),
        ({"inputs": {"x": {}}}, "which input, and from where"),
        ({"inputs": "rnadom"}, "which input, and from where"),
        ({"symbols": {"M": 2}}, "has no dimension M"),
        ({"symbols": ["M=2"]}, "has no dimension M"),
        ({"symbols": ["N"]}, "not the name of a dimension and its size"),
        ({"params": "no.safetensors"}, "no.safetensors"),
        ({"cwd": "/no/such/folder"}, "there is no folder"),
        ({"workspace": "no.db"}, None),
        ({"env": {"A=B": "1"}}, None),
    ],
)
def test_a_launch_that_fails_says_why_and_leaves_the_session(client, loops, arguments, what):
    client.initialize()
    whole = {"program": str(loops), "graph": "main", "inputs": INPUT, **arguments}
    if arguments == {}:
        del whole["program"]
    if what is None:
        client.request("launch", whole)
        return
    with pytest.raises(Refused, match=what):
        client.request("launch", whole, check=False)
    client.start(loops, graph="main", inputs=INPUT)
    client.expect_end()


def test_a_program_with_errors_is_shown(client, program, loops):
    broken = program("graph main(x: f32[4]) -> f32[4] {\n  y = rleu(x)\n  return y\n}\n", "b.opg")
    client.initialize()
    with pytest.raises(Refused) as refused:
        client.request("launch", program=str(broken))
    assert refused.value.shown
    assert "b.opg:2:7: error" in refused.value.text and "relu" in refused.value.text
    assert "b.opg:2:7" in client.output("important")
    client.start(loops, graph="main", inputs=INPUT)
    client.expect_end()


@pytest.mark.parametrize("symbols", [{"N": 2}, ["N=2"], []])
def test_inputs_in_words_numbers_and_lists(client, program, tmp_path, symbols):
    import numpy as np

    np.save(tmp_path / "a.npy", np.float32([1, 2]))
    path = program(
        "graph main(a: f32[N], b: f32[N], c: f32[N], d: i32[], e: bool[]) -> f32[N] {\n"
        "  s = add(a, b)\n  t = add(s, c)\n  return t\n}\n"
    )
    inputs = {"a": "a.npy", "b": 2, "c": [0.5, 0.25], "d": 3, "e": True}
    client.launch("model.opg", cwd=str(path.parent), inputs=inputs, symbols=symbols)
    client.request("configurationDone")
    client.expect_end()
    assert "t = f32[2]  [3.5, 4.25]" in client.output("stdout")


@pytest.mark.parametrize("plainly", [False, True])
def test_inputs_that_nobody_gave_are_said_to_be_made(client, program, plainly):
    path = program(
        "graph main(a: f32[2], b: f32[2], c: f32[2]) -> f32[2] {\n"
        "  s = add(a, b)\n  t = add(s, c)\n  return t\n}\n"
    )
    inputs = {"a": "random", "b": [1, 2], "c": "zeros"}
    client.start(path, inputs=inputs, seed=3, noDebug=plainly)
    client.expect_end()
    assert client.output("stdout").startswith(
        "Inputs made up: a random: normal numbers, c zeros (seed 3). "
        'Give yours as "inputs" in launch.json.\n'
    )


def test_inputs_that_were_given_are_not_said_to_be_made(client, program):
    path = program("graph main(a: f32[2]) -> f32[2] {\n  s = neg(a)\n  return s\n}\n")
    client.start(path, inputs={"a": 0.5})
    client.expect_end()
    assert "Inputs made up" not in client.output()


def test_a_run_that_fails_tells_where(client, program):
    path = program(
        "graph main(x: f32[2]) -> f32[2] {\n  m = max(x)\n  fine = less(m, 0.0)\n"
        '  assert fine, "too large"\n  return x\n}\n'
    )
    client.start(path, inputs={"x": 1})
    assert "too large" in client.expect_stop("exception")["text"]
    client.request("continue", threadId=1)
    client.expect_end(1)
    told = [e["body"] for e in client.events if e["event"] == "output"][-1]
    assert told["category"] == "stderr" and "too large" in told["output"]
    assert told["line"] == 4 and told["source"]["path"] == str(path)


FAILING = """\
graph main(x: f32[2]) -> f32[2] {
  m = max(x)
  fine = less(m, 0.0)
  assert fine, "too large"
  y = add(x, 1.0)
  return y
}
"""


@pytest.mark.parametrize("filters", [[], ["nan"], ["assert"]])
@pytest.mark.parametrize("stop_at_end", [False, True])
def test_a_failed_assert_stops_once_and_at_its_line(client, program, filters, stop_at_end):
    path = program(FAILING)
    client.start(path, inputs={"x": 1}, filters=filters, stopAtEnd=stop_at_end)
    client.expect_stop("exception")
    assert client.where() == ("main", 4)
    client.go("next", "step")
    assert client.where() == ("main", 5)
    client.request("continue", threadId=1)
    if stop_at_end:
        assert "the graph has returned" in client.expect_stop("exception")["text"]
        client.request("continue", threadId=1)
    client.expect_end(1)
    told = [e["body"] for e in client.events if e["event"] == "output"][-1]
    assert told["line"] == 4 and "too large" in told["output"]


def test_the_end_can_be_a_stop(client, loops):
    client.start(loops, graph="main", inputs=INPUT, stopAtEnd=True)
    stop = client.expect_stop("pause")
    assert stop["text"] == "the graph has returned"
    client.go("stepBack", "step")
    client.request("continue", threadId=1)
    client.expect_stop("pause")
    client.request("terminate")
    client.expect_end(130)


def test_without_debugging(client, loops, tmp_path):
    client.launch(
        loops, graph="main", inputs=INPUT, noDebug=True, cwd=str(tmp_path),
        workspace="runs.db", trace="run.pftrace",
    )  # fmt: skip
    client.set_breakpoints(loops, ["scaling"])
    client.request("configurationDone")
    client.expect_end()
    assert (tmp_path / "runs.db").exists() and (tmp_path / "run.pftrace").exists()
    assert "d = f32[4]" in client.output("stdout")


def test_restart_begins_anew_with_the_file_as_it_is(client, loops):
    marks = markers_of(loops)
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["scaling", "log"])
    client.expect_stop("breakpoint")
    client.go("continue", "breakpoint")
    text = loops.read_text(encoding="utf-8")
    loops.write_text("# one more line\n" + text, encoding="utf-8")
    client.request("restart")
    client.expect_stop("breakpoint")
    assert client.where()[1] in (marks["scaling"], marks["scaling"] + 1)
    other = {"program": str(loops), "graph": "scaled", "inputs": INPUT}
    client.request("restart", {"arguments": other})
    client.expect_stop("breakpoint")
    assert [f["name"] for f in client.stack()] == ["scaled"]


def test_a_restart_that_fails_leaves_the_run(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["scaling"])
    client.expect_stop("breakpoint")
    text = loops.read_text(encoding="utf-8")
    loops.write_text("graph", encoding="utf-8")
    with pytest.raises(Refused, match="error"):
        client.request("restart")
    loops.write_text(text, encoding="utf-8")
    client.go("next", "step")


def test_restart_and_terminate_while_it_runs(client, endless):
    client.start(endless, graph="main", inputs="random")
    client.request("restart")
    client.request("terminate")
    client.expect_end(130)


def test_terminate_at_a_stop(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["scaling"])
    client.expect_stop("breakpoint")
    client.request("terminate")
    client.expect_end(130)
    with pytest.raises(Refused, match="the run has ended"):
        client.request("next", threadId=1)


def test_a_client_that_vanishes_ends_the_run(endless):
    client = Client.over_socket()
    client.start(endless, graph="main", inputs="random")
    client.vanish()
    client.thread.join(20)
    assert not client.thread.is_alive()
    assert not any(t.name == "opstep debuggee" for t in threading.enumerate())


def test_a_run_can_go_on_without_its_client(loops, tmp_path):
    """The run ends by itself: its named tensors are those that it leaves."""
    client = Client.over_socket()
    client.start(
        loops, graph="main", inputs=INPUT, breakpoints=["scaling"], onDisconnect="continue"
    )
    client.expect_stop("breakpoint")
    client.vanish()
    client.thread.join(20)
    assert not client.thread.is_alive()
    assert client.log == []


def test_cancel_of_what_is_done_does_nothing(client, loops):
    client.start(loops, graph="main", inputs=INPUT, stopOnEntry=True)
    client.expect_stop("entry")
    client.request("cancel", requestId=1)
    client.request("cancel", progressId="none")
    client.go("next", "step")


def test_a_request_that_waits_is_cancelled(client, endless):
    """While the owning thread is busy with one request, another is sent and taken back."""
    client.initialize()
    client.launch(endless, graph="main", inputs="random")
    slow = client.send("restart", {}, check=False)  # configuring: refused, but it is queued
    waiting = [client.send("threads") for _ in range(50)]
    client.request("cancel", requestId=waiting[-1])
    answers = [client.response(seq) for seq in waiting]
    assert all(a["success"] or a["message"] == "cancelled" for a in answers)
    assert not client.response(slow)["success"]


def test_two_clients_have_two_sessions(loops, endless):
    with Client.over_socket() as one, Client.over_socket() as other:
        one.start(endless, graph="main", inputs="random")
        other.start(loops, graph="main", inputs=INPUT, stopOnEntry=True)
        other.expect_stop("entry")
        other.go("next", "step")
        one.request("pause", threadId=1)
        one.expect_stop("pause")


def test_what_comes_before_launch_is_remembered(client, loops):
    client.initialize()
    told = client.set_breakpoints(loops, ["scaling"])
    assert told[0]["verified"] is False and told[0]["reason"] == "pending"
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["scaling"])
    client.expect_stop("breakpoint")


def test_lines_and_paths_as_the_client_counts_and_writes_them(client, loops):
    marks = markers_of(loops)
    client.initialize(linesStartAt1=False, columnsStartAt1=False, pathFormat="uri")
    client.request("launch", program=str(loops), graph="main", inputs=INPUT)
    client.expect("initialized")
    source = {"path": loops.as_uri()}
    given = [{"line": marks["scaling"] - 1}]
    told = client.request("setBreakpoints", source=source, breakpoints=given)["breakpoints"]
    assert told[0]["line"] == marks["scaling"] - 1 and told[0]["column"] == 2
    assert told[0]["source"]["path"] == loops.as_uri()
    client.request("configurationDone")
    client.expect_stop("breakpoint")


def test_messages_that_are_none_are_told(client):
    client.initialize()
    for body in (b"{", b"[]", b'{"type": "event"}', b'{"type": "request", "command": "x"}'):
        client.wire.writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    client.wire.writer.flush()

    def told() -> bool:
        client.request("threads")
        return client.output("important").count("cannot read a message") >= 4

    wait_until(told)
    assert client.output("important").count("cannot read a message") == 4


@pytest.mark.parametrize("symbols", [{"N": 2, "T": "f16"}, ["N=2", "T=f16"]])
def test_a_generic_graph_is_debugged_in_the_type_that_is_asked_for(client, program, symbols):
    path = program(
        "graph main<T: float>(a: T[N], b: T[N]) -> T[N] {\n  s = twice(a)\n  t = add(s, b)\n"
        "  return t\n}\n\ngraph twice<T: number>(x: T[N]) -> T[N] {\n  y = add(x, x)\n"
        "  return y\n}\n"
    )
    client.start(path, inputs={"a": "ones", "b": [0.5, 0.25]}, symbols=symbols, breakpoints=[8])
    client.expect_stop("breakpoint")
    assert [f["name"] for f in client.stack()] == ["s = twice<f16>", "main<f16>"]
    client.request("continue", threadId=1)
    client.expect_end()
    assert "t = f16[2]  [2.5, 2.25]" in client.output("stdout")


def test_sizes_that_no_memory_holds_are_told_with_their_input(client, program):
    path = program("graph main(x: f32[N, K]) -> f32[] {\n  y = sum(x)\n  return y\n}\n")
    client.initialize(clientID="vscode")
    sizes = {"N": 10**6, "K": 10**6}
    with pytest.raises(Refused) as refused:
        client.launch(path, inputs="random", symbols=sizes)
    assert refused.value.id == MACHINE and refused.value.problems == []
    assert re.search(
        r"out of memory: 3\.6 TiB are wanted for input x, f32\[1000000, 1000000\], .* are free",
        refused.value.text,
    )


def test_an_extension_gets_the_places_of_a_launch_error(client, program):
    path = program(
        "graph main(x: f32[N, 3]) -> f32[N, 3] {\n  y = add(x, 1.0\n  return y\n}\n\n"
        "graph other(x: f32[4, 5], w: f32[6, 7]) -> f32[4, 7] {\n  y = matmul(x, w)\n"
        "  return y\n}\n"
    )
    client.initialize(clientID="vscode")
    with pytest.raises(Refused) as refused:
        client.launch(path, graph="main", inputs="random")
    assert not refused.value.shown
    found = refused.value.problems
    assert [(p["path"], p["line"], p["column"]) for p in found] == [
        (str(path), 2, 10),
        (str(path), 7, 17),
    ]
    assert found[0]["message"].startswith("the ( is not closed")
    assert "is 5, axis -2 of f32[6, 7] is 6" in found[1]["message"]
