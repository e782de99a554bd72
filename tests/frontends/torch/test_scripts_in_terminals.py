"""Python scripts that an editor launches with ``console``: in one of its terminals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import textwrap
import time

import pytest
from dap.client import PATIENCE_S, Client, Refused, markers_of

SCRIPT = """\
    import os
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x):
            y = x * 2  # break: twice
            return y.log()

    model = Net()
    name = input("name? ")
    print("\\033[32m" + name if sys.stdout.isatty() else "no terminal", os.environ["GREETING"])
    print("the result is", model(torch.ones(4))[0].item(), sys.argv[1:])
    raise SystemExit(3)
"""


class Terminal:
    """What a client does for ``runInTerminal``."""

    def __init__(self, client: Client):
        request = client.expect_request("runInTerminal")
        self.asked = request["arguments"]
        self._side, theirs = pty.openpty()
        self._seen = ""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for name, value in self.asked.get("env", {}).items():
            environment.pop(name, None) if value is None else environment.update({name: value})
        # A terminal of its own, whose keys send signals.
        setsid = [sys.executable, "-c", TAKES_TERMINAL, *self.asked["args"]]
        self.process = subprocess.Popen(
            setsid, cwd=self.asked["cwd"], env=environment, stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        client.answer(request, {"processId": self.process.pid})

    def expect(self, text: str) -> None:
        """Waits until that was written."""
        until = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            assert time.monotonic() < until, self._seen
            if select.select([self._side], [], [], 0.1)[0]:
                try:
                    self._seen += os.read(self._side, 4096).decode()
                except OSError:  # nobody has the other side any more
                    assert text in self._seen, self._seen

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._side)


TAKES_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return path


@pytest.fixture
def client():
    with Client.over_socket() as client:
        client.initialize(supportsRunInTerminalRequest=True)
        yield client


@pytest.fixture
def launched(client, script):
    """Gives what launches the script and opens its terminal."""
    opened: list[Terminal] = []

    def launch(**more) -> Terminal:
        arguments = {"program": str(script), "cwd": str(script.parent), "args": ["--epochs", "1"]}
        arguments |= {"console": "integratedTerminal", "env": {"GREETING": "hello", "X": None}}
        seq = client.send("launch", arguments | more)
        opened.append(Terminal(client))
        assert client.response(seq)["success"]
        return opened[0]

    yield launch
    for terminal in opened:
        terminal.end()


def test_a_script_in_a_terminal_reads_from_it_and_is_debugged(client, script, launched):
    terminal = launched()
    assert terminal.asked["kind"] == "integrated"
    assert terminal.asked["title"] == "opstep: train.py"
    assert terminal.asked["env"] == {"GREETING": "hello", "X": None}
    client.expect("initialized")
    client.set_breakpoints(script, ["twice"])
    client.request("configurationDone")
    process = next(e["body"] for e in client.events if e["event"] == "process")
    assert process["systemProcessId"] == terminal.process.pid
    terminal.expect("name? ")
    terminal.type("Ada\n")
    terminal.expect("\x1b[32mAda hello")
    client.expect_stop("breakpoint")
    assert client.where() == ("Net.forward", markers_of(script)["twice"])
    client.request("continue", threadId=1)
    client.expect_end(3)
    terminal.expect("the result is 0.69")
    terminal.expect("['--epochs', '1']")
    assert client.output() == ""


def test_ctrl_c_in_its_terminal_ends_a_script_that_is_stopped(client, script, launched):
    terminal = launched(console="externalTerminal")
    assert terminal.asked["kind"] == "external"
    client.expect("initialized")
    client.set_breakpoints(script, ["twice"])
    client.request("configurationDone")
    terminal.type("Ada\n")
    client.expect_stop("breakpoint")
    terminal.type("\x03")
    client.expect_end(130)


def test_terminate_ends_a_script_in_a_terminal(client, launched):
    terminal = launched()
    client.expect("initialized")
    client.request("configurationDone")
    terminal.expect("name? ")
    client.request("terminate")
    client.expect("terminated")
    assert terminal.process.wait(PATIENCE_S) != 0


def test_a_script_whose_terminal_is_closed_has_ended(client, launched):
    terminal = launched()
    client.expect("initialized")
    client.request("configurationDone")
    terminal.expect("name? ")
    terminal.process.kill()
    assert client.expect_any("exited", "terminated") == "terminated"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminateDebuggee", "onDisconnect"])
def test_a_client_that_leaves_lets_a_script_go_on_in_its_terminal(client, launched, how):
    terminal = launched(**({"onDisconnect": "continue"} if how == "onDisconnect" else {}))
    client.expect("initialized")
    client.request("configurationDone")
    terminal.expect("name? ")
    client.request("disconnect", {how: False} if how == "terminateDebuggee" else None)
    client.expect_closed()
    terminal.type("Ada\n")
    terminal.expect("the result is 0.69")
    assert terminal.process.wait(PATIENCE_S) == 3


def test_a_script_runs_in_a_terminal_without_debugging(client, launched):
    terminal = launched(noDebug=True)
    terminal.expect("name? ")
    terminal.type("Ada\n")
    client.expect_end(3)
    terminal.expect("the result is 0.69")


def test_a_script_that_cannot_begin_in_its_terminal_is_refused(client, script):
    given = {"program": str(script), "console": "integratedTerminal", "streams": 65}
    seq = client.send("launch", given)
    terminal = Terminal(client)
    refusal = client.response(seq)
    terminal.expect("--streams")
    terminal.end()
    assert "its terminal tells why" in refusal["body"]["error"]["format"]


def test_terminals_that_do_not_come_are_told(client, script, tmp_path):
    given = {"program": str(script), "console": "integratedTerminal"}
    seq = client.send("launch", given)
    client.answer(client.expect_request("runInTerminal"), success=False)
    assert "could not open a terminal" in client.response(seq)["body"]["error"]["format"]

    seq = client.send("launch", given)
    gone = subprocess.Popen(["true"])
    gone.wait(PATIENCE_S)
    client.answer(client.expect_request("runInTerminal"), {"shellProcessId": gone.pid})
    assert "did not start" in client.response(seq)["body"]["error"]["format"]

    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(Refused, match="has no opstep: install it there"):
        client.request("launch", given | {"python": str(bare)})
    with pytest.raises(Refused, match="could not be started"):
        client.request("launch", given | {"python": str(tmp_path / "no")})
    assert client.reverse == []


@pytest.mark.parametrize("answers", [False, True])
def test_a_script_that_is_ended_before_its_terminal_is_there(client, script, answers):
    seq = client.send("launch", {"program": str(script), "console": "integratedTerminal"})
    asked = client.expect_request("runInTerminal")
    if answers:
        client.answer(asked, {})
    client.request("terminate")
    assert not client.response(seq)["success"]


def test_a_client_that_leaves_while_its_terminal_opens(client, script):
    client.send("launch", {"program": str(script), "console": "integratedTerminal"})
    client.expect_request("runInTerminal")
    client.request("disconnect")
    client.expect_closed()


def test_a_console_that_there_is_not(script):
    with Client.over_socket() as client:
        client.initialize()
        with pytest.raises(Refused, match="console is 'terminal'; it can be internalConsole, "):
            client.request("launch", program=str(script), console="terminal")
        with pytest.raises(Refused, match="console: the editor opens no terminals"):
            client.request("launch", program=str(script), console="integratedTerminal")
