"""`opstep debug train.py`: a script under debugpy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import NET, TRAINING, commands

from opstep.cli.debug import debug as command
from opstep.cli.debug.python import client

pytest.importorskip("debugpy")

COUNTS = """\
import sys


class Counter:
    def count(self, x, *, by=2):
        \"\"\"A line of its own.\"\"\"
        y = x * by
        return y + 1


def main():
    total = 0
    for i in range(3):
        total += Counter().count(i)
        print("step", i, total)
    return total


main()
"""


needs_past = pytest.mark.usefixtures("compiled_parts")


@pytest.fixture
def debug(debug_script):
    return debug_script


def marked(out: str) -> list[str]:
    """The lines where it stood."""
    return [line.strip() for line in out.splitlines() if line.startswith("=>")]


BEGIN = """\
Breakpoint 1 at train.py:7
Breakpoint 1, Counter.count at train.py:7, iteration 1 (line 13)
     5      def count(self, x, *, by=2):
     6          \"\"\"A line of its own.\"\"\"
=>   7          y = x * by
     8          return y + 1
     9
* #0  Counter.count at train.py:7
  #1  main at train.py:14
  #2  <module> at train.py:19
x = 0
by = 2
self = <__main__.Counter object at 0x"""


@needs_past
def test_a_session(debug):
    given = (
        "break Counter.count", "run", "bt", "p x", "info args", "up", "total = 7", "i in (0, 1)",
        "down", "finish", "delete", "c",
    )  # fmt: skip
    code, out = debug(COUNTS, *given)
    assert code == 0 and out.startswith(BEGIN)
    rest = out.removeprefix(BEGIN)
    assert "x = 0\n#1  main at train.py:14\n" in rest and "\nTrue\n#0  Counter.count at" in rest
    assert "main at train.py:14\n    12      total = 0\n" in rest
    end = "Counter.count returned 1\nstep 0 1\nstep 1 4\nstep 2 9\nThe script has ended.\n"
    assert rest.endswith(end)


def test_lines(debug):
    given = (
        "start", "next 3", "step", "until 14", "step", "finish", "next", "until", "jump 12", "n",
        "advance Counter.count", "c",
    )  # fmt: skip
    code, out = debug(COUNTS, *given)
    assert code == 0 and "error" not in out
    numbers = [int(line.split()[1]) for line in marked(out)]
    assert numbers == [1, 19, 12, 14, 7, 14, 15, 16, 12, 13, 7]


def test_breakpoints(debug):
    given = (
        "break 15 if i == 1", "tbreak train.py:12", "break train.py:Counter.count", "disable 3",
        "run", "info breakpoints", "continue", "p i", "condition 1 i == 2", "enable", "c", "c",
        "p (i, total)", "clear", "delete 3", "c", "info b",
    )  # fmt: skip
    code, out = debug(COUNTS, *given)
    assert code == 0
    assert "Temporary breakpoint 2, main at train.py:12" in out
    listed = "1   breakpoint train.py:15, if i == 1\n3   breakpoint train.py:7, disabled\n"
    assert listed in out
    assert "\nBreakpoint 1, main at train.py:15" in out and "\ni = 1\n" in out
    assert [line.split()[1] for line in marked(out)] == ["12", "15", "7", "15"]
    rest = out.partition("(i, total) = ")[2]
    assert rest == (
        "(2, 9)\nDeleted 1.\nstep 2 9\nThe script has ended.\nThere are no breakpoints.\n"
    )


REFUSED = {
    "break 99": "train.py has 19 lines", "break 0": "train.py has 19 lines",
    "break missing.py:3": "there is no file missing.py",
    "break Counter.counts": "no function is called Counter.counts",
    "break train.py:counts": "train.py has no function counts",
    "break a b": "a b is not a place", "break 15 if": "an expression is missing after if",
    "delete 4": "there is no breakpoint 4", "frobnicate": "there is no command frobnicate",
    "next x": "x is not a count", "print 1": "the script does not run",
    "finish": "the script does not run", "info frobs": "info has no topic frobs",
}  # fmt: skip


def test_what_cannot_be_done(debug):
    code, out = debug(COUNTS, batch=False, pipe="\n".join(REFUSED))
    assert code == 0
    said = dict(part.split("\n")[:2] for part in out.split("(opstep) ")[1:])
    assert said == {command: f"error: {why}" for command, why in REFUSED.items()}


def test_an_uncaught_exception(debug):
    script = "def f(x):\n    raise ValueError(f'{x} is\\ntoo large')\n\n\nf(3)\n"
    code, out = debug(script, "run", "p x", "continue")
    assert code == 1
    shown, _, rest = out.partition("Traceback")
    assert shown == (
        "Uncaught ValueError: 3 is\ntoo large\nf at train.py:2\n     1  def f(x):\n"
        "=>   2      raise ValueError(f'{x} is\\ntoo large')\n     3\n     4\nx = 3\n"
    )
    end = "ValueError: 3 is\ntoo large\nThe script has ended with exit code 1.\n"
    assert rest.endswith(end)


def test_exceptions_that_are_caught(debug):
    script = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    print('caught')\n"
    assert debug(script, "run") == (0, "caught\nThe script has ended.\n")
    code, out = debug(script, "catch raised", "run", "catch raised off", "c", "catch")
    assert code == 0
    assert "Catches raised.\nZeroDivisionError: division by zero\n<module> at train.py:2" in out
    assert "No longer catches raised.\ncaught\nThe script has ended.\nraised" in out


@pytest.mark.parametrize(
    "end, code, said",
    [
        ("pass", 0, "The script has ended."),
        ("os._exit(3)", 3, "The script has ended with exit code 3."),
        ("os._exit(247)", 247, "The script has ended with exit code 247."),
        ("os.kill(os.getpid(), 9)", 137, "The script was ended by SIGKILL."),
        ("os.kill(os.getpid(), 11)", 139, "The script was ended by SIGSEGV."),
    ],
)
def test_its_exit_code_is_that_of_the_script(debug, end, code, said):
    assert debug(f"import os\n{end}\n", "run") == (code, f"{said}\n")


def test_the_exit_code_of_a_session_that_is_ended(debug):
    code, out = debug(COUNTS, "tbreak 15", "run", "quit", "p i")
    assert code == 0 and "step 0" not in out and "i = 0" not in out


def test_it_runs_again(debug):
    script = "import sys\nsys.stdout.write('begins\\n')\nx = 1\nsys.stdout.write('ends\\n')\n"
    code, out = debug(script, "break 3", "run", "run", "c", "info b", "run", "c", "c")
    assert code == 1 and "error: the script has ended\nhint: run starts it again\n" in out
    lines = out.splitlines()
    assert lines.count("begins") == 3 and lines.count("ends") == 2
    assert "1   breakpoint train.py:3, 2 stops" in lines


def test_commands_from_a_pipe(debug):
    script = "import sys\nx = sys.stdin.read()\nprint(repr(x), sys.argv[1:])\n"
    code, out = debug(script, batch=False, pipe="run\nx\ncontinue\n", arguments=["-a", "b"])
    assert code == 0
    first = "(opstep) run\n'' ['-a', 'b']\nThe script has ended.\n(opstep) x\n"
    assert out.startswith(first) and "error: there is no command x" in out
    assert out.endswith("error: the script has ended\nhint: run starts it again\n")


def test_a_script_reads_what_no_commands_come_from(debug):
    code, out = debug("print('hello', input())\n", "run", pipe="Ada\n")
    assert (code, out) == (0, "hello Ada\nThe script has ended.\n")


def test_values(debug):
    script = "def f(a, *rest, key=1):\n    b = {'x': [a, a]}\n    return b\n\n\nf(2, 3)\n"
    given = (
        "display b", "break 3", "run", "info locals", "info args", "whatis b", "pp b",
        "b['x'][0] = 9", "b", "! b = 4", "p b + a", "undisplay 1", "p 1 / 0",
    )  # fmt: skip
    code, out = debug(script, *given)
    assert code == 1
    shown = out.partition("     5\n")[2]
    assert shown == (
        "1: b = {'x': [2, 2]}\n"
        "a = 2\nb = {'x': [2, 2]}\nkey = 1\nrest = (3,)\na = 2\nkey = 1\nrest = (3,)\n"
        "type = dict\n{'x': [2, 2]}\nBreakpoint 2 at train.py:3\nb + a = 6\n"
        "error: ZeroDivisionError: division by zero\n-ex: the commands that follow are left out\n"
    )


def test_threads(debug):
    script = (
        "import threading\n\n\ndef work(n):\n    m = n + 1\n    return m\n\n\n"
        "one = threading.Thread(target=work, args=(4,), name='worker')\none.start()\none.join()\n"
    )
    code, out = debug(script, "b 9", "run", "b work", "c", "info threads", "thread 1", "thread 2",
                      "n", "p m", "c")  # fmt: skip
    assert code == 0
    assert "[thread 2: worker]\nBreakpoint 2, work at train.py:5" in out
    assert "  1  MainThread: " in out and "\n* 2  worker: work at train.py:5\n" in out
    assert "[thread 1: MainThread]\n" in out and "\nm = 5\nThe script has ended.\n" in out


def test_a_module_by_name(debug, tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "go.py").write_text(
        "import sys\nfrom . import part\npart.f(sys.argv[1:])\n"
    )
    (tmp_path / "pack" / "part.py").write_text("def f(x):\n    print(x)\n")
    words = [*commands("break pack/part.py:f", "run", "bt", "c"), "--batch", "-m", "pack.go", "-x"]
    ended = subprocess.run(
        [sys.executable, "-m", "opstep", "debug", *words], cwd=tmp_path, capture_output=True,
        text=True,
    )  # fmt: skip
    assert ended.returncode == 0 and ended.stderr == ""
    assert "Breakpoint 1, f at pack/part.py:2" in ended.stdout
    assert "  #1  <module> at pack/go.py:3\n['-x']\nThe script has ended.\n" in ended.stdout


def test_a_script_that_trains(debug):
    pytest.importorskip("torch")
    given = "break train.py:13 if step == 1", "run", "h.shape", "up", "p step", "delete", "c"
    code, out = debug(NET + TRAINING, *given)
    assert code == 0 and "torch.Size([8, 4])\n" in out
    assert "Breakpoint 1, Net.forward at train.py:13" in out
    assert out.endswith("step 1\nstep 2\nThe script has ended.\n") and "step 0\n" in out


def test_a_script_with_jax(debug):
    pytest.importorskip("jax")
    script = "import jax\n\n\ndef f(x):\n    return x * 2\n\n\ny = jax.jit(f)(3.0)\nprint(y)\n"
    code, out = debug(script, "break f", "run", "next", "c")
    assert code == 0 and "Breakpoint 1, f at train.py:5" in out
    assert out.endswith("6.0\nThe script has ended.\n")


@needs_past
def test_the_guide_shows_what_happens(debug):
    root = Path(__file__).resolve().parents[2]
    guide = (root / "docs" / "debugging.md").read_text(encoding="utf-8")
    script = re.search(r"^```python\n(# train\.py\n.*?)^```", guide, re.M | re.S)
    shown = re.search(r"^```text\n\$ opstep debug train\.py\n(.*?)^```", guide, re.M | re.S)
    assert script is not None and shown is not None
    given = re.findall(r"^\(opstep\) (.*)$", shown[1], re.M)
    code, out = debug(script[1], batch=False, pipe="\n".join(given))
    assert code == 0 and len(given) > 4
    assert [line.rstrip() for line in out.splitlines()] == shown[1].splitlines()


LOOP = """\
def double(x):
    return 2 * x


