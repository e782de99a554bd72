"""Stops after aten ops in sessions on Python scripts: breakpoints on their names, steps by ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dap.client import markers_of
from dap.test_python_sessions import Session

pytest.importorskip("torch")

NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        h = self.layer(x)  # break: linear
        return torch.softmax(h, 1)  # break: softmax


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for turn in range(3):
    probability = net(torch.full((2, 3), float(turn)))  # break: calling
    loss = probability.log().mean()  # break: loss
    loss.backward()  # break: backward
    optimizer.step()  # break: step
print("done")
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(NET)
    return path


def begin(session: Session, path: Path, *points: dict[str, Any], filters=()) -> list[Any]:
    """Launches it with function breakpoints; their answers."""
    session.initialize()
    launched = session.send("launch", {"program": str(path), "cwd": str(path.parent)})
    session.expect("initialized")
    found = session.request("setFunctionBreakpoints", breakpoints=list(points))["breakpoints"]
    session.configure(path, filters=filters)
    assert session.response(launched)["success"]
    return found


def go(session: Session, command: str = "continue", reason: str = "function breakpoint", **how):
    session.request(command, threadId=1, **how)
    return session.at(reason)


def test_it_stops_after_an_op(session, script):
    lines = markers_of(script)
    (answer,) = begin(session, script, {"name": "op softmax"})
    assert answer["verified"] and "message" not in answer
    line, stop = session.at("function breakpoint")
    assert line == lines["softmax"]
    assert stop["hitBreakpointIds"] == [answer["id"]]
    assert stop["description"].startswith("Paused after softmax")
    scope = session.scopes()["Operands and result of softmax"]
    assert scope["result"].startswith("f32[2, 2]") and scope["dim"] == "1"
    assert session.evaluate("op.result.shape") == "torch.Size([2, 2])"
    assert session.evaluate("torch.equal(op.operands.input, h)") == "True"
    assert go(session)[0] == lines["softmax"]
    assert session.evaluate("turn") == "1"
    session.request("setFunctionBreakpoints", breakpoints=[])
    session.request("continue", threadId=1)
    session.expect_end(0)


def test_conditions_and_hits(session, script):
    points = [
        {"name": "op softmax", "condition": "op.absmax(result) >= 0.5 and turn == 1"},
        {"name": "aten::linear", "hitCondition": "2"},
        {"name": "op sofmax"},
        {"name": "op mm", "hitCondition": "some"},
        {"name": "op mm", "condition": "1 +"},
        {"name": "op ones_like", "condition": "missing > 1"},
    ]
    answers = begin(session, script, *points)
    assert [a["verified"] for a in answers] == [True, True, False, False, False, True]
    assert "did you mean softmax" in answers[2]["message"]
    assert "not a hit condition" in answers[3]["message"]
    _, stop = session.at("function breakpoint")
    text = "the condition missing > 1 cannot be evaluated: NameError: name 'missing' is not defined"
    assert stop["text"] == text and stop["hitBreakpointIds"] == [answers[5]["id"]]
    session.request("setFunctionBreakpoints", breakpoints=points[:2])
    _, stop = go(session)
    assert session.evaluate("turn") == "1" and "softmax" in stop["description"]
    _, stop = go(session)
    assert session.evaluate("turn") == "2" and "linear" in stop["description"]
    session.request("continue", threadId=1)
    session.expect_end(0)


def test_composites_stop_once_at_their_line(session, script):
    lines = markers_of(script)
    begin(session, script, {"name": "op linear"}, {"name": "op softmax"})
    assert session.at("function breakpoint")[0] == lines["linear"]
    assert session.evaluate("op.result.shape") == "torch.Size([2, 2])"
    assert go(session)[0] == lines["softmax"]
    assert go(session)[0] == lines["linear"]


def test_an_op_of_the_backward_and_of_the_optimizer(session, script):
    lines = markers_of(script)
    begin(session, script, {"name": "op _softmax_backward_data"}, {"name": "op add_"})
    line, _ = session.at("function breakpoint")
    assert line == lines["softmax"]
    assert session.frames[0]["name"] == "backward of `return torch.softmax(h, 1)  # break: softmax`"
    assert session.frames[1]["line"] == lines["backward"]
    assert list(session.scopes()) == ["Operands and result of softmax_backward_data"]
    assert go(session)[0] == lines["step"]


def test_steps_by_ops(session, script):
    lines = markers_of(script)
    begin(session, script, {"name": "op linear"})
    session.at("function breakpoint")
    at = []
    for _ in range(6):
        line, stop = go(session, "stepIn", "step", granularity="instruction")
        at.append((line, stop["text"]))
    assert at == [
        (lines["softmax"], "after aten::_softmax"),
        (lines["loss"], "after aten::log"),
        (lines["loss"], "after aten::mean"),
        (lines["backward"], "after aten::ones_like"),
        (lines["loss"], "after aten::expand"),
        (lines["loss"], "after aten::div"),
    ]
    assert session.frames[0]["name"].startswith("backward of `loss =")
    assert go(session, "next", "step")[0] == lines["step"]


def test_a_step_over_calls(session, script):
    lines = markers_of(script)
    session.initialize()
    launched = session.send("launch", {"program": str(script), "cwd": str(script.parent)})
    session.expect("initialized")
    session.configure(script, "calling")
    assert session.response(launched)["success"]
    session.at("breakpoint")
    session.request("next", threadId=1, granularity="instruction")
    assert session.at("step")[0] == lines["calling"]  # torch.full
    session.request("next", threadId=1, granularity="instruction")
    assert session.at("step")[0] == lines["loss"]


def test_a_step_is_over_at_another_stop(session, script):
    lines = markers_of(script)
    script.write_text(script.read_text().replace("    loss = p", "    plain = 1\n    loss = p"))
    begin(session, script, {"name": "op softmax"})
    session.at("function breakpoint")
    session.request("setFunctionBreakpoints", breakpoints=[])
    source = {"path": str(script)}
    session.request("setBreakpoints", source=source, breakpoints=[{"line": lines["loss"]}])
    session.request("stepIn", threadId=1, granularity="instruction")
    assert session.at("breakpoint")[0] == lines["loss"]  # no op has run since
    session.request("setBreakpoints", source=source, breakpoints=[])
    session.request("continue", threadId=1)
    session.expect_end(0)


METHODS = """\
import torch


