"""``opstep debug train.py`` at a pseudo-terminal, which the script shares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import Terminal
from waiting import cpu_seconds, wait_until

pytest.importorskip("debugpy")

SCRIPT = """\
import os
import subprocess
import sys

name = input("name? ")
helper = subprocess.Popen([sys.executable, "-c", "while True: input()"], stdin=subprocess.PIPE)
print(f"\\033[32m{name}", os.isatty(1), "ids", os.getpid(), helper.pid, flush=True)
turns = 0
while True:
    turns += 1
"""
PAUSED = r"Paused\.\s+<module> at train\.py:(9|10)"
PROMPT = r"\(opstep\) "


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    opened = Terminal(tmp_path, "train.py")
    opened.expect(PROMPT)
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def begin(terminal: Terminal) -> list[int]:
    """Starts the script, which then turns; gives its process and that of its child."""
    terminal.send("run\r")
    terminal.expect(r"\nname\? ")
    terminal.send("Ada\r")
    terminal.expect(r"\nAda True ids")
    ids = terminal.expect(r"\d+ \d+\r\n").split()
    assert all(runs(int(one)) for one in ids)
    return [int(one) for one in ids]


def test_ctrl_c_pauses_the_script(terminal):
    ids = begin(terminal)
    for _ in range(2):
        terminal.send("\x03")
        terminal.expect(PAUSED)
        terminal.expect(PROMPT)
        used = cpu_seconds(ids[0])
        terminal.send("continue\r")
        wait_until(lambda before=used: cpu_seconds(ids[0]) > before + 0.2)
    terminal.send("\x03")
    terminal.expect(PAUSED)
    terminal.expect(PROMPT)
    terminal.send("print nam\t")
    terminal.expect(r"nam[^(]*e")  # not that of a prompt
    terminal.send(" + '!'\r")
    terminal.expect(r"name \+ '!' = 'Ada!'")
    terminal.send("quit\r")
    assert terminal.close() == 0 and not any(map(runs, ids))


def test_a_second_ctrl_c_ends_the_script(terminal):
    ids = begin(terminal)
    terminal.send("\x03")
    terminal.expect(PAUSED)
    terminal.expect(PROMPT)
    terminal.send("import time; print('it', 'waits'); time.sleep(1000)\r")
    terminal.expect("it waits")
    terminal.send("\x03")
    terminal.expect("the script has not answered")
    terminal.expect(PROMPT)
    terminal.send("run\r")  # the one that is busy ends
    terminal.expect(r"\nname\? ")
    assert not any(map(runs, ids))
    terminal.send("\x03")  # it waits for input, and cannot stop
    terminal.expect("Ctrl-C again ends the script")
    terminal.send("\x03")
    terminal.expect(r"The script was ended\.")
    terminal.expect(PROMPT)
    terminal.send("\x04")
    assert terminal.close() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_session_that_is_killed_leaves_nothing(terminal, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("who started this ignores it, as nohup does, and so do its children")
    ids = begin(terminal)
    listed = ["ps", "-o", "pid=", "--ppid", str(terminal.process.pid)]
    ours = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert len(ours) == 2  # the adapter, and the launcher of the script
    os.kill(terminal.process.pid, number)
    terminal.process.wait()
    wait_until(lambda: not any(map(runs, [*ids, *map(int, ours)])))


def test_nobody_takes_the_terminal_of_a_command_in_the_background(tmp_path):
    """The shell's process group keeps the terminal."""
    (tmp_path / "train.py").write_text("print('in', 'background')\n")
    words = [sys.executable, "-m", "opstep", "debug", "--batch", "-ex", "run", "train.py"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, process_group=0)
    assert (ended.returncode, ended.stdout) == (0, "in background\nThe script has ended.\n")
