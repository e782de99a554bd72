"""Python scripts that an editor launches: ``launch`` with a ``.py`` as its program."""

from __future__ import annotations

import sys
import textwrap
from contextlib import suppress

import pytest
from dap.client import Client, Refused, markers_of
from waiting import runs, wait_until

SCRIPT = """\
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x):
            y = x * 2  # break: twice
            return y.log()  # break: log

    model = Net()
    print("arguments", sys.argv[1:], flush=True)
    for value in (1.0, -1.0):
        result = model(torch.full((4,), value))  # break: call
    print("the result is", result[0].item(), file=sys.stderr)
    raise SystemExit(3)
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def client():
    with Client.over_socket() as client:
        client.initialize()
        yield client


def test_a_script_stops_in_its_modules_and_ends_with_its_code(client, script):
    path = script(SCRIPT)
    lines = markers_of(path)
    client.launch(path, args=["--epochs", "1"], cwd=str(path.parent))
    assert client.events[-1]["event"] == "initialized"
    told = [e["body"]["capabilities"] for e in client.events if e["event"] == "capabilities"]
    assert told == [{"supportsRestartRequest": False}]
    client.set_breakpoints(path, ["twice"])
    client.request("setExceptionBreakpoints", filters=["nan-origin"])
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert [(f["name"], f["line"]) for f in client.stack()] == [
        ("Net.forward", lines["twice"]), ("<module>", lines["call"]),
    ]  # fmt: skip
    (scope, *_) = client.request("scopes", frameId=client.stack()[0]["id"])["scopes"]
    (found,) = client.request("variables", variablesReference=scope["variablesReference"])[
        "variables"
    ]
    assert (found["name"], found["value"]) == ("x", "[1.0, 1.0, 1.0, 1.0]")
    client.go("next", "step")
    assert client.where() == ("Net.forward", lines["log"])
    client.go("stepBack", "breakpoint")
    assert client.where() == ("Net.forward", lines["twice"])
    client.go("continue", "breakpoint")
    client.go("continue", "exception")
    told = client.request("exceptionInfo", threadId=1)
    assert told["description"].endswith("4 NaN of 4 elements (log of a negative number)")
    assert told["details"]["stackTrace"].endswith(f"train.py:{lines['log']})")
    client.request("continue", threadId=1)
    client.expect_end(3)
    assert client.output("stdout") == "arguments ['--epochs', '1']\n"
    assert client.output("stderr") == "the result is nan\n"


LONGER = """\
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x):
            y = x * 2  # break: twice
            return y.log()  # break: log

    model = Net()
    for value in (1.0, 2.0, 3.0, -1.0, 4.0):
        print("value", value, flush=True)
        model(torch.full((4,), value))
"""


@pytest.mark.slow
@pytest.mark.parametrize("filters", [["nan-origin"], []])
def test_without_breakpoints_it_stops_once_and_then_where_a_nan_is_born(client, script, filters):
    path = script(LONGER)
    client.launch(path, stopOnEntry=True, cwd=str(path.parent))
    client.request("setExceptionBreakpoints", filters=filters)
    client.request("configurationDone")
    client.expect_stop("entry")
    if filters:
        client.go("continue", "exception")
        assert client.where() == ("Net.forward", markers_of(path)["log"])
        client.expect_output("value -1.0\n", "stdout")
    client.request("continue", threadId=1)
    client.expect_end(0)
    client.expect_output("value 4.0\n", "stdout")


def test_steps_go_from_pass_to_pass_and_breakpoints_stop_in_later_ones(client, script):
    path = script(LONGER)
    lines = markers_of(path)
    client.launch(path, stopOnEntry=True, cwd=str(path.parent))
    client.request("configurationDone")
    client.expect_stop("entry")
    client.go("stepIn", "step")
    assert client.where() == ("Net.forward", lines["twice"])
    client.go("next", "step")
    assert client.where() == ("Net.forward", lines["log"])
    while client.go("next")["reason"] == "step":
        pass
    client.expect_output("value 2.0\n", "stdout")
    client.set_breakpoints(path, ["log"])
    client.go("continue", "breakpoint")
    client.go("continue", "breakpoint")
    client.expect_output("value 3.0\n", "stdout")
    client.set_breakpoints(path, [])
    client.request("continue", threadId=1)
    client.expect_end(0)


SCALED = """\
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 2.0))
            self.register_buffer("shift", torch.ones(4))
            self.register_buffer("x", torch.full((4,), 7.0))

        def forward(self, x, more):
            pair = (x + 1, x * 3)
            one, two = x - 1, x * 4
            odd, even = x - 1, x * 4 + 1
            y = pair[0] * self.weight + self.shift + self.x + more + one + two + odd + even
            return y + pair[1]  # break: end

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = Scale()
            self.gain = nn.Parameter(torch.full((4,), 5.0))

        def forward(self, x):
            y = self.scale(x, x) * self.gain
            return y.sum()  # break: sum

    Net()(torch.zeros(4)).backward()
