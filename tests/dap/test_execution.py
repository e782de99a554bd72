"""Going on and going back, over the wire."""

from __future__ import annotations

import pytest
from dap.client import Refused, markers_of

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture
def stopped(client, loops):
    """Stopped before the first op."""
    client.start(loops, graph="main", inputs=INPUT, stopOnEntry=True)
    client.expect_stop("entry")
    return client


def lines(client, command: str, count: int) -> list[int]:
    return [at(client.go(command, "step") and client) for _ in range(count)]


def at(client) -> int:
    return client.where()[1]


def test_next_stays_in_the_graph(stopped, loops):
    first = markers_of(loops)["calling"]
    assert at(stopped) == first
    assert lines(stopped, "next", 4) == [first + 1, first + 2, first + 3, first + 4]
    stopped.request("next", threadId=1)
    stopped.expect_end()


def test_step_in_and_out(stopped, loops):
    marks = markers_of(loops)
    stopped.go("stepIn", "step")
    assert stopped.where() == ("scaled", marks["scaling"])
    assert [f["name"] for f in stopped.stack()] == ["a = scaled", "main"]
    stopped.go("stepOut", "step")
    assert stopped.where() == ("main", marks["looping"])


def test_back_passes_what_was_passed(stopped, loops):
    forth = [at(stopped), *lines(stopped, "stepIn", 8)]
    back = [at(stopped), *lines(stopped, "stepBack", 1)]
    assert back[0] == forth[-1] and back[1] in forth
    stop = stopped.go("reverseContinue", "entry")
    assert stop["text"] == "the beginning of the run"
    assert at(stopped) == forth[0]


def test_turns_of_a_loop_are_frames(stopped, loops):
    stopped.set_breakpoints(loops, ["halving"])
    stopped.go("continue", "breakpoint")
    assert stopped.where()[0] == "halve [i=0]"
    stopped.go("continue", "breakpoint")
    assert stopped.where()[0] == "halve [i=1]"
    stopped.go("reverseContinue", "breakpoint")
    assert stopped.where()[0] == "halve [i=0]"


def test_goto_goes_back_and_ahead(stopped, loops):
    marks, source = markers_of(loops), {"path": str(loops)}
    lines(stopped, "next", 2)
    found = stopped.request("gotoTargets", source=source, line=marks["calling"])["targets"]
    assert [t["line"] for t in found] == [marks["calling"]]
    stopped.request("goto", threadId=1, targetId=found[0]["id"])
    stopped.expect_stop("goto")
    assert at(stopped) == marks["calling"]
    found = stopped.request("gotoTargets", source=source, line=marks["log"])["targets"]
    with pytest.raises(Refused, match="b has no value yet"):
        stopped.request("goto", threadId=1, targetId=found[0]["id"])
    assert at(stopped) == marks["calling"]
    nowhere = stopped.request("gotoTargets", source={"path": "/no/such.opg"}, line=1)
    assert nowhere["targets"] == []
    with pytest.raises(Refused, match="no such target"):
        stopped.request("goto", threadId=1, targetId=999)


def test_a_frame_restarts(stopped, loops):
    marks = markers_of(loops)
    lines(stopped, "stepIn", 2)
    assert at(stopped) == marks["scaling"] + 1
    stopped.request("restartFrame", frameId=stopped.stack()[0]["id"])
    stopped.expect_stop("restart")
    assert stopped.where() == ("scaled", marks["scaling"])
    stopped.request("restartFrame", frameId=stopped.stack()[1]["id"])
    stopped.expect_stop("restart")
    assert stopped.where() == ("main", marks["calling"])


def test_frames_of_an_earlier_stop_are_stale(stopped):
    frame = stopped.stack()[0]["id"]
    stopped.go("next", "step")
    with pytest.raises(Refused, match="the run went on since"):
        stopped.request("restartFrame", frameId=frame)


def test_an_edit_keeps_what_did_not_change(stopped, loops):
    lines(stopped, "next", 3)
    text = loops.read_text(encoding="utf-8")
    loops.write_text(text.replace("c = log(b)", "c = exp(b)"), encoding="utf-8")
    stopped.go("stepBack", "step")
    assert "has changed: restart the frame" in stopped.output("console")
    stopped.request("restartFrame", frameId=stopped.stack()[0]["id"])
    stopped.expect_stop("restart")
    said = stopped.output("console")
    assert "The program was read again: kept" in said
    kept, of = (int(w) for w in said.split("kept ")[-1].split(" values")[0].split(" of "))
    assert 0 < kept <= of
    stopped.request("continue", threadId=1)
    stopped.expect_end()
    assert "d = f32[4]" in stopped.output("stdout")


