"""Several ranks in one session: a thread for each, lockstep, one alone, values by rank."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from dap.client import Refused, markers_of

STEP = """\
mesh data: 3

param w: f32[2] = ones()

graph main(x: f32[4]) -> f32[], f32[2] {
  r = rank(over=data)  # break: first
  f = cast(r, dtype=f32)
  own = mean(x)
  mine = add(own, f)  # break: adding
  total = all_reduce(mine, over=data)  # break: meeting
  twice = doubled(total)  # break: calling
  late = mul(w, twice)
  w <- late  # break: update
  return mine, late
}

graph doubled(t: f32[]) -> f32[] {
  d = mul(t, 2.0)  # break: doubling
  return d
}
"""


@pytest.fixture
def ranked(client, program, tmp_path):
    for r in range(3):
        np.save(tmp_path / f"x{r}.npy", np.full(4, r, "f4"))
    client.path = program(STEP, "step.opg")
    client.given = {"inputs": {"x": "x{rank}.npy"}, "cwd": str(tmp_path), "ranks": 3}
    return client


@pytest.fixture
def stopped(ranked):
    ranked.start(ranked.path, stopOnEntry=True, **ranked.given)
    ranked.expect_stop("entry")
    ranked.marks = markers_of(ranked.path)
    return ranked


def lines(client) -> list[int]:
    """Where each rank stands."""
    return [client.stack(thread)[0]["line"] for thread in (1, 2, 3)]


def value(client, text: str, thread: int = 1) -> str:
    frame = client.stack(thread)[0]["id"]
    return client.request("evaluate", expression=text, frameId=frame, context="repl")["result"]


def test_threads_are_ranks_and_step_together(stopped):
    first = stopped.marks["first"]
    threads = stopped.request("threads")["threads"]
    assert threads == [{"id": k + 1, "name": f"rank {k}"} for k in range(3)]
    assert stopped.capabilities["supportsSingleThreadExecutionRequests"]
    assert lines(stopped) == [first] * 3
    for k in range(5):
        stop = stopped.go("next", "step", threadId=k % 3 + 1)
        assert (stop["threadId"], stop["allThreadsStopped"]) == (k % 3 + 1, True)
    assert lines(stopped) == [stopped.marks["calling"]] * 3
    stopped.go("stepIn", "step", threadId=2)
    assert lines(stopped) == [stopped.marks["doubling"]] * 3
    assert [f["name"] for f in stopped.stack(3)] == ["twice = doubled", "main"]
    stopped.go("stepOut", "step")
    stopped.go("stepBack", "step")
    stopped.go("stepBack", "step")
    assert lines(stopped) == [stopped.marks["meeting"]] * 3
    assert stopped.go("reverseContinue", "entry")["text"] == "the beginning of the run"
    assert lines(stopped) == [first] * 3


def test_one_rank_alone(stopped):
    first, meeting = stopped.marks["first"], stopped.marks["meeting"]
    for _ in range(3):
        stopped.go("next", "step", threadId=2, singleThread=True)
    assert lines(stopped) == [first, stopped.marks["adding"], first]
    answer = stopped.request("continue", threadId=2, singleThread=True)
    assert answer == {"allThreadsContinued": False}
    stop = stopped.expect_stop("pause")
    assert stop["threadId"] == 2 and "waits at all_reduce of f32[] for ranks 0, 2" in stop["text"]
    assert lines(stopped) == [first, meeting, first]
    stopped.go("stepBack", "step", threadId=2, singleThread=True)
    assert lines(stopped) == [first, stopped.marks["adding"], first]
    stopped.set_breakpoints(stopped.path, ["calling"])
    stopped.go("continue", "breakpoint", threadId=1)
    assert lines(stopped) == [stopped.marks["calling"]] * 3


def test_breakpoints_with_conditions_on_the_rank(ranked):
    adding = markers_of(ranked.path)["adding"]
    told = ranked.start(
        ranked.path, breakpoints=[{"line": adding, "condition": "rank == 2 and own > 1"},
                                  {"line": adding + 1, "logMessage": "mine is {mine}"}],
        **ranked.given,
    )  # fmt: skip
    assert all(b["verified"] for b in told)
    stop = ranked.expect_stop("breakpoint")
    assert stop["threadId"] == 3 and stop["hitBreakpointIds"] == [told[0]["id"]]
    ranked.request("continue", threadId=3)
    ranked.expect_end()
    assert [f"rank {k}: mine is {2.0 * k}" in ranked.output("console") for k in range(3)]
    assert "mine = f32[]  0.0\n" in ranked.output("stdout")
    assert "mine (rank 2) = f32[]  4.0" in ranked.output("stdout")
    assert "late (rank" not in ranked.output("stdout")


def test_values_are_those_of_the_rank(stopped):
    stopped.set_breakpoints(stopped.path, ["calling"])
    stopped.go("continue", "breakpoint")
    assert [value(stopped, "own", t) for t in (1, 2, 3)] == ["0.0", "1.0", "2.0"]
    assert value(stopped, "own@2", 1) == "2.0" and value(stopped, "rank", 3) == "2"
    assert value(stopped, "ranks(mine)") == "[0.0, 2.0, 4.0]"
    assert value(stopped, "joined(x)[3:5]") == "[0.0, 1.0]"
    assert value(stopped, "replicated(w)").lower() == "true"
    with pytest.raises(Refused, match="there is no rank 3"):
        value(stopped, "own@3")
    for thread in (1, 2, 3):
        frame = stopped.stack(thread)[0]["id"]
        scopes = stopped.request("scopes", frameId=frame)["scopes"]
        values = next(s for s in scopes if s["name"] == "Values")["variablesReference"]
        found = stopped.request("variables", variablesReference=values)["variables"]
        shown = {v["name"]: v["value"] for v in found}
        assert shown["mine"] == f"{2.0 * (thread - 1)}" and shown["total"] == "6.0"
        rows = stopped.request("opstep/values", frameId=frame)["values"]
        assert {"own", "total"} <= {row["name"] for row in rows}


def test_what_is_set_on_a_rank_reaches_all(stopped):
    stopped.set_breakpoints(stopped.path, ["calling"])
    stopped.go("continue", "breakpoint")
    frame = stopped.stack(2)[0]["id"]
    stopped.request("setExpression", expression="own", value="11", frameId=frame)
    assert [value(stopped, "total", t) for t in (1, 2, 3)] == ["16.0"] * 3
    assert lines(stopped) == [stopped.marks["calling"]] * 3
    stopped.request("restartFrame", frameId=stopped.stack(3)[0]["id"])
    stopped.expect_stop("restart")
    assert lines(stopped) == [stopped.marks["first"]] * 3
    stopped.go("continue", "breakpoint")
    assert value(stopped, "total", 3) == "16.0"


def test_the_file_changes(stopped):
    stopped.set_breakpoints(stopped.path, ["calling"])
    stopped.go("continue", "breakpoint")
    stopped.path.write_text(STEP.replace("add(own, f)", "mul(own, f)"))
    stopped.request("restartFrame", frameId=stopped.stack(2)[0]["id"])
    stopped.expect_stop("restart")
    assert "The program was read again" in stopped.output("console")
    stopped.go("continue", "breakpoint")
    assert [value(stopped, "total", t) for t in (1, 2, 3)] == ["5.0"] * 3
    stopped.request("restart")
    stopped.expect_stop("entry")
    assert lines(stopped) == [stopped.marks["first"]] * 3


def test_a_nan_names_its_rank(ranked, tmp_path):
    np.save(tmp_path / "x1.npy", np.array([1, np.nan, 1, 1], "f4"))
    ranked.start(ranked.path, filters=["nan"], **ranked.given)
    stop = ranked.expect_stop("exception")
    assert stop["threadId"] == 2 and stop["text"].startswith("rank 1: own, the result of mean")
    info = ranked.request("exceptionInfo", threadId=2)
    assert info["exceptionId"] == "nan"
    with pytest.raises(Refused, match="not stopped at an exception"):
        ranked.request("exceptionInfo", threadId=1)
    stop = ranked.go("continue", "exception", threadId=2)  # rank 1 alone has it until they meet
    assert stop["text"].startswith("rank 1: mine")
    stop = ranked.go("continue", "exception", threadId=1)
    assert stop["text"].startswith("rank 0: total, the result of all_reduce: 1 NaN")
    report = ranked.request("opstep/nanReport", name="total", frameId=ranked.stack(1)[0]["id"])
    ways = [(link["name"], link["kind"]) for link in report["links"]]
    assert ways == [("total", "propagated"), ("mine (rank 1)", "propagated"),
                    ("own (rank 1)", "propagated"), ("x (rank 1)", "given")]  # fmt: skip
    frame = ranked.stack(3)[0]["id"]
    assert (
        "x (rank 1) came in with 1 NaN"
        in ranked.request("opstep/nanReport", name="total", frameId=frame)["text"]
    )
    ranked.request("opstep/goToOp", memoryReference=report["links"][2]["memoryReference"])
    stop = ranked.expect_stop("exception")
    assert (
        stop["threadId"] == 2
        and ranked.stack(2)[0]["line"] == markers_of(ranked.path)["adding"] - 1
    )
    assert ranked.stack(1)[0]["line"] == markers_of(ranked.path)["meeting"]


def test_a_deadlock(client, program, tmp_path):
    text = STEP.replace("total = all_reduce(mine, over=data)", "total = cond(big, mine, then=met, "
        "else=doubled)").replace("  total =", "  big = less(mine, 1.0)\n  total =")  # fmt: skip
    text += "\ngraph met(t: f32[]) -> f32[] {\n  d = all_reduce(t)\n  return d\n}\n"
    path = program(text, "step.opg")
    client.start(path, inputs="ones", ranks=3, stopOnEntry=True)
    client.expect_stop("entry")
    assert "may each take another way here" in client.output("important")
    frame = client.stack(3)[0]["id"]
    client.request("setExpression", expression="x", value="-8", frameId=frame)
    stop = client.go("continue", "exception")
    assert stop["threadId"] == 3
    assert "rank 2 waits for ever at all_reduce of f32[]: rank 0 has ended" in stop["text"]
    info = client.request("exceptionInfo", threadId=3)
    assert info["exceptionId"] == "deadlock" and "step.opg" in info["details"]["message"]
    client.request("continue", threadId=3)
    client.expect_end(1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ranks": 0}, "0 ranks cannot be debugged"),
        ({"ranks": -1}, "-1 ranks cannot be debugged"),
        ({"ranks": "x"}, "ranks"),
        ({"ranks": 2}, "the mesh (data: 3) is of 3 ranks, not 2"),
        ({"mesh": {"data": 10000}, "ranks": 10000}, "10,000 ranks are too many to debug"),
        ({"mesh": {"data": 0}}, "0 ranks cannot be debugged"),
        ({"mesh": {"model": 2}}, "the mesh has no axis model"),
        ({"ranks": 3, "hunt": True}, "hunt is for one rank"),
    ],
)
def test_ranks_that_cannot_be(client, program, more, message):
    client.initialize()
    with pytest.raises(Refused) as refused:
        client.request("launch", {"program": str(program(STEP)), "inputs": "ones", **more},
                       check=False)  # fmt: skip
    assert message in refused.value.text
    client.launch(program(STEP), inputs="ones", ranks=3)  # another one may follow


def test_a_rank_that_is_not_there(stopped):
    with pytest.raises(Refused, match="there is no thread 4"):
        stopped.request("next", threadId=4)
    with pytest.raises(Refused, match="there is no thread 0"):
        stopped.request("stackTrace", threadId=0)


def test_without_debugging_ranks_are_not_run(client, program):
    client.launch(program(STEP), inputs="ones", ranks=3, noDebug=True)
    client.request("configurationDone")
    client.expect_end(1)
    assert "opstep run --ranks" in client.output("stderr")


def test_a_pause_stops_all_ranks_at_one_point(client, program):
    text = (
        "graph main(x: f32[4]) -> f32[4] {\n  y = while(x, test=always, body=mixed, "
        "limit=1000000000)\n  return y\n}\ngraph mixed(x: f32[4]) -> f32[4] {\n  y = all_reduce(x, "
        'reduction="mean")\n  return y\n}\ngraph always(x: f32[4]) -> bool[] {\n  m = max(x)\n'
        "  same = equal(m, m)\n  return same\n}\n"
    )
    client.start(program(text), inputs="ones", ranks=3)
    client.request("pause", threadId=2)
    stop = client.expect_stop("pause")
    assert stop["allThreadsStopped"] and len(set(lines(client))) == 1
    names = {client.stack(thread)[0]["name"] for thread in (1, 2, 3)}
    assert len(names) == 1
    client.request("terminate")
    client.expect_end(130)


SHARDED = """\
mesh model: 2