for i in range(3):
    y = double(i)
print(y)
"""


@needs_past
def test_back_goes_to_an_iteration(debug):
    code, out = debug(
        LOOP, "break 7", "run", "back 2 iteration 1", "print x", "up", "print i", "back 6",
        "next", "next", "continue", "back step 4",
    )  # fmt: skip
    assert code == 1 and "did not run in step 4" in out
    assert marked(out) == [
        "=>   7  print(y)", "=>   2      return 2 * x", "=>   6      y = double(i)",
        "=>   6      y = double(i)", "=>   5  for i in range(3):", "=>   6      y = double(i)",
        "=>   7  print(y)",
    ]  # fmt: skip
    assert "Paused in the past\ndouble at train.py:2, iteration 1 of 3 (line 5)\n" in out
    assert "Paused in the present\n" in out and "x = 0\n" in out and "i = 0\n" in out


# --- what an adapter may have ---------------------------------------------------------------------


def test_an_adapter_that_does_not_go_back(cli, script, monkeypatch):
    monkeypatch.setattr(client, "ADAPTER", [sys.executable, "-m", "debugpy.adapter"])
    name = script(COUNTS)
    for move in ("reverse-next", "rs", "reverse-continue"):
        outcome = cli("debug", *commands("start", move), "--batch", name)
        assert outcome.code == 1
        assert "this debug adapter does not record the script, so nothing goes back" in outcome.out
    outcome = cli("debug", *commands("catch nan"), "--batch", name)
    assert outcome.code == 1 and "this debug adapter does not catch nan" in outcome.out


def test_an_adapter_that_goes_back(cli, script, monkeypatch):
    adapter = Path(__file__).with_name("recording_adapter.py")
    monkeypatch.setattr(client, "ADAPTER", [sys.executable, str(adapter)])
    given = commands("start", "reverse-next", "rs", "rc", "catch inf", "catch nan off", "rc")
    outcome = cli("debug", *given, "--batch", script(COUNTS))
    assert outcome.code == 0 and len(marked(outcome.out)) == 5
    said = "NaN: caught: nan-origin, uncaught\nnan: y, the result of log\n2 of 3 elements\n"
    assert said in outcome.out and "NaN: caught: inf-origin, uncaught\n" in outcome.out


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        ("--streams 4 train.py", "--streams is not for scripts"),
        ("--mode debug train.py", "--mode is not for scripts"),
        ("--module x train.py", "--module is not for scripts"),
        ("--memory 1 train.py", "--memory is not for scripts"),
        ("--ranks 2 train.py", "--ranks and --mesh are for programs, not for scripts"),
        ("--listen 0 --batch train.py", "--batch and --listen exclude each other"),
        ("--wait train.py", "--wait needs --listen PORT"),
        ("nothing.py", "nothing.py: there is no such file"),
    ],
)
def test_options_that_make_no_sense(cli, script, words, said):
    script("print(1)")
    outcome = cli("debug", *words.split())
    assert outcome.code == 2 and said in outcome.err and outcome.out == ""


def test_listening_becomes_the_script(cli, script, monkeypatch):
    class Became(Exception):
        pass

    def become(program: str, words: list[str]) -> None:
        raise Became(program, words[1:])

    monkeypatch.setattr("os.execv", become)
    own = ["-m", "opstep.debuggee.listening", "--listen", "5678"]
    for given, words in (
        (["--listen", "5678", "--wait"], [*own, "--wait", "train.py", "-x"]),
        (["--listen", "5678"], [*own, "train.py", "-x"]),
    ):
        script("print(1)")
        with pytest.raises(Became) as became:
            command.main([*given, "train.py", "-x"], standalone_mode=False)
        assert became.value.args == (sys.executable, words)