class Base(torch.nn.Module):
    def forward(self, x):
        return self.inner(x)  # break: base


class Net(Base):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), Other())


class Other(torch.nn.Module):
    def forward(self, x):
        return x + 1  # break: other


net = Net()
for turn in range(3):
    net(torch.ones(2, 2))  # break: calling
"""


def at_function(session: Session) -> tuple[str, dict[str, Any]]:
    _, stop = session.at("function breakpoint")
    return session.frames[0]["name"], stop


def test_methods_of_classes(session, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(METHODS)
    points = [
        {"name": "Net.forward", "condition": "turn == 1"},
        {"name": "Other.forward", "hitCondition": "3"},
        {"name": "__main__.Base.forward", "condition": "turn == 0"},
        {"name": "Base.backward"},
    ]
    answers = begin(session, path, *points)
    assert all(a["verified"] for a in answers) and len({a["id"] for a in answers}) == 4
    for expected in (2, 0, 1):
        name, stop = at_function(session)
        assert stop["hitBreakpointIds"] == [answers[expected]["id"]]
        assert name.rpartition(".")[2] == "forward"
        assert session.evaluate("type(self).__name__") == ("'Other'" if expected == 1 else "'Net'")
        assert session.evaluate("turn") == str({2: 0, 0: 1, 1: 2}[expected])
        session.request("continue", threadId=1)
    session.expect_end(0)


def test_a_module_by_its_path(session, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(METHODS)
    lines = markers_of(path)
    (answer,) = begin(session, path, {"name": "module inner.0", "condition": "turn == 1"})
    line, stop = session.at("function breakpoint")
    assert (line, stop["hitBreakpointIds"]) == (lines["base"], [answer["id"]])
    assert stop["text"] == "before inner.0 is called" and session.evaluate("turn") == "1"
    assert list(session.scopes()) == ["Locals", "Globals"]
    session.request("continue", threadId=1)
    session.expect_end(0)


def disassembled(session: Session, frame: int = 0) -> list[str]:
    """The listing of a frame's line; the instruction that it stands at is marked."""
    at = int(session.frames[frame]["instructionPointerReference"], 16)
    asked = {"memoryReference": hex(at), "instructionOffset": -20, "instructionCount": 60}
    found = session.request("disassemble", asked)["instructions"]
    assert len(found) == 60 and len({one["address"] for one in found}) == 60
    shown = [one for one in found if one.get("presentationHint") != "invalid"]
    assert all(one["line"] == session.frames[frame]["line"] for one in shown)
    return ["=> " * (int(one["address"], 16) == at) + one["instruction"] for one in shown]


def test_ops_of_a_line_are_listed(session, script):
    lines = markers_of(script)
    session.initialize()
    launched = session.send("launch", {"program": str(script), "cwd": str(script.parent)})
    session.expect("initialized")
    session.configure(script, "loss", "step")
    assert session.response(launched)["success"]
    session.at("breakpoint")
    none = ["=> (no op of this line has run since listing began)"]
    assert disassembled(session) == none
    session.request("next", threadId=1, granularity="instruction")
    line, _ = session.at("step")
    (log,) = disassembled(session)
    assert log.startswith("=> aten::log(f32[2, 2]) -> f32[2, 2]  mean -")
    session.request("next", threadId=1, granularity="instruction")
    assert session.at("step")[0] == line
    log, mean = disassembled(session)
    assert log.startswith("aten::log") and mean.startswith("=> aten::mean(f32[2, 2]) -> -")
    assert go(session, reason="breakpoint")[0] == lines["step"]
    assert disassembled(session, 0) == none
    assert go(session, reason="breakpoint")[0] == lines["loss"]  # its last run was a turn ago
    assert [text.partition("(")[0] for text in disassembled(session)] == [
        "=> aten::log", "aten::mean"
    ]  # fmt: skip
    session.request("next", threadId=1)
    session.at("step")  # there it may stand within the line
    assert disassembled(session) == none
    session.request("next", threadId=1)
    session.at("breakpoint")
    assert {text.partition("(")[0] for text in disassembled(session)} == {
        "=> aten::add_", "aten::add_"
    }  # fmt: skip
    session.set_breakpoints(script, ["backward"])
    assert go(session, reason="breakpoint")[0] == lines["backward"]
    *ops, last = disassembled(session)
    assert "aten::_softmax_backward_data" in {text.partition("(")[0] for text in ops}
    assert last == "(the line had begun before its ops were listed)"