param w: f32[8, 3] over model = ones()
param few: f32[4] over model = zeros()

graph main(x: f32[3]) -> f32[4] {
  y = matmul(w, x)
  n = add(w, 1.0)  # break: updating
  w <- n
  return y
}
"""


def test_variables_have_the_whole_and_where_its_parts_are(client, program):
    path = program(SHARDED, "shards.opg")
    client.start(path, inputs="ones", ranks=2, breakpoints=[markers_of(path)["updating"]])
    client.expect_stop("breakpoint")
    frame = client.stack(2)[0]["id"]

    def params() -> dict:
        scopes = client.request("scopes", frameId=client.stack(2)[0]["id"])["scopes"]
        number = next(s for s in scopes if s["name"] == "Params")["variablesReference"]
        return {v["name"]: v for v in opened(number)}

    def opened(number: int, **more) -> list[dict]:
        return client.request("variables", variablesReference=number, **more)["variables"]

    w, few = params()["w"], params()["few"]
    assert w["value"] == "f32[8, 3] over model  all 1"
    assert (w["type"], few["type"]) == ("f32[8, 3] over model", "f32[4] over model")
    assert few["value"] == "[0.0, 0.0, 0.0, 0.0]" and w["indexedVariables"] == 8
    parts = {v["name"]: v for v in opened(w["variablesReference"], filter="named")}
    assert parts["w@1"]["value"] == "f32[4, 3]  all 1" and parts["w@0"]["evaluateName"] == "w@0"
    client.request("setVariable", variablesReference=w["variablesReference"], name="[6]",
                   value="[7, 8, 9]")  # fmt: skip
    assert value(client, "w[5:7]", 1) == "[[1.0, 1.0, 1.0], [7.0, 8.0, 9.0]]"
    assert value(client, "w@1[2]", 1) == value(client, "shard(w)[2]", 2) == "[7.0, 8.0, 9.0]"
    hover = client.request("evaluate", expression="w", frameId=frame, context="hover")
    assert hover["result"].startswith("f32[8, 3] over model  mean 1.875")
    rows = client.request("opstep/values", frameId=frame)["values"]
    row = next(r for r in rows if r["name"] == "w")
    assert (row["type"], row["bytes"]) == ("f32[8, 3] over model", 96)
    assert row["statistics"]["max"] == 9.0
    memory = client.request("readMemory", memoryReference=params()["few"]["memoryReference"],
                            count=16)  # fmt: skip
    assert memory["data"] == base64.b64encode(bytes(16)).decode()
    for _ in range(2):
        client.go("next", "step", threadId=2, singleThread=True)
    assert params()["w"]["value"].startswith("f32[4, 3] on rank 1")
    with pytest.raises(Refused, match="ranks are between different updates of w"):
        value(client, "w", 2)
    assert value(client, "w@0[0]", 2) == "[1.0, 1.0, 1.0]"
