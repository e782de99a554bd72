"""Sessions on Python scripts: debugpy's, with tensors and the births of NaNs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dap.client import PATIENCE_S, Client, Refused, markers_of
from dap.test_ends import state_of

pytest.importorskip("torch")

NAN = """\
import torch


def loss_of(x):
    y = x - 2
    root = y.sqrt()  # break: forward
    return root.sum()


v = torch.zeros(2, requires_grad=True)
x = torch.tensor([1.0, 6.0])
for step in range(2):
    loss = loss_of(x + step)  # break: calling
slope = v.sqrt()  # break: slope
slope.sum().mul(0).backward()  # break: backward
print("done", v.grad.tolist())  # break: end
"""
PLAIN = """\
import os
import sys

values = {"a": [1, 2], "b": (3,)}
total = 0
for k in range(3):
    total += k  # break: loop
print("total", total, sys.argv[1:], os.environ.get("PYTHONPATH"), os.environ.get("MINE"))
raise KeyError("missing")  # break: raising
"""


DEBUGPYS = re.compile(
    r"Debugpy\w+Event|ModuleEvent|supportsDebuggerProperties|data: Additional|'source' was"
)


class Session(Client):
    """Of `opstep dap` with a script. What debugpy adds to the protocol is debugpy's."""

    def __exit__(self, *error: Any) -> None:
        self.close()
        assert error[0] or [p for p in self.problems if not DEBUGPYS.search(p)] == []

    def begin(self, path: Path, *breakpoints: Any, filters: Any = (), **launch: Any) -> None:
        """Launches it, up to its first line."""
        self.initialize()
        answer = self.send("launch", {"program": str(path), "cwd": str(path.parent), **launch})
        self.expect("initialized")
        self.configure(path, *breakpoints, filters=filters)
        assert self.response(answer)["success"]

    def configure(self, path: Path, *breakpoints: Any, filters: Any = ()) -> None:
        self.set_breakpoints(path, breakpoints)
        self.request("setExceptionBreakpoints", filters=list(filters))
        self.request("configurationDone")

    def at(self, reason: str) -> tuple[int, dict[str, Any]]:
        """The line of the next stop, and its event."""
        stop = self.expect_stop(reason)
        self.frames = self.stack(stop["threadId"])
        return self.frames[0]["line"], stop

    def evaluate(self, expression: str, context: str = "watch") -> str:
        arguments = {"expression": expression, "frameId": self.frames[0]["id"], "context": context}
        return self.request("evaluate", arguments)["result"]

    def scopes(self) -> dict[str, dict[str, str]]:
        scopes = self.request("scopes", frameId=self.frames[0]["id"])["scopes"]
        return {s["name"]: self._values(s["variablesReference"]) for s in scopes}

    def _values(self, reference: int) -> dict[str, str]:
        found = self.request("variables", variablesReference=reference)["variables"]
        return {v["name"]: v["value"] for v in found}


@pytest.fixture(params=["--script", None], ids=["for scripts", "for all"])
def session(request) -> Iterator[Session]:
    """By both ways in: a server for scripts, and the one for all programs."""
    with Session.over_stdio(*filter(None, [request.param])) as one:
        assert isinstance(one, Session)
        yield one


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_script_is_debugged_as_python(session, script):
    path = script(PLAIN)
    lines = markers_of(path)
    session.begin(path, "loop", filters=["uncaught"], args=["--lr", "1"], env={"MINE": "1"})
    assert session.at("breakpoint")[0] == lines["loop"]
    assert session.evaluate("len(values['a']) + k") == "2"
    assert session.scopes()["Locals"]["values"] == "{'a': [1, 2], 'b': (3,)}"
    session.request("setBreakpoints", source={"path": str(path)}, breakpoints=[])
    session.request("continue", threadId=1)
    line, _ = session.at("exception")
    assert line == lines["raising"]
    assert session.request("exceptionInfo", threadId=1)["exceptionId"] == "KeyError"
    session.request("continue", threadId=1)
    session.expect_end(1)
    own = os.pathsep.join(sys.path)  # as the server was given it
    assert f"total 3 ['--lr', '1'] {own} 1" in session.output("stdout")


@pytest.mark.usefixtures("compiled_parts")
def test_a_nan_stops_where_it_is_born(session, script):
    path = script(NAN)
    lines = markers_of(path)
    session.begin(path, filters=["nan-origin"])
    line, stop = session.at("exception")
    assert line == lines["forward"]
    assert stop["description"] == "Paused on nan: iteration 1 (line 12)"
    assert "born in sqrt" in stop["text"]
    info = session.request("exceptionInfo", threadId=stop["threadId"])
    assert info["exceptionId"] == "nan"
    assert "square root of a negative number" in info["details"]["message"]
    scopes = session.scopes()
    assert scopes["Operands of sqrt"]["input"].startswith("f32[2]  mean 1.5")
    assert "root" not in scopes["Locals"] and "y" in scopes["Locals"]
    assert session.evaluate("op.operands.input.tolist()") == "[-1.0, 4.0]"
    # What is computed at a stop neither stops again nor counts as the script's.
    assert session.evaluate("op.isnan(torch.tensor(-1.0).sqrt())") == "True"
    session.request("next", threadId=stop["threadId"])
    assert session.at("step")[0] == lines["forward"] + 1
    assert session.evaluate("root").startswith("f32[2]  1 NaN of 2, the rest 2")
    assert session.evaluate("root", "repl").startswith("tensor([nan")


