"""How a script is launched and ended: its terminal, its processes, its Python."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dap.client import PATIENCE_S, Refused, markers_of
from dap.test_python_sessions import Session
from waiting import runs, wait_until

SCRIPT = """\
import os
import sys


def double(x):
    return x * 2  # break: twice


name = input("name? ")
print("\\033[32m" + name if sys.stdout.isatty() else "no terminal", os.environ["GREETING"])
print("the result is", double(4), sys.argv[1:])
raise SystemExit(3)
"""
TAKES_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """Does for ``runInTerminal`` what a client does."""

    def __init__(self, session: Session):
        request = session.expect_request("runInTerminal")
        self.asked = request["arguments"]
        self._side, theirs = pty.openpty()
        self._seen = ""
        environment = {**os.environ}
        for name, value in self.asked.get("env", {}).items():
            environment.pop(name, None) if value is None else environment.update({name: value})
        # A terminal of its own, whose keys send signals.
        setsid = [sys.executable, "-c", TAKES_TERMINAL, *self.asked["args"]]
        self.process = subprocess.Popen(
            setsid, cwd=self.asked["cwd"], env=environment, stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        session.answer(request, {"processId": self.process.pid})

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


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.over_stdio() as one:
        assert isinstance(one, Session)
        yield one


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def script(write):
    return write(SCRIPT)


Opens = Callable[..., Terminal]


@pytest.fixture
def opened(session, script) -> Iterator[Opens]:
    """Launches the script in a terminal, with a breakpoint."""
    all_opened: list[Terminal] = []

    def launch(**more: Any) -> Terminal:
        session.initialize(supportsRunInTerminalRequest=True)
        arguments = {"program": str(script), "cwd": str(script.parent), "args": ["--epochs", "1"]}
        arguments |= {"console": "integratedTerminal", "env": {"GREETING": "hello"}}
        answer = session.send("launch", arguments | more)
        all_opened.append(Terminal(session))
        if not more.get("noDebug"):
            session.expect("initialized")
            session.configure(script, "twice")
        assert session.response(answer)["success"]
        return all_opened[0]

    yield launch
    for terminal in all_opened:
        terminal.end()


def test_a_script_reads_from_its_terminal_and_is_debugged(session, script, opened: Opens):
    terminal = opened()
    assert terminal.asked["kind"] == "integrated"
    terminal.expect("name? ")
    terminal.type("Ada\n")
    terminal.expect("\x1b[32mAda hello")
    assert session.at("breakpoint")[0] == markers_of(script)["twice"]
    session.request("continue", threadId=1)
    session.expect_end(3)
    terminal.expect("the result is 8 ['--epochs', '1']")
    assert session.output("stdout") == ""


def test_a_terminal_without_debugging(session, opened: Opens):
    terminal = opened(noDebug=True, console="externalTerminal")
    assert terminal.asked["kind"] == "external"
    terminal.expect("name? ")
    terminal.type("Ada\n")
    session.expect_end(3)
    terminal.expect("the result is 8")


def test_terminate_ends_a_script_in_a_terminal(session, opened: Opens):
    terminal = opened()
    terminal.expect("name? ")
    session.request("terminate")
    session.expect("terminated")
    assert terminal.process.wait(PATIENCE_S) != 0


def test_a_script_whose_terminal_is_closed_has_ended(session, opened: Opens):
    terminal = opened()
    terminal.expect("name? ")
    os.killpg(terminal.process.pid, signal.SIGHUP)
    terminal.process.wait(PATIENCE_S)
    began = time.monotonic()
    session.expect("terminated")
    assert time.monotonic() - began < PATIENCE_S / 2  # debugpy may wait 30 seconds for its launcher


def test_a_client_that_leaves_while_its_terminal_opens(session, script):
    session.initialize(supportsRunInTerminalRequest=True)
    session.send("launch", {"program": str(script), "console": "integratedTerminal"})
    session.expect_request("runInTerminal")
    session.vanish()
    session.expect_closed()


def test_terminate_ends_a_script_with_what_it_started(session, write):
    path = write(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    session.begin(path, subProcess=False)
    pid = int(session.expect("output", category="stdout")["output"])
    (process,) = (e["body"] for e in session.events if e["event"] == "process")
    assert process["startMethod"] == "launch" and runs(pid)
    session.request("terminate")
    session.expect("terminated")
    wait_until(lambda: not runs(pid) and not runs(process["systemProcessId"]))


def test_a_script_that_raises(session, write):
    session.begin(write("print('begins')\nraise ValueError('no data')\n"))
    session.expect_end(1)
    assert "ValueError: no data" in session.output("stderr")
    assert session.output("stdout") == "begins\n"


def test_a_script_runs_without_debugging(session, write):
    path = write("import sys\nprint('without', sys.gettrace())\nsys.exit(4)\n")
    session.initialize()
    session.request("launch", {"program": str(path), "noDebug": True})
    session.expect_end(4)
    assert session.output("stdout") == "without None\n"


def test_a_python_that_there_is_not(session, script, tmp_path):
    session.initialize()
    with pytest.raises(Refused, match="No such file") as refused:
        session.request("launch", {"program": str(script), "python": [str(tmp_path / "no")]})
    assert "Traceback" not in refused.value.text


def test_a_console_that_there_is_not(session, script):
    session.initialize()
    with pytest.raises(Refused, match='"console" must be one of'):
        session.request("launch", program=str(script), console="terminal")
    session.vanish()
    session.expect_closed()
    assert session.process.stderr.read() == b""


def test_a_client_that_does_not_wait_for_the_first_answer(session, write):
    greeting = session.send("initialize", {"adapterID": "x"})
    answer = session.send("launch", {"program": str(write("print(1)"))})
    session.expect("initialized")
    assert session.response(greeting)["success"]
    session.request("configurationDone")
    assert session.response(answer)["success"]
    session.expect_end(0)


def test_a_killed_client_leaves_no_script_that_is_stuck(session, write):
    """In a text that never ends, where debugpy cannot end it."""
    path = write(
        "class Endless:\n    def __repr__(self):\n        while True:\n            pass\n\n\n"
        "x = Endless()\nprint('ready')  # break: here\n"
    )
    session.begin(path, "here")
    session.at("breakpoint")
    (process,) = (e["body"] for e in session.events if e["event"] == "process")
    scopes = session.request("scopes", frameId=session.frames[0]["id"])["scopes"]
    session.send("variables", {"variablesReference": scopes[0]["variablesReference"]})
    session.vanish()
    wait_until(lambda: not runs(process["systemProcessId"]))
