"""``opstep debug``: commands piped in, what they print, and a terminal with Ctrl-C and Tab."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

PROGRAM = """\
param w: f32[3] = zeros()
state seen: i32[] = 0

graph main(x: f32[3]) -> f32[3] {
  a = add(x, 1.0)
  b = scaled(a)
  c = mul(b, 3.0)
  next = add(seen, 1)
  seen <- next
  return c
}

graph scaled(v: f32[3]) -> f32[3] {
  s = mul(v, 2.0)      at "model.py":2
  t = sub(s, 1.0)
  return t
}

graph count(x: f32[3]) -> f32[3] {
  y = while(x, test=small, body=double)
  z = log(y)
  return z
}

graph small(x: f32[3]) -> bool[] {
  m = max(x)
  more = less(m, 100.0)
  return more
}

graph double(x: f32[3]) -> f32[3] {
  y = mul(x, 2.0)
  return y
}

graph trouble(x: f32[3]) -> f32[3] {
  l = log(x)
  e = exp(x)
  y = add(l, e)
  positive = greater(x, 0.0)
  fine = all(positive)
  assert fine, "x is not positive"
  return y
}

graph endless(x: f32[3]) -> f32[3] {
  y = while(x, test=always, body=double, limit=1000000000)
  return y
}

graph always(x: f32[3]) -> bool[] {
  m = max(x)
  same = equal(m, m)
  return same
}
"""


@pytest.fixture
def debug(cli, write, monkeypatch):
    """Commands to a session on `graph` with x = 1, 2, 3; gives what was printed."""
    file = write("model.opg", PROGRAM)
    np.save("x.npy", np.array([1, 2, 3], "f4"))
    np.save("bad.npy", np.array([1, -2, 0], "f4"))

    def run(*commands, graph="main", x="x.npy", options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
        outcome = cli("debug", file, "-g", graph, "-i", f"x={x}", *options)
        assert outcome.code == 0, outcome.err
        assert "internal error" not in outcome.out
        return outcome.out

    return run


def stands(out: str) -> list[int]:
    """The lines that markers stood at."""
    return [int(n) for n in re.findall(r"^=> +(\d+) ", out, re.MULTILINE)]


# --- going ---


def test_steps_and_what_they_computed(debug):
    out = debug("next", "", "step", "s")
    assert stands(out) == [6, 7, 8, 9]
    assert "a = [2.0, 3.0, 4.0]" in out
    out = debug("n", "s", "s", "finish")
    assert stands(out) == [6, 14, 15, 7]
    assert "scaled (v=f32[3]) at model.opg:14" in out
    assert "b = [3.0, 5.0, 7.0]" in out


def test_counts(debug):
    assert stands(debug("n 3", "rn 2", "s 2")) == [8, 6, 15]


def test_an_empty_line_repeats(debug):
    assert stands(debug("n", "", "")) == [6, 7, 8]
    out = debug("break 7", "", "info breakpoints")
    assert out.count("Breakpoint 1 at model.opg:7") == 1
    out = debug("list 1", "", "")
    assert "param w" in out and "return t" in out


def test_backwards(debug):
    out = debug("n 4", "rn", "rs", "rs", "rc")
    assert stands(out) == [9, 8, 7, 16, 5]
    assert "begin of the run" in out
    assert stands(debug("tb scaled", "run", "s", "reverse-finish")) == [14, 15, 6]


def test_run_and_its_end(debug):
    out = debug("run", "continue", "rn", "start")
    assert "The run has ended." in out
    assert "c = [9.0, 15.0, 21.0]" in out
    assert "error: the run has ended" in out
    assert stands(out)[-1] == 5


def test_loops_until_and_finish(debug):
    out = debug("tbreak double", "run", "bt", "until", "until", graph="count")
    assert stands(out) == [32, 33, 21]
    assert "#0  double [i=0] (x=f32[3]) at model.opg:32" in out
    assert "y = [128.0" not in out.split("(opstep) until")[0]
    assert "y = [64.0, 128.0, 192.0]" in debug("b double", "run", "d", "fin", graph="count")
    assert stands(debug("until 21", graph="count")) == [21]


def test_advance_and_jump(debug):
    out = debug("advance scaled", "advance 8", "jump 5", "jump 7", "jump b", "j nowhere")
    assert stands(out) == [14, 8, 5, 7, 6]
    assert "no graph and no value is called nowhere" in out
    out = debug("jump 7")
    assert "b has no value yet" in out


def test_restart_frame(debug):
    out = debug("b 15", "run", "up", "restart frame 0", "p v")
    assert stands(out) == [15, 6, 14]
    assert "v = [2.0, 3.0, 4.0]" in out


def test_launches(debug):
    assert stands(debug("stepi", "nexti")) == [6, 14]


# --- breakpoints ---


def test_breakpoints_by_place(debug):
    out = debug("b 7", "b scaled", "b sub", "tb model.opg:8", "b b", "i b", "r", *["c"] * 5)
    assert stands(out) == [6, 14, 15, 7, 8]
    assert "Temporary breakpoint 4 at model.opg:8" in out
    assert "Breakpoint 3, scaled" in out
    assert re.search(r"^2 +breakpoint +keep +y +scaled", out, re.MULTILINE)


def test_what_cannot_be_broken_at(debug):
    out = debug("b 400", "b relo", "b other.opg:3", "b ???", "b 7 if", "b 7 if )", "i b")
    assert "no statement stands here" in out
    assert "relu" in out
    assert "the program has no file other.opg" in out
    assert "an expression is missing behind if" in out
    assert "No breakpoints." in out


def test_conditions_and_ignoring(debug):
    out = debug("b double if x[0] >= 8", "r", "p x[0]", "condition 1", "c", "p x[0]", graph="count")
    assert "x[0] = 8.0" in out and "x[0] = 16.0" in out
    assert "now unconditional" in out
    out = debug("b double", "ignore 1 3", "r", "p x[0]", "i b", "c", "p x[0]", graph="count")
    assert "x[0] = 8.0" in out and "x[0] = 16.0" in out
    assert "already hit 4 times" in out
    out = debug("b double", "r", "c 3", "p x[0]", graph="count")
    assert "x[0] = 8.0" in out


def test_disable_enable_delete_clear(debug):
    out = debug("b 6", "b 7", "b 8", "disable 1 2", "r", "enable", "start", "c", "clear", "c",
                "delete 3", "c", "i b", "delete 9")  # fmt: skip
    assert stands(out) == [8, 5, 6, 7]
    assert "Deleted breakpoint 1" in out
    assert "there is no breakpoint 9" in out


def test_commands_of_a_breakpoint(debug):
    script = ("b double", "commands", "silent", "p x[0]", "continue", "end", "run")
    out = debug(*script, graph="count")
    assert [f"x[0] = {v}" in out for v in ("1.0", "32.0", "64.0")] == [True, True, False]
    assert "The run has ended." in out and not stands(out)


def test_messages(debug):
    out = debug('dprintf double, "x is {x[0]} now"', "i b", "r", "i b", graph="count")
    assert "x is 1.0 now" in out and "x is 32.0 now" in out
    assert "already hit 6 times" in out


def test_watching(debug):
    out = debug("watch max(y) > 40", "watch nan(value)", "c", "p y", "i b", "c", graph="count")
    assert "Watchpoint 1: max(y) > 40" in out
    assert stands(out)[0] == 32
    assert "y = [16.0, 32.0, 48.0]" in out
    out = debug("watch seen", "c", "c", options=("--steps", "3"))
    assert out.count("Watchpoint 1: seen") >= 2
    assert "there is no tensor nobody" in debug("watch nobody")


def test_catching(debug):
    out = debug("catch nan origin", "catch inf", "r", "p where(nan(l))", "c", "c", graph="trouble",
                x="bad.npy")  # fmt: skip
    assert "nan: l, the result of log: 1 NaN of 3 elements" in out
    assert stands(out)[0] == 37
    assert "x is not positive" in out
    out = debug("catch assert", "catch assert", "catch nothing", "r", graph="trouble", x="bad.npy")
    assert "assert is caught already" in out
    assert "nothing is no kind of trouble" in out
    assert stands(out) == [42]


def test_a_step_from_behind_an_op_shows_the_next_line(debug):
    out = debug("catch nan origin", "r", "n", "n", "rc", graph="trouble", x="bad.npy")
    assert stands(out) == [37, 38, 39, 37]


# --- looking and changing ---


def test_printing(debug):
    out = debug("n 2", "p a", "p/x a", "p/e a[:2]", "p/s a", "p/t a", "p mean(a)", "whatis a[0]",
                "p/h a", "p a[1]", "p w", "output", "p zz", "p a +", "p/q a", "p")  # fmt: skip
    assert "a = [2.0, 3.0, 4.0]" in out
    assert "a = [0x40000000 0x40400000 0x40800000]" in out
    assert "a[:2] = [2. 3.]" in out
    assert "mean       3" in out
    assert "a = f32[3]" in out
    assert "mean(a) = 3.0" in out
    assert "type = f32" in out
    assert "2^1" in out and "2^2" in out
    assert "no format" in out and "an expression is missing" in out
    assert out.count("error:") == 5


def test_displays(debug):
    out = debug("display mean(a)", "n", "n", "info display", "undisplay 1", "n", "undisplay 7")
    assert out.count("1: mean(a) = 3.0") == 2
    assert "there is no display 7" in out


def test_setting(debug):
    out = debug("n 2", "set a[0] = 10", "p b", "set var a = [1, 1, 1]", "p b", "set a[9] = 1",
                "set a", "set nobody = 1", 'set a = load("x.npy")', "p b", "c")  # fmt: skip
    assert "a = [10.0, 3.0, 4.0]" in out
    assert "b = [19.0, 5.0, 7.0]" in out
    assert "b = [1.0, 1.0, 1.0]" in out
    assert "b = [1.0, 3.0, 5.0]" in out
    assert "c = [3.0, 9.0, 15.0]" in out
    assert out.count("error:") == 3


def test_frames(debug, tmp_path):
    (tmp_path / "model.py").write_text("import torch\ny = 2 * x\nprint(y)\n")
    out = debug("b scaled", "r", "bt", "up", "list", "up", "p a", "down", "down", "frame 9", "f 2",
                "bt 1", "info frame", "up")  # fmt: skip
    assert "#1  imported from model.py:2" in out
    assert "=>   2  y = 2 * x" in out
    assert "a = [2.0, 3.0, 4.0]" in out
    assert "there is no frame 9" in out
    assert "(more frames)" in out
    assert "this is the outermost frame" in out


@pytest.mark.parametrize(
    "topic, expected",
    [
        ("args", "v = [2.0, 3.0, 4.0]"), ("locals", "s = [4.0, 6.0, 8.0]"), ("params", "seen = 0"),
        ("params s*", "seen = 0"), ("op", "t = sub(s, 1.0)"), ("op", "operand s = [4.0, 6.0, 8.0]"),
        ("op", "kernel sub"), ("memory", "s  12 B  0x"), ("streams", "stream 0"),
        ("plan", "policy   streams=1 alloc=fresh"), ("frame", "position"), ("source", "8 graphs"),
        ("graphs", "graph small(x: f32[3])"), ("history", "points back"), ("s", "#1  main"),
        ("display", "No displays."), ("b", "No breakpoints."), ("nothing", "there are: args"),
    ],
)  # fmt: skip
def test_info(debug, topic, expected):
    out = debug("advance 15", f"info {topic}")
    assert expected in out


def test_streams(debug):
    options = ("--streams", "2", "--mode", "async")
    out = debug("info threads", "thread 1", "n", "thread 9", "thread off", "n", "c",
                graph="trouble", options=options)  # fmt: skip
    assert "stream 1" in out and "[all streams]" in out
    assert "there is no stream 9" in out
    assert "The run has ended." in out


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
    assert outcome.code == 0
    assert stands(outcome.out) == [14, 15]
    assert cli("debug", "model.opg", "-i", "random", "-x", "none.txt").code == 2
    write("again.txt", "source again.txt\n")
    assert "nested" in debug("source again.txt")


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


@pytest.mark.parametrize("line", [
    "foo", "1", "=", "p " + "(" * 2000, "b -99", "b 99999999999999", "c -1", "n x", "frame -1",
    "ignore 1", "ignore 1 1", "condition 1 x", "delete 1-99999", "delete x", "watch", "watch 3",
    "watch (", "catch", "catch nan if (", "jump", "advance", "until 999", "list 999", "list x y",
    "info", "set", "set = 3", "set x = ", "set w[ = 1", "display (", "undisplay x", "thread x",
    "commands", "dprintf 5", "dprintf 5,", "dprintf 5, {(}", "source", "edit", "p \x00", "p 'é",
    "p __import__('os')", "p x.__class__", "p load('../x.npy')", "tbreak if", "x" * 20_000,
    "up 99", "down", "help \x1b[31m", "clear", "clear 99", "reload now", "restart frame x",
])  # fmt: skip
def test_what_is_wrong_is_told_and_the_session_goes_on(debug, line):
    out = debug(line, "start", "next")
    assert stands(out)[-1] == 6
    assert "Traceback" not in out and "\x1b" not in out


def test_what_cannot_be_opened(cli, write):
    write("bad.opg", "graph main(x: f32[3]) -> f32[3] {\n  y = relo(x)\n  return y\n}\n")
    assert cli("debug", "bad.opg", "-i", "random").code == 1
    assert cli("debug", "absent.opg").code == 2
    write("good.opg", PROGRAM)
    assert cli("debug", "good.opg").code == 2
    assert cli("debug", "good.opg", "-g", "main", "-i", "random", "--device", "null").code == 2


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
        "threads": None, "steps": 1,
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


# --- a terminal ---


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

    def expect(self, pattern: str, seconds: float = 60) -> str:
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
            return self.process.wait(30)
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
    time.sleep(1.5)
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
    session.expect("begin of the run")
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
