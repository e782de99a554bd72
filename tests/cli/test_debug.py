"""``opstep debug``: commands piped in, and what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from debugged_program import PROGRAM, stands

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
    assert "beginning of the run" in out
    assert stands(debug("tb scaled", "run", "s", "reverse-finish")) == [14, 15, 6]


def test_run_and_its_end(debug):
    out = debug("run", "continue", "rn", "start")
    assert "The run has ended." in out
    assert "c = [9.0, 15.0, 21.0]" in out
    assert "error: the run has ended" in out
    assert stands(out)[-1] == 5


def test_params_with_names_in_backquotes(debug):
    text = re.sub(r"\bw\b", "`0.weight`", PROGRAM)
    Path("model.opg").write_text(text)
    out = debug("p sum(`0.weight`)", "set `0.weight` = 3", "p max(`0.weight`)", "watch `0.weight`")
    assert "max(`0.weight`) = 3.0" in out and "Watchpoint 1: `0.weight`" in out
    assert "0.weight = [" in debug("info params")


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
    assert "there is no statement here" in out
    assert "relu" in out
    assert "the program has no file other.opg" in out
    assert "an expression is missing after if" in out
    assert "No breakpoints." in out


def test_an_op_that_is_nowhere_is_warned_of(debug):
    out = debug("b relu", "b sub", "i b")
    assert out.count("no op of this program is called relu") == 2  # when it is set, and listed
    assert "called sub" not in out


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


def test_the_place_of_a_wrong_expression_in_a_message(debug):
    out = debug("dprintf double, at most {1 + none(x)}", "i b", graph="count")
    assert "expression:1:5: error: there is no function none\n  1 + none(x)\n      ^" in out
    assert "dprintf 1" not in out


def test_watching(debug):
    out = debug("watch max(y) > 40", "watch nan(value)", "c", "p y", "i b", "c", graph="count")
    assert "Watchpoint 1: max(y) > 40" in out
    assert stands(out)[0] == 32
    assert "y = [16.0, 32.0, 48.0]" in out
    out = debug("watch seen", "c", "c", options=("--steps", "3"))
    assert out.count("Watchpoint 1: seen") >= 2
    assert "there is no tensor nobody" in debug("watch nobody")
    out = debug("watch b", "watch scaled.t if max(value) > 3", "run")
    assert "hint: watch scaled.t, or" in out
    assert "t = [3.0, 5.0, 7.0]" in out and stands(out) == [15]
    assert "that while calls" in debug("watch count.y", graph="count")


def test_catching(debug):
    out = debug("catch nan origin", "catch inf", "r", "p where(nan(l))", "c", "c", graph="trouble",
                x="bad.npy")  # fmt: skip
    assert "nan: l, the result of log: 1 NaN of 3 elements" in out
    assert stands(out)[0] == 37
    assert "x is not positive" in out
    out = debug("catch assert", "catch assert", "catch nothing", "r", graph="trouble", x="bad.npy")
    assert "assert is caught already" in out
    assert "nothing is not a kind of trouble" in out
    assert stands(out) == [42]
    assert "hint: catch nan stops" in debug("break nan")


def test_a_step_from_behind_an_op_shows_the_next_line(debug):
    out = debug("catch nan origin", "r", "n", "n", "rc", graph="trouble", x="bad.npy")
    assert stands(out) == [37, 38, 39, 37]


# --- looking and changing ---


def test_printing(debug):
    out = debug("n 2", "p a", "p/x a", "p/e a[:2]", "p/s a", "p/t a", "p mean(a)", "whatis a[0]",
                "whatis stats(a)", "p/h a", "p a[1]", "p w", "output", "p zz", "p a +", "p/q a",
                "p")  # fmt: skip
    assert "a = [2.0, 3.0, 4.0]" in out
    assert "a = [0x40000000 0x40400000 0x40800000]" in out
    assert "a[:2] = [2. 3.]" in out
    assert "mean       3" in out
    assert "a = f32[3]" in out
    assert "mean(a) = 3.0" in out
    assert "type = f32" in out and "type = table" in out
    assert "2^1" in out and "2^2" in out
    assert "not a format" in out and "an expression is missing" in out
    assert out.count("error:") == 5


@pytest.mark.parametrize("command", ["p {}", "display {}", "watch {}", "b 9 if {}", "set a = {}"])
def test_errors_in_expressions_say_where(debug, command):
    out = debug("n 2", command.format("max(a) + (1 +"))
    assert "expression:1:14: error: expected a value, not the end" in out
    assert f"  max(a) + (1 +\n{' ' * 15}^\n" in out


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
    out = debug("b scaled", "r", "bt", "up", "list", "up", "p a", "down", "down", "frame 9", "f 1",
                "bt 1", "info frame", "up")  # fmt: skip
    assert "#0  <module> at model.py:2" in out and "#1  main (x=f32[3]) at model.opg:6" in out
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
        ("plan", "policy   streams=1 alloc=fresh"), ("frame", "points into the run"),
        ("source", "8 graphs"),
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


# --- what is wrong ---


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


def test_echo_has_escapes_and_adds_no_line_end(debug):
    assert "\none\ntwo\\(opstep) echo" in debug(r"echo one\ntwo\\", r"echo three\n")


def test_histograms_count_what_has_no_exponent(debug):
    given = ("[nan, 0, 4]", "[nan, nan, 0]", "[1, 2, 64]")
    out = debug(*(line for x in given for line in (f"set x = {x}", "p/h x")))
    assert re.findall(r"^  (2\^2|0|NaN) +1\b", out, re.MULTILINE) == ["2^2", "0", "NaN"]
    assert "1 of 3 are 0, 2 NaN" in out
    shown = out.rpartition("p/h x")[2].splitlines()
    assert [line.split()[0] for line in shown[2:6]] == ["2^0", "2^1", "…", "2^6"]


def test_the_end_of_a_run_with_a_nan_hints_at_catch(debug):
    hint = "hint: z has 1 NaN and 1 infinite of 3 elements: catch nan before the run stops where"
    out = debug("start", "continue", "run", graph="count", x="bad.npy")
    assert out.count("The run has ended.") == 2 and out.count(hint) == 1
    out = debug("catch nan", "run", "continue", graph="count", x="bad.npy")
    assert "The run has ended." in out and "hint:" not in out
    assert "hint:" not in debug("run", graph="count")