def test_an_edit_that_does_not_parse_leaves_the_session(stopped, loops):
    before = loops.read_text(encoding="utf-8")
    loops.write_text(before + "graph broken {", encoding="utf-8")
    with pytest.raises(Refused) as refused:
        stopped.request("restartFrame", frameId=stopped.stack()[0]["id"])
    assert "model.opg:" in refused.value.text and "error:" in refused.value.text
    assert stopped.go("next", "step")
    loops.write_text(before, encoding="utf-8")
    stopped.request("continue", threadId=1)
    stopped.expect_end()


def test_run_to_a_line(stopped, loops):
    line = markers_of(loops)["log"]
    stopped.go("next", "step")  # after which clients know by themselves that the run goes on
    assert not any(e["event"] == "continued" for e in stopped.events)
    stopped.request("opstep/runTo", source={"path": str(loops)}, line=line)
    assert stopped.events[-1]["event"] == "continued"  # before the response
    stopped.expect_stop("step")
    assert at(stopped) == line
    with pytest.raises(Refused, match="there is no statement"):
        stopped.request("opstep/runTo", source={"path": str(loops)}, line=1)


def test_step_in_targets(stopped, loops):
    targets = stopped.request("stepInTargets", frameId=stopped.stack()[0]["id"])["targets"]
    graph = next(t for t in targets if t["label"] == "graph scaled")
    stopped.request("stepIn", threadId=1, targetId=graph["id"])
    stopped.expect_stop("step")
    assert stopped.where()[0] == "scaled"


def test_launches_are_smaller_steps(stopped):
    stopped.go("stepIn", "step")
    line = at(stopped)
    stopped.go("next", "step", granularity="instruction")
    assert at(stopped) in (line, line + 1)


def test_pause(client, endless):
    client.start(endless, graph="main", inputs="random")
    client.request("pause", threadId=1)
    client.expect_stop("pause")
    assert client.where()[0].startswith(("more", "always", "main"))
    client.request("pause", threadId=1)  # it stands already
    client.go("stepIn", "step")


def test_while_it_runs(client, endless):
    """What needs a stop is refused; what does not is done between two ops."""
    client.start(endless, graph="main", inputs="random")
    for command, arguments in (("stackTrace", {"threadId": 1}), ("next", {"threadId": 1})):
        with pytest.raises(Refused) as refused:
            client.request(command, arguments)
        assert refused.value.message == "notStopped"
    assert client.request("threads")["threads"]
    told = client.set_breakpoints(endless, [2])
    assert told[0]["verified"]
    client.expect_stop("breakpoint")


def test_no_such_thread(stopped):
    for command in ("next", "continue", "stepBack", "stackTrace"):
        with pytest.raises(Refused, match="no thread 99"):
            stopped.request(command, threadId=99)


TWO_STREAMS = """
graph main(x: f32[1000000], y: f32[1000000]) -> f32[1000000], f32[1000000] {
  a = exp(x)
  b = exp(y)
  c = mul(a, a)
  d = mul(b, b)
  return c, d
}
"""


def test_goto_jumps_over_what_is_not_needed(client, program):
    path = program(TWO_STREAMS)
    client.start(path, inputs="random", symbols={}, stopOnEntry=True)
    client.expect_stop("entry")
    found = client.request("gotoTargets", source={"path": str(path)}, line=4)["targets"]
    client.request("goto", threadId=1, targetId=found[0]["id"])
    client.expect_stop("goto")
    assert client.where() == ("main", 4)


def test_streams_are_threads(client, program):
    client.start(program(TWO_STREAMS), inputs="random", mode="async", streams=2, stopOnEntry=True)
    client.expect_stop("entry")
    threads = client.request("threads")["threads"]
    assert [t["name"] for t in threads] == ["stream 0", "stream 1"]
    lines = set()
    for _ in range(2):
        client.request("next", threadId=2)
        assert client.expect_stop("step")["threadId"] == 2
        lines.add(client.stack(2)[0]["line"])
    assert len(lines) == 2


NESTED = """\
graph block(x: f32[4]) -> f32[4] {
  h = exp(x)
  return h
}
graph down(x: f32[4]) -> f32[4], f32[4] {
  full = block(x)
  half = block(full)
  return full, half
}
graph main(x: f32[4]) -> f32[4] {
  b1, low = down(x)
  y = block(low)
  return y
}
"""


def test_calls_of_one_graph_are_told_apart(client, program):
    client.start(program(NESTED), inputs={"x": "ones"}, breakpoints=[2])
    stacks = []
    for _ in range(3):
        client.expect_stop("breakpoint")
        stacks.append([f["name"] for f in client.stack()])
        client.request("continue", threadId=1)
    assert stacks == [
        ["down:b1/full = block", "b1 = down", "main"],
        ["down:b1/half = block", "b1 = down", "main"],
        ["y = block", "main"],
    ]
