"""What a client or its files do wrong is answered, soon and in little memory."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
from dap.client import Refused, markers_of

INPUT = {"x": [1, 2, 3, 4]}
SOON_S = 30.0


@pytest.fixture
def begun(client, loops):
    client.start(loops, graph="main", inputs=INPUT, stopOnEntry=True, cwd=str(loops.parent))
    client.expect_stop("entry")
    return client


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_an_array_that_claims_gigabytes_of_zeros(begun, loops):
    path = loops.parent / "sparse.npy"
    np.save(path, np.zeros(0, "f4"))
    header = path.read_bytes().replace(b"(0,), }        ", b"(800000000,), }")
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 3_200_000_000)
    before = peak_bytes()
    frame = begun.stack()[0]["id"]
    for text in ("load('sparse.npy')", "sum(load('sparse.npy'))"):
        seq = begun.send("evaluate", {"expression": text, "context": "repl", "frameId": frame})
        answer = begun.response(seq, SOON_S)
        assert not answer["success"]
        assert "3,200,000,000 bytes are more than are read" in answer["body"]["error"]["format"]
    assert peak_bytes() - before < 200 << 20


def test_a_program_that_became_a_pipe(begun, loops):
    loops.unlink()
    os.mkfifo(loops)
    seq = begun.send("restart", {})
    answer = begun.response(seq, SOON_S)
    assert not answer["success"] and "not a regular file" in answer["body"]["error"]["format"]
    with pytest.raises(Refused, match="no file"):
        begun.request("opstep/reload")
    begun.go("next", "step")


SLOW = """\
graph main(x: f32[N]) -> f32[N], i32[] {
  y, n = while(x, 0, test=always, body=more, limit=1000000000)
  return y, n
}
graph more(x: f32[N], n: i32[]) -> f32[N], i32[] {
  y = neg(x)
  m = add(n, 0)  # break: turn
  return y, m
}
graph always(x: f32[N], n: i32[]) -> bool[] {
  z = less(n, 1)
  return z
}
"""


def test_a_condition_that_takes_long_again_and_again(client, program, monkeypatch):
    """In a loop that never ends: the client has its stop, and is told why."""
    monkeypatch.setattr("opstep.runtime.debugger.checks.PATIENCE_S", 0.5)
    path = program(SLOW)
    condition = {"line": markers_of(path)["turn"], "condition": "sum(sort(x * 2)) > 1e30"}
    client.start(
        path, inputs="random", symbols={"N": 1 << 18}, breakpoints=[condition], graph="main"
    )
    client.expect_stop("breakpoint")
    assert "and did not hold: `continue` runs on" in client.output("console")
    client.go("continue", "breakpoint")


@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize("key", ["program", "params", "cwd", "workspace", "trace", "graph"])
def test_a_nul_in_a_path(client, loops, key, plainly, capfd):
    client.initialize()
    wrong = {"program": str(loops), "graph": "main", "inputs": INPUT, "noDebug": plainly}
    wrong |= {key: "a\0b"}
    answer = client.response(client.send("launch", wrong), SOON_S)
    assert "internal error" not in str(answer)
    if not answer["success"]:
        answer = client.response(client.send("launch", wrong | {"noDebug": True}), SOON_S)
    assert answer["success"]
    client.expect("initialized")
    client.request("configurationDone")
    client.expect("terminated")
    assert "internal error" not in str(client.events)
    assert "Traceback" not in capfd.readouterr().err


def test_a_nul_in_other_paths(begun, loops, capfd):
    wrong = {"path": f"{loops}\0"}
    frame = begun.stack()[0]["id"]
    for command, arguments in (
        ("setBreakpoints", {"source": wrong, "breakpoints": [{"line": 1}]}),
        ("breakpointLocations", {"source": wrong, "line": 1}),
        ("gotoTargets", {"source": wrong, "line": 1}),
        ("source", {"source": wrong, "sourceReference": 0}),
        ("opstep/runTo", {"source": wrong, "line": 1}),
        ("evaluate", {"expression": "load('a\0b.npy')", "frameId": frame, "context": "repl"}),
        ("evaluate", {"expression": "load('a\\0b.npy')", "frameId": frame, "context": "repl"}),
        ("dataBreakpointInfo", {"name": "a\0b", "frameId": frame}),
        ("setExpression", {"expression": "x", "value": "load('\0.npz:\0')", "frameId": frame}),
        ("restart", {"arguments": {"program": f"{loops}\0"}}),
        ("restart", {"arguments": {"inputs": {"x": "a\0.npy"}}}),
    ):
        answer = begun.response(begun.send(command, arguments, check=False), SOON_S)
        text = str(answer)
        assert "internal error" not in text and "bug in opstep" not in text, (command, text)
    assert "Traceback" not in capfd.readouterr().err
