"""One session over a real socket that sends every request there is, as an editor would."""

from __future__ import annotations

import base64

import numpy as np
from dap.client import Client, markers_of

from opstep.dap.registry import requests

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}
# See test_attach.py, test_kernel.py and test_nans.py.
ELSEWHERE = {"attach", "opstep/enterKernel"}


class Walker(Client):
    """A client that remembers what it asked for."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.asked: set[str] = set()

    def send(self, command, arguments=None, check=True):
        self.asked.add(command)
        return super().send(command, arguments, check)


def test_every_request(loops):
    markers, path = markers_of(loops), str(loops)
    with Walker.over_socket() as client:
        configured(client, path, markers)
        looked(client, path)
        changed(client)
        moved(client, path, markers)
        ended(client)
    assert client.asked == set(requests()) - ELSEWHERE


def configured(client, path, markers):
    """From initialize to the first stop."""
    source = {"path": path}
    client.initialize()
    assert client.capabilities["supportsStepBack"]
    client.request("launch", program=path, graph="main", inputs=INPUT, stopAtEnd=True)
    client.expect("initialized")
    places = client.request("breakpointLocations", source=source, line=1, endLine=99)
    assert {markers["halving"], markers["log"]} <= {b["line"] for b in places["breakpoints"]}
    told = client.set_breakpoints(path, ["scaling", {"line": 2}])
    assert [b["verified"] for b in told] == [True, False]
    named = client.request("setFunctionBreakpoints", breakpoints=[{"name": "halve"}])
    assert named["breakpoints"][0]["verified"]
    client.request("setExceptionBreakpoints", filters=["nan"])
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert client.where() == ("scaled", markers["scaling"])


def looked(client, path):
    """What can be seen at a stop."""
    assert [t["name"] for t in client.request("threads")["threads"]] == ["stream 0"]
    frame, caller = client.stack()
    scopes = client.request("scopes", frameId=frame["id"])["scopes"]
    assert [s["name"] for s in scopes] == ["Inputs", "Values", "Params", "Op", "Memory"]
    numbers = {s["name"]: s["variablesReference"] for s in scopes}
    (x,) = client.request("variables", variablesReference=numbers["Inputs"])["variables"]
    assert (x["name"], x["value"]) == ("x", "[1.0, 2.0, 3.0, 4.0]")
    rows = client.request("variables", variablesReference=x["variablesReference"])["variables"]
    assert [float(r["value"]) for r in rows if r["name"][1:-1].isdigit()] == [1, 2, 3, 4]
    place = client.request("locations", locationReference=x["declarationLocationReference"])
    assert place["source"]["path"] == path
    memory = client.request("readMemory", memoryReference=x["memoryReference"], count=16)
    bytes_ = base64.b64decode(memory["data"])
    assert np.frombuffer(bytes_, "f4").tolist() == [1, 2, 3, 4]
    found = client.request("evaluate", expression="max(x) + 1", frameId=frame["id"])
    assert float(found["result"]) == 5
    wanted = client.request("completions", text="ma", column=3, frameId=frame["id"])["targets"]
    assert "max" in {t["label"].partition("(")[0] for t in wanted}
    pointer = frame["instructionPointerReference"]
    code = client.request("disassemble", memoryReference=pointer, instructionCount=4)
    assert len(code["instructions"]) == 4
    assert client.request("modules", startModule=0)["modules"]
    client.request("opstep/kernelCode", frameId=frame["id"])
    kernels = client.request("opstep/kernels", frameId=frame["id"])
    assert kernels["kernels"]
    texts = client.request("loadedSources")["sources"]
    assert path in [t.get("path") for t in texts]
    text = client.request("source", source={"path": path}, sourceReference=0)["content"]
    assert "graph halve" in text
    part = client.request("opstep/tensorSlice", expression="x[1:3]", frameId=frame["id"])
    assert np.frombuffer(base64.b64decode(part["data"]), "f4").tolist() == [2, 3]
    assert client.request("opstep/tensorType", expression="x")["type"] == "f32[4]"
    assert client.request("opstep/statistics", expression="x")["statistics"]["max"] == 4
    assert sum(client.request("opstep/histogram", expression="x", bins=4)["counts"]) == 4
    client.request("opstep/statisticsHistory", name="w")
    assert client.request("opstep/values")["values"][0]["name"] == "x"
    assert "mul" in client.request("opstep/plan")["text"]
    client.request("opstep/timeline")
    assert client.request("opstep/sourceView", view="auto")["view"] == "auto"
    info = client.request("dataBreakpointInfo", name="w", frameId=frame["id"])
    watched = [{"dataId": info["dataId"], "condition": "max(value) > 1000"}]
    assert client.request("setDataBreakpoints", breakpoints=watched)["breakpoints"][0]["verified"]
    assert caller["name"] == "main"


def changed(client):
    """Values set in each way there is."""
    frame = client.stack()[0]
    scopes = client.request("scopes", frameId=frame["id"])["scopes"]
    inputs = scopes[0]["variablesReference"]
    x = client.request("setVariable", variablesReference=inputs, name="x", value="[8, 2, 3, 4]")
    assert x["value"] == "[8.0, 2.0, 3.0, 4.0]"
    client.request("setExpression", expression="x[1]", value="16", frameId=frame["id"])
    (x,) = client.request("variables", variablesReference=inputs)["variables"]
    four = base64.b64encode(np.float32(32).tobytes()).decode()
    client.request("writeMemory", memoryReference=x["memoryReference"], offset=8, data=four)
    found = client.request("evaluate", expression="x", context="clipboard", frameId=frame["id"])
    assert [float(v) for v in found["result"].strip("[]").split(",")] == [8, 16, 32, 4]


def moved(client, path, markers):
    """Every way to go."""
    client.go("next", "step")
    client.go("stepBack", "breakpoint")  # it stands on one again
    frame = client.stack()[0]
    client.request("stepInTargets", frameId=frame["id"])
    client.go("stepIn", "step")
    client.request("restartFrame", frameId=client.stack()[0]["id"])
    client.expect_stop("restart")
    client.go("stepOut", "step")
    assert client.where() == ("main", markers["looping"])
    targets = client.request("gotoTargets", source={"path": path}, line=markers["calling"])
    client.request("goto", threadId=1, targetId=targets["targets"][0]["id"])
    client.expect_stop("goto")
    client.request("opstep/runTo", source={"path": path}, line=markers["log"])
    client.expect_stop()  # the breakpoints on the way hold
    client.go("reverseContinue")
    client.request("pause", threadId=1)
    client.request("cancel", requestId=1)
    assert client.request("opstep/reload")["lost"] == ["x"]  # set above
    client.expect_stop("restart")
    client.set_breakpoints(path, [])
    client.request("setFunctionBreakpoints", breakpoints=[])
    client.request("evaluate", expression="x = log(0 - x)", context="repl")
    client.go("continue", "exception")
    told = client.request("exceptionInfo", threadId=1)
    assert told["exceptionId"] == "nan"
    link = client.request("opstep/nanReport")["links"][0]
    client.request("opstep/goToOp", memoryReference=link["memoryReference"])
    assert client.expect_stop("exception")["text"].startswith(link["name"])


def ended(client):
    """Rerun from the begin, and out."""
    client.request("restart")
    client.request("terminate")  # and disconnect, as every client does
