"""Steps from a script into functions of `jax.jit`, whose graphs are sessions of their own."""

from __future__ import annotations

import pytest
from dap.client import Client, markers_of
from dap.test_python_sessions import Session

pytest.importorskip("jax")

SCRIPT = """\
import jax
import jax.numpy as jnp


@jax.jit
def entropy(p):
    logs = jnp.log(p)  # break: logs
    return -(p * logs).sum()


class Model:
    step = staticmethod(jax.jit(lambda x: x + 1))


total = 0.0
for k in range(2):
    p = jnp.array([0.5, 0.5 - k / 4])
    total += float(entropy(p))  # break: call
print(Model.step(total))  # break: method
print("plain", abs(-3))  # break: plain
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def begin(session: Session, script, opens: bool) -> None:
    session.initialize(supportsStartDebuggingRequest=opens)
    answer = session.send("launch", {"program": str(script), "cwd": str(script.parent)})
    session.expect("initialized")
    session.configure(script, "call", "method", "plain", filters=["nan-origin"])
    assert session.response(answer)["success"]
    assert session.at("breakpoint")[0] == markers_of(script)["call"]


def test_the_client_debugs_the_graph_of_a_call(session, script):
    lines = markers_of(script)
    begin(session, script, opens=True)
    step = session.send("stepIn", {"threadId": 1})
    asked = session.expect_request("startDebugging")
    configuration = asked["arguments"]["configuration"]
    assert asked["arguments"]["request"] == "attach" and configuration["stopOnEntry"]
    session.answer(asked, {})
    with Client.connect(configuration["port"]) as graph:
        graph.attach(stopOnEntry=True)
        graph.request("configurationDone")
        assert session.response(step)["success"]
        graph.expect_stop("entry")
        assert graph.where() == ("entropy", lines["logs"])
        graph.go("next", "step")
        graph.go("stepBack", "step")
        assert graph.where() == ("entropy", lines["logs"])
        graph.request("continue", threadId=1)
        session.at("step")
        # A breakpoint of the graph holds in later calls, and another step goes into one.
        graph.set_breakpoints(script, ["logs"])
        session.request("continue", threadId=1)
        session.at("breakpoint")
        session.request("continue", threadId=1)
        graph.expect_stop("breakpoint")
        graph.request("continue", threadId=1)
        assert session.at("breakpoint")[0] == lines["method"]
        session.request("stepIn", threadId=1)
        graph.expect_stop("entry")
        graph.request("continue", threadId=1)
        assert session.at("breakpoint")[0] == lines["plain"]
        graph.request("disconnect")
    session.request("continue", threadId=1)
    session.expect_end(0)
    assert "not watched" in session.output("stderr")


def test_a_client_that_opens_no_sessions_is_given_the_port(session, script):
    lines = markers_of(script)
    begin(session, script, opens=False)
    session.request("stepIn", threadId=1)
    session.at("step")
    assert "attach to port" in session.output("important")
    session.request("continue", threadId=1)
    for name in ("call", "method", "plain"):
        assert session.at("breakpoint")[0] == lines[name]
        if name != "plain":
            session.request("continue", threadId=1)
    before = len(session.events)
    session.request("stepIn", threadId=1)
    session.expect_any("stopped", "terminated")
    said = [e["body"] for e in session.events[before:] if e["event"] == "output"]
    assert not [o for o in said if "attach to port" in o["output"]]
