"""Helix, set up as docs/editors.md says, and used in a terminal that the test looks at."""

import re
import subprocess
import time

import pytest
from snippets import BROKEN, MODEL, block, environment, needs

PATIENCE_S = 60
SCREEN = ["-x", "120", "-y", "40"]


class Terminal:
    """A terminal with an editor in it."""

    def __init__(self, tmux, socket):
        self.command = [tmux, "-S", str(socket), "-f", "/dev/null"]

    def tmux(self, *words, **how):
        return subprocess.run(
            [*self.command, *words], capture_output=True, text=True, check=True, **how
        ).stdout

    def type(self, *keys):
        """Names of keys, or ``=text``; as fast as a person, as Helix may send changes that come
        at the same instant in the wrong order.
        """
        for key in keys:
            for one in key[1:] if key.startswith("=") else [key]:
                self.tmux("send-keys", *(["-l", one] if key.startswith("=") else [one]))
                time.sleep(0.15)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def shows(self, pattern):
        """Waits until the screen shows something."""
        end = time.monotonic() + PATIENCE_S  # of a loaded machine
        while not (found := re.search(pattern, self.screen(), re.MULTILINE)):
            assert time.monotonic() < end, f"no {pattern!r} in\n{self.screen()}"
            time.sleep(0.1)
        return found


@pytest.fixture
def helix(tmp_path):
    """Opens a text in Helix."""
    editor, tmux = needs("hx"), needs("tmux")
    home = tmp_path / "home"
    settings = home / ".config" / "helix"
    settings.mkdir(parents=True)
    (settings / "languages.toml").write_text(block("toml", 0))
    (settings / "config.toml").write_text(block("toml", 1))
    terminal = Terminal(tmux, tmp_path / "socket")

    def open(text):
        (home / "model.opg").write_text(text)
        words = ["new-session", "-d", *SCREEN, editor, "model.opg"]
        terminal.tmux(*words, env=environment(home), cwd=home)
        terminal.shows("model.opg +.*1:1$")
        return terminal

    yield open
    subprocess.run([*terminal.command, "kill-server"], capture_output=True, check=False)


def test_the_language_server(helix):
    terminal = helix(BROKEN)
    terminal.shows(r"^● +3 ")  # the message's sign, then its text on its line
    terminal.type("=]d")
    terminal.shows("there is no op or graph sofmax")
    terminal.shows(r"sharp: f32\[N, K\] = mul")  # hints

    terminal.type("=csoftm")
    terminal.shows("softmax_cross_entropy +function")  # completion
    terminal.type("=ax", "Escape")
    terminal.shows(r"^ +3 +p: f32\[N, K\] = softmax\(sharp\)")

    terminal.type("= k")
    terminal.shows(r"softmax\(x: F, \*, axis: int = -1\)")  # hover
    terminal.type("Escape", "=gg3j", "=fi", "=gd")
    terminal.shows("model.opg .* 9:7$")  # definition

    terminal.type("=:format", "Enter")
    terminal.shows(r"^ +5 +mean(: f32\[\])? = mean\(each\)")  # it draws hints anew later


def test_the_debugger(helix):
    terminal = helix(MODEL)

    def stands(line):
        terminal.shows(rf"^▶ +{line} ")

    terminal.type("=:debug-start random model.opg", "Enter")
    stands(2)
    terminal.type("= Gn", "Escape")
    stands(3)
    terminal.type("= Gn", "Escape")
    stands(4)
    terminal.type("= Gi", "Escape")
    stands(10)
    terminal.type("= Go", "Escape")
    stands(5)
    terminal.type("= Gv")
    terminal.shows(r"each.*f32\[8\]")
    terminal.type("Escape", "Escape", "= Gt")


def test_a_breakpoint_stops_the_debugger(helix):
    terminal = helix(MODEL)
    terminal.type("=12gg", "= Gb", "Escape", "=:debug-start random model.opg", "Enter")
    terminal.shows("^▶ +2 ")
    terminal.type("= Gc", "Escape")
    terminal.shows("^▶ +12 ")