def test_a_nan_of_the_backward_is_shown_at_its_forward_line(session, script):
    path = script(NAN.replace("x - 2", "x + 2"))
    lines = markers_of(path)
    session.begin(path, filters=["nan-origin"])
    line, stop = session.at("exception")
    assert line == lines["slope"]
    assert [f["line"] for f in session.frames] == [lines["slope"], lines["backward"]]
    assert session.frames[0]["name"] == "backward of `slope = v.sqrt()`"
    assert session.evaluate("slope") == "f32[2]  all 0"
    assert list(session.scopes()) == ["Operands of div"]
    pages = [session.request("stackTrace", threadId=1, startFrame=k, levels=1) for k in (0, 1)]
    assert [p["stackFrames"][0]["line"] for p in pages] == [lines["slope"], lines["backward"]]
    session.request("continue", threadId=stop["threadId"])
    session.expect_end(0)
    assert "done [nan, nan]" in session.output("stdout")


def test_stops_at_nans_are_turned_on_and_off(session, script):
    path = script(NAN)
    lines = markers_of(path)
    session.begin(path, "calling")
    assert session.at("breakpoint")[0] == lines["calling"]
    session.request("setExceptionBreakpoints", filters=["nan-origin"])
    session.request("continue", threadId=1)
    assert session.at("exception")[0] == lines["forward"]
    session.request("setExceptionBreakpoints", filters=[])
    session.request("setBreakpoints", source={"path": str(path)}, breakpoints=[])
    session.request("continue", threadId=1)
    session.expect_end(0)


def test_a_script_without_tensors_ends_as_it_does(session, script):
    session.begin(script("import sys\nsys.exit(3)\n"), filters=["nan-origin"])
    session.expect_end(3)


def test_a_python_without_opstep_is_said_to_have_none(script):
    with Session.over_stdio("--script") as session:
        session.begin(script("x = 1\nprint(x)\n"), pythonArgs=["-I"])
        session.expect_end(0)
        assert "opstep is not in the program's process" in session.output("important")


def test_our_functions_hide_no_error(session, script):
    path = script("try:\n    op.run()\nexcept NameError as error:\n    print(error)\n")
    session.begin(path)
    session.expect_end(0)
    assert session.output("stdout") == "name 'op' is not defined\n"


def test_a_port_where_nobody_listens(session):
    session.initialize()
    with pytest.raises(Refused, match=r"no program listens on 127\.0\.0\.1:1"):
        session.request("attach", {"connect": {"host": "127.0.0.1", "port": 1}})


def test_a_client_that_is_killed_leaves_no_script(script, tmp_path):
    path = script(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                  "while True:\n    time.sleep(0.01)  # break: here\n")  # fmt: skip
    with Session.over_stdio("--script") as session:
        session.begin(path, "here")
        session.at("breakpoint")
        process = int((tmp_path / "pid").read_text())
        session.process.send_signal(signal.SIGKILL)
        session.process.wait()
        while state_of(process) not in ("", "Z", "X"):  # pytest's timeout ends what lives on
            time.sleep(0.01)
        session.process = None
        session._ended = True


LISTENS = """\
import sys
import opstep
print("port:", opstep.debug.listen(), file=sys.stderr, flush=True)
opstep.debug.wait_for_client()
"""


@pytest.mark.usefixtures("compiled_parts")
@pytest.mark.parametrize("how", ["opstep debug", "opstep.debug.listen"])
def test_a_client_attaches_to_a_script_that_listens(session, script, how):
    calls = how == "opstep.debug.listen"
    path = script(LISTENS * calls + NAN)
    lines = markers_of(path)
    listens = ["-m", "opstep", "debug", "--listen", "0", "--wait"] if not calls else []
    words = [sys.executable, *listens, str(path)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        session.initialize()
        answer = session.send("attach", {"connect": {"host": "127.0.0.1", "port": port}})
        session.expect("initialized")
        session.configure(path, filters=["nan-origin"])
        assert session.response(answer)["success"]
        assert session.at("exception")[0] == lines["forward"]
        assert session.evaluate("op.absmax(y)") == "4.0"
        session.request("stepBack", threadId=1)
        assert session.at("step")[1]["description"].startswith("Paused in the past")
        session.request("continue", threadId=1)
        session.at("step")
        session.request("continue", threadId=1)
        assert session.at("exception")[0] == lines["slope"]
        session.request("continue", threadId=1)
        session.expect("terminated")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # debugpy's adapter may hold the other end
