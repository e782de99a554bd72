"""Back and forth in a Python script: lines, variables, stacks and expressions as they were."""

from __future__ import annotations

from typing import Any

import pytest
from dap.client import Refused, markers_of
from dap.test_python_sessions import Session

pytestmark = pytest.mark.usefixtures("compiled_parts")

LOOP = """\
class Batch:
    def __init__(self, size):
        self.size = size


def fill(rows, n):
    total = 0
    for k in range(n):  # break: head
        total += k
        rows.append(k)  # break: loop
    return total


rows, batch = [], Batch(4)
total = fill(rows, 4)  # break: calling
batch.size = 8
rows.clear()
del total
print(rows, batch.size)  # break: end
print("over")
"""


@pytest.fixture
def loop(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    return path


TRAINING = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(300, 100)
w = model.weight
optimizer = torch.optim.SGD(model.parameters(), 1.0)
means = []
for step in range(3):
    means.append(w.mean().item())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()  # break: update
    optimizer.zero_grad()
print(means)  # break: end
"""


def locals_of(session: Session) -> dict[str, str]:
    hidden = ("special variables", "function variables", "class variables", "__")
    return {k: v for k, v in session.scopes()["Locals"].items() if not k.startswith(hidden)}


def move(session: Session, command: str, **more: Any) -> tuple[int, str]:
    """The line to which it leads, and when that is."""
    session.request(command, threadId=1, **more)
    stop = session.expect_stop()
    session.frames = session.stack(1)
    return session.frames[0]["line"], stop.get("description", "")


def test_back_and_forth(session, loop):
    lines = markers_of(loop)
    session.begin(loop, "end")
    assert session.at("breakpoint")[0] == lines["end"]
    assert move(session, "stepBack") == (lines["end"] - 1, "Paused in the past")
    assert session.evaluate("total, batch.size, rows") == "(6, 8, [])"
    assert move(session, "stepBack")[0] == lines["calling"] + 2
    assert session.evaluate("rows") == "[0, 1, 2, 3]"
    assert move(session, "stepBack")[0] == lines["calling"] + 1
    assert session.evaluate("batch.size") == "4" and "total" in locals_of(session)
    assert move(session, "stepBack")[0] == lines["calling"]
    assert "total" not in locals_of(session) and session.evaluate("rows") == "[]"
    # Into the call, out of it, and forth to the present.
    assert move(session, "stepIn")[0] == lines["head"] - 1
    assert [f["name"] for f in session.frames] == ["fill", "<module>"]
    assert move(session, "stepOut")[0] == lines["calling"] + 1
    for _ in range(3):
        line, when = move(session, "next")
    assert (line, when) == (lines["end"], "Paused in the present")
    assert session.evaluate("batch.size") == "8"
    assert move(session, "next") == (lines["end"] + 1, "")
    session.request("continue", threadId=1)
    session.expect_end(0)
    assert session.output("stdout") == "[] 8\nover\n"


def test_breakpoints_hold_backwards(session, loop):
    lines = markers_of(loop)
    session.begin(loop, "end")
    session.at("breakpoint")
    session.set_breakpoints(loop, [{"line": lines["loop"], "condition": "k == 1"}, "end"])
    assert move(session, "reverseContinue")[0] == lines["loop"]
    assert locals_of(session) == {"k": "1", "n": "4", "rows": "[0]", "total": "1"}
    assert move(session, "continue") == (lines["end"], "Paused in the present")
    move(session, "reverseContinue")
    line, _ = move(session, "reverseContinue")
    assert line == 1 and session.events[-1]["body"]["text"] == "the recording begins here"


def test_a_line_to_go_back_to(session, loop):
    lines = markers_of(loop)
    session.begin(loop, "end")
    session.at("breakpoint")
    source = {"path": str(loop)}
    targets = session.request("gotoTargets", source=source, line=lines["loop"])["targets"]
    targets = [t for t in targets if t["label"].startswith("Back to")]  # one is debugpy's
    assert [t["label"] for t in targets] == [f"Back to iteration {k} of 4" for k in (4, 3, 2, 1)]
    session.request("goto", threadId=1, targetId=targets[1]["id"])
    assert session.at("goto")[1]["description"] == "Paused in the past: iteration 3 of 4"
    assert session.evaluate("k, len(rows)") == "(2, 2)"
    assert move(session, "next") == (lines["head"], "Paused in the past")


def test_the_past_is_fixed(session, loop):
    session.begin(loop, "end")
    session.at("breakpoint")
    move(session, "stepBack")
    scope = session.request("scopes", frameId=session.frames[0]["id"])["scopes"][0]
    with pytest.raises(Refused, match="the past cannot be changed"):
        session.request(
            "setVariable", variablesReference=scope["variablesReference"], name="rows", value="1"
        )
    session.evaluate("rows.append(7)")
    assert session.evaluate("rows") == "[]"
    move(session, "next")
    assert session.evaluate("rows") == "[]"


def test_a_value_of_some_runs_ago(session, loop):
    lines = markers_of(loop)
    session.begin(loop, {"line": lines["loop"], "condition": "k == 3"})
    session.at("breakpoint")
    values = "op.ago(rows, 1), op.ago('total * 10', 2), len(rows), op.ago('k', 3)"
    assert session.evaluate(values) == "([0, 1], 10, 3, 0)"
    with pytest.raises(Refused, match="did not run 4 times before"):
        session.evaluate("op.ago('k', 4)")
    for _ in range(2):
        move(session, "stepBack")
    assert session.evaluate("op.ago('k + 1'), k, rows") == "(2, 2, [0, 1, 2])"


PHASES = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x * w  # break: forward


def report(grad):
    return grad  # break: backward


w = nn.Parameter(torch.ones(2))
net, optimizer = Net(), torch.optim.SGD([w])
for k in range(3):
    loss = net(torch.ones(2)).sum()
    loss.backward()
    optimizer.step()
w.register_hook(report)
net(torch.ones(2)).sum().backward()
"""


def test_a_stop_says_where_it_is_in_training(session, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PHASES)
    session.begin(path, {"line": markers_of(path)["forward"], "hitCondition": ">1"}, "backward")
    phases = []
    for _ in range(4):
        phases.append(session.at("breakpoint")[1]["description"].partition(": ")[2])
        session.request("continue", threadId=1)
    assert phases == [
        "step 1, iteration 2 (line 16), forward", "step 2, iteration 3 (line 16), forward",
        "after step 2, forward", "after step 2, backward",
    ]  # fmt: skip


def test_time_travel_is_turned_off(session, loop):
    session.begin(loop, "end", timeTravel=False)
    session.at("breakpoint")
    with pytest.raises(Refused, match='"timeTravel" is false'):
        session.request("stepBack", threadId=1)
    session.request("continue", threadId=1)
    session.expect_end(0)


def test_parameters_before_each_step(session, tmp_path):
    pytest.importorskip("torch")
    from opstep.frontends.torch.eager import native

    native.build()
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    session.begin(path, "end")
    session.at("breakpoint")
    means = [float(x) for x in session.evaluate("means").strip("[]").split(",")]
    session.set_breakpoints(path, ["update"])
    for k in (2, 1, 0):
        move(session, "reverseContinue")
        assert session.evaluate("step") == str(k)
        assert session.evaluate("w.mean().item()") == repr(means[k])
        assert session.evaluate("model.weight.mean().item()") == repr(means[k])
        assert session.evaluate("w.requires_grad, w.shape[0]") == "(True, 100)"
        shown = locals_of(session)["w"]
        assert shown.startswith("f32[100, 300]  mean") and "as it is now" not in shown
    scope = session.request("scopes", frameId=session.frames[0]["id"])["scopes"][0]
    found = session.request("variables", variablesReference=scope["variablesReference"])
    references = {v["name"]: v["variablesReference"] for v in found["variables"]}
    children = session._values(references["w"])
    assert children["shape"] == "torch.Size([100, 300])" and "grad" not in children
    assert children["[0]"].startswith("f32[300]  mean")
    with pytest.raises(Refused, match="gradients are not kept with their tensors"):
        session.evaluate("w.grad")
