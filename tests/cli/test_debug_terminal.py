"""``opstep debug`` at a pseudo-terminal: Ctrl-C, Tab, history, colours."""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
import sys
import termios
import time

import pytest
from debugged_program import PROGRAM
from waiting import PATIENCE_S, cpu_seconds, wait_until


class Terminal:
    """A session at a pseudo-terminal."""

    def __init__(self, folder, *arguments):
        self.master, slave = os.openpty()
        environment = os.environ | {
            "XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm", "COLUMNS": "100",
            "LINES": "40", "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opstep", "debug", *map(str, arguments)], cwd=folder,
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=control,
        )  # fmt: skip
        os.close(slave)
        self.seen = self.raw = ""

    def expect(self, pattern: str, seconds: float = PATIENCE_S) -> str:
        """What is printed until a pattern comes; it and what is before it are taken."""
        until = time.monotonic() + seconds
        while True:
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]", "", self.seen)
            found = re.search(pattern, text)
            if found:
                self.seen = text[found.end() :]
                return text[: found.end()]
            ready, _, _ = select.select([self.master], [], [], max(until - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {text!r}"
            data = os.read(self.master, 65536).decode("utf-8", "replace")
            if "\x1b[6n" in data:  # where is the cursor?
                os.write(self.master, b"\x1b[1;1R")
            self.seen += data
            self.raw += data

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            os.close(self.master)


def control() -> None:
    """The slave is the controlling terminal, so that Ctrl-C becomes a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "model.opg").write_text(PROGRAM)
    opened = []

    def start(graph="main"):
        opened.append(Terminal(tmp_path, "model.opg", "-i", "x=1", "-g", graph))
        opened[-1].expect(r"\(opstep\) ")
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()


def test_ctrl_c_pauses_a_run_and_keeps_the_session(terminal):
    session = terminal("endless")
    session.send("continue\r")
    used = cpu_seconds(session.process.pid)
    wait_until(lambda: cpu_seconds(session.process.pid) > used + 0.5)  # it is in the loop
    session.send("\x03")
    assert "Paused." in session.expect(r"=> +\d+")
    session.send("p x\r")
    session.expect(r"x = \[inf, inf, inf\]|x = \[[\d.e+]+, ")
    session.expect(r"\(opstep\) ")
    session.send("nonse\x03")
    session.expect(r"Quit")
    session.send("rn\r")
    session.expect(r"=> +\d+")
    session.send("quit\r")
    assert session.close() == 0


def test_tab_history_and_colours(terminal, tmp_path):
    session = terminal()
    session.send("reverse-n\t\r")
    session.expect("beginning of the run")
    session.expect(r"\(opstep\) ")
    session.send("print w\r")
    session.expect(r"w = \[0")
    session.expect(r"\(opstep\) ")
    session.send("\x04")  # the end of the input ends the session
    assert session.close() == 0
    assert "print w" in (tmp_path / "state" / "opstep" / "debug_history").read_text()
    again = terminal()
    again.send("\x1b[A\r")
    again.expect(r"w = \[0")
    again.expect(r"\(opstep\) ")
    again.send("n\r")
    again.expect(r"=> +6 ")
    assert "\x1b[1;32m=>\x1b[0m" in again.raw
    again.expect(r"\(opstep\) ")
    again.send("q\r")
    assert again.close() == 0
