"""``opstep debug``: the file that changes, scripts, help, completion, the guide."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from debugged_program import PROGRAM, stands

# --- the file, scripts, the session ---


def test_editing_the_file_and_going_on(debug, tmp_path):
    path = tmp_path / "model.opg"
    changed = PROGRAM.replace("c = mul(b, 3.0)", "c = mul(b, 5.0)")
    (tmp_path / "wrong.opg").write_text(PROGRAM.replace("c = mul(b, 3.0)", "c = mull(b, 3.0)"))
    reader = Edits(path, {"wrong": (tmp_path / "wrong.opg").read_text(), "right": changed})
    out = reader.run(debug, "n 3", "EDIT wrong", "reload", "p c", "EDIT right", "reload", "c")
    assert "mull" in out and "c = [9.0, 15.0, 21.0]" in out
    assert re.search(r"Kept 3 of \d values", out)
    assert "c = [15.0, 25.0, 35.0]" in out


class Edits:
    """Standard input in which some lines change a file in place of being read."""

    def __init__(self, path, texts):
        self.path, self.texts = path, texts

    def run(self, debug, *commands):
        edits = self

        class Input(io.StringIO):
            def readline(self, *size):
                line = super().readline(*size)
                while line.startswith("EDIT "):
                    edits.path.write_text(edits.texts[line.split()[1]])
                    line = super().readline(*size)
                return line

        original, io.StringIO = io.StringIO, Input
        try:
            return debug(*commands)
        finally:
            io.StringIO = original


def test_scripts_and_the_command_line(cli, debug, write, tmp_path):
    write("go.txt", "# a comment\nb scaled\nrun\nnonsense\np v\n")
    out = debug("source go.txt", "source none.txt")
    assert stands(out) == [14]
    assert "left out" in out and "none.txt: No such file" in out
    outcome = cli("debug", "model.opg", "-i", "random", "-g", "main", "-x", "go.txt", "-ex", "n",
                  "-ex", "info locals", "--batch")  # fmt: skip
    assert outcome.code == 1  # that of the command that there is not
    assert stands(outcome.out) == [14, 15]
    assert cli("debug", "model.opg", "-i", "random", "-x", "none.txt").code == 2
    write("again.txt", "source again.txt\n")
    assert "nested" in debug("source again.txt")
    write("long.txt", "#\n" * 600_000)
    out = debug("source /dev/zero", "source .", "source long.txt")
    assert out.count("is not a regular file") == 2 and "at most 1 MiB" in out


def test_messages_fit_what_can_be_done(debug):
    out = debug("b scaled if nowhere > 1", "run")
    assert "condition nowhere > 1: there is no nowhere here" in out
    out = debug("run", "next", "start", "next", "continue", "next")
    hints = [line for line in out.splitlines() if line.startswith("hint: ")]
    assert hints == ["hint: run starts again", "hint: reverse-next goes back, run starts again"]


def test_help(debug):
    out = debug("help", "help break", "h rn", "help nothing", "?", "help print")
    from opstep.cli.debug.registry import COMMANDS

    for one in COMMANDS.values():
        assert one.usage in out
        assert one.summary.endswith("."), one.name
    assert "short: b, br, brea" in out
    assert "/x  the bits" in out


def test_abbreviations():
    from opstep.cli.debug import registry

    registry.load()
    expected = {
        "r": "run", "c": "continue", "n": "next", "s": "step", "b": "break", "tb": "tbreak",
        "fin": "finish", "u": "until", "rn": "reverse-next", "rs": "reverse-step", "p": "print",
        "rc": "reverse-continue", "bt": "backtrace", "i": "info", "l": "list", "d": "delete",
        "f": "frame", "q": "quit", "h": "help", "dis": "", "disp": "display", "wat": "watch",
        "disa": "disable", "cond": "condition", "adv": "advance", "undisp": "undisplay",
    }  # fmt: skip
    for word, name in expected.items():
        if name:
            assert registry.find(word).name == name
        else:
            with pytest.raises(registry.Refused, match="ambiguous"):
                registry.find(word)


# --- completion ---


@pytest.mark.parametrize(
    "line, expected",
    [
        ("br", "break"), ("rev", "reverse-next"), ("b sca", "scaled"), ("b mo", "model.opg:"),
        ("break relu if", None), ("info loc", "locals"), ("catch un", "uninitialised"),
        ("p se", "seen"), ("p mea", "mean("), ("b 7 if max(se", "seen"), ("help ti", None),
        ("delete ", "1"), ("watch nan(w", "w"), ("nonsense x", None), ("", "advance"),
    ],
)  # fmt: skip
def test_completion(cli, write, line, expected):
    from opstep.cli.debug import opened, registry
    from opstep.cli.debug.completing import completions
    from opstep.cli.debug.session import Session
    from opstep.cli.debug.showing import Paint

    registry.load()
    options = {
        "autotune": False, "kernels": "auto", "device": "cpu", "seed": 0, "graph": "main",
        "symbols": (), "inputs": ("random",), "params": None, "memory": 1.0, "workspace": None,
        "mode": "debug", "streams": None, "alloc": None, "fill": None, "sync": None,
        "threads": None, "steps": 1, "fallback": None, "imports": (),
    }  # fmt: skip
    import click

    with click.Context(click.Command("debug")):
        session = Session(opened(write("model.opg", PROGRAM), options), Paint(False), False)
    session.do("break 7")
    start, found = completions(session, line)
    assert all(word.startswith(line[start:]) for word in found)
    if expected is None:
        assert found == [] or line.endswith("if")
    else:
        assert expected in found


# --- the guide ---

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```text\n\$ opstep debug (exa[^\n]+)\n(.*?)^```", GUIDE, re.M | re.S)


@pytest.mark.parametrize("arguments, transcript", SESSIONS)
def test_the_guide_shows_what_happens(cli, monkeypatch, capsys, arguments, transcript):
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^\(opstep\) ?(.*)$", transcript, re.M)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
    outcome = cli("debug", *arguments.split())
    assert outcome.code == 0 and len(commands) > 3
    assert [line.rstrip() for line in outcome.out.splitlines()] == transcript.splitlines()


def test_the_guide_names_commands_that_there_are():
    from opstep.cli.debug import registry

    registry.load()
    assert len(SESSIONS) == 3
    begin, end = GUIDE.index("<!-- begin: debug"), GUIDE.index("<!-- end: debug")
    text = re.sub(r"```.*?```", "", GUIDE[:begin] + GUIDE[end:], flags=re.S)
    shown = re.findall(r"`([a-z-]+)(?: [^`]*)?`", text)
    words = {w for w in shown if w in registry.GRAPHS.aliases}
    assert {"break", "watch", "catch", "rn", "jump", "dprintf"} <= words