"""


def test_what_a_name_means_in_a_module(client, script):
    """Weights of `self` are known; a tuple is no tensor that was put into it."""

    def hovers(*names: str) -> dict[str, str]:
        frame = client.stack()[0]["id"]
        found = {}
        for name in names:
            with suppress(Refused):
                asked = {"expression": name, "frameId": frame, "context": "hover"}
                found[name] = client.request("evaluate", asked)["result"]
        return found

    path = script(SCALED)
    client.launch(path)
    client.set_breakpoints(path, ["end", "sum"])
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert client.where()[0] == "Scale.forward (scale)"
    assert hovers("self.weight", "self.shift", "one", "two", "odd", "even") == {
        "self.weight": "[2.0, 2.0, 2.0, 2.0]", "self.shift": "[1.0, 1.0, 1.0, 1.0]",
        "one": "[-1.0, -1.0, -1.0, -1.0]", "two": "[0.0, 0.0, 0.0, 0.0]",
        "odd": "[-1.0, -1.0, -1.0, -1.0]", "even": "[1.0, 1.0, 1.0, 1.0]",
    }  # fmt: skip
    assert hovers("pair", "self.gain", "self.x", "self") == {}
    client.go("continue", "breakpoint")
    assert client.where()[0] == "Net.forward"
    assert hovers("self.gain", "self.scale.weight", "self.weight") == {
        "self.gain": "[5.0, 5.0, 5.0, 5.0]", "self.scale.weight": "[2.0, 2.0, 2.0, 2.0]",
    }  # fmt: skip


def test_terminate_ends_a_script_with_what_it_started(client, script):
    path = script(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        child.wait()
        """
    )
    client.launch(path)
    client.request("configurationDone")
    pid = int(client.expect("output", category="stdout")["output"])
    process = next(e["body"] for e in client.events if e["event"] == "process")
    assert process["startMethod"] == "launch" and runs(pid)
    client.request("terminate")
    client.expect("exited")
    client.expect("terminated")
    wait_until(lambda: not runs(pid) and not runs(process["systemProcessId"]))


def test_a_script_that_raises_before_any_module_is_called_is_told(client, script):
    client.launch(script("print('begins')\nraise ValueError('no data')\n"))
    client.request("configurationDone")
    client.expect_end(1)
    assert "ValueError: no data" in client.output("stderr")
    assert client.output("stdout") == "begins\n"


def test_a_script_runs_at_full_speed_without_debugging(client, script):
    path = script(SCRIPT)
    client.request("launch", {"program": str(path), "noDebug": True, "module": "*"})
    client.expect_end(3)
    assert "the result is nan" in client.output("stderr")


BARE = "#!/bin/sh\necho 'No module named opstep' >&2; exit 1\n"


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (BARE, "has no opstep: install it there"),
        ("", "could not be started"),
        ("#!/bin/sh\nexit 7\n", "ended with 7 and said nothing"),
    ],
)
def test_a_python_that_cannot_run_a_script_is_told(client, script, tmp_path, python, said):
    path = script("print(1)")
    given = tmp_path / "python"
    if python:
        given.write_text(python.format(python=sys.executable))
        given.chmod(0o755)
    with pytest.raises(Refused) as refused:
        client.request("launch", {"program": str(path), "python": str(given)})
    assert said in refused.value.text and refused.value.shown
    assert "Traceback" not in refused.value.text
    # The session stays: another launch may follow.
    with suppress(Refused):
        client.request("launch", {"program": str(tmp_path / "no.py")})


def test_what_is_no_script_or_folder_is_told(client, tmp_path, script):
    with pytest.raises(Refused, match="program: there is no file"):
        client.request("launch", {"program": str(tmp_path / "no.py")})
    with pytest.raises(Refused, match="cwd: there is no folder"):
        client.request("launch", {"program": str(script("")), "cwd": str(tmp_path / "no")})
