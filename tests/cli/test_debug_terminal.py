"""``opstep debug`` at a pseudo-terminal: Ctrl-C, Tab, history, colours."""

from __future__ import annotations

import pytest
from debugged_program import PROGRAM
from terminals import Terminal
from waiting import cpu_seconds, wait_until


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
