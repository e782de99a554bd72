"""`opstep debug train.py`: a session that goes from run to run of a script's modules."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest
from dap.client import Client
from scripts import LOGARITHM, NET, TRAINING, commands

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh")


def test_a_session_goes_from_run_to_run(cli, script):
    ended = commands(
        "break train.py:12", "run", "bt", "p max(x)", "next", "reverse-next", "continue",
        "delete 1", "next", "next", "next", "bt", "tbreak train.py:20", "continue", "info b",
    )  # fmt: skip
    outcome = cli("debug", *ended, "--batch", script(NET + TRAINING))
    assert outcome.code == 0 and "error:" not in outcome.out
    lines = [line for line in outcome.out.splitlines() if line.startswith(("=>", "*", "  #"))]
    assert lines[:4] == [
        "=>  12          h = self.encoder(x)",
        "* #0  Net.forward at train.py:12",
        "  #1  <module> at train.py:20",
        "=>  13          return self.out(h)",
    ]
    assert "Breakpoint 1, Net.forward backward at train.py:12" in outcome.out
    assert "step 0" in outcome.out and "step 2" not in outcome.out


def test_pending_breakpoints(cli, script):
    """A line that no op has come from yet; one that the file does not have is refused."""
    name = script(LOGARITHM + "from torch import nn\nnn.Tanh()(torch.ones(2))\n")
    ended = commands("break train.py:17", "info breakpoints", "continue", "delete")
    outcome = cli("debug", *ended, "--batch", name)
    assert outcome.code == 0
    assert outcome.out.count("pending: no op came from this line so far") == 2
    assert "the end\nBreakpoint 1, <module> at train.py:17" in outcome.out
    for place in ("9999", "train.py:18", "0"):
        outcome = cli("debug", *commands(f"break {place}"), "--batch", name)
        assert outcome.code == 1 and "error: train.py has 17 lines" in outcome.out


def test_breakpoints_on_functions(cli, script):
    ended = commands("break Log.forward", "run", "list Log.forward", "tbreak train.py:Log.forward")
    outcome = cli("debug", *ended, "--batch", script(LOGARITHM))
    assert outcome.code == 0
    assert "Breakpoint 1 at train.py:6" in outcome.out
    assert "Breakpoint 1, Log.forward at train.py:6" in outcome.out
    assert "Temporary breakpoint 2 at train.py:6" in outcome.out
    outcome = cli("debug", *commands("break Log.backward", "run"), "--batch", script(LOGARITHM))
    assert outcome.code == 1 and "is called Log.backward" in outcome.out
    assert "the end" in outcome.out  # the script's own `finally`


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_between_runs(cli, script, monkeypatch, times):
    presses = "; ".join(["signal.raise_signal(signal.SIGINT)"] * times)
    name = script(
        LOGARITHM.replace("import torch\n", "import signal, torch\n", 1).replace(
            '"step", step)', f'"step", step)\n        if step == 1: {presses}'
        )
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("continue\nbt\ncontinue\n"))
    before = signal.getsignal(signal.SIGINT)
    outcome = cli("debug", name)
    assert signal.getsignal(signal.SIGINT) is before
    assert "step 1\n" in outcome.out and outcome.out.endswith("the end\n")
    if times == 2:
        assert outcome.code == 130 and "step 2" not in outcome.out
        return
    assert outcome.code == 0
    after = outcome.out.partition("step 1\n")[2]
    assert after.startswith("Paused.\n") and "=>  12          log(" in after
    assert "step 2" in after and "step 3" in after


def test_a_failed_command_of_a_batch(cli, script, write):
    for given in ("frobnicate", "print nothing"):
        outcome = cli("debug", *commands(given), "--batch", script(LOGARITHM))
        assert outcome.code == 1 and "-ex: the commands that follow are left out" in outcome.out
    program = write("net.opg", "graph main(x: f32[2]) -> f32[2] {\n  y = exp(x)\n  return y\n}\n")
    for line, code in (("frobnicate", 1), ("run", 0)):
        assert cli("debug", *commands(line), "--batch", program, "-i", "ones").code == code


def test_a_session_stops_at_a_nan(cli, script):
    ended = commands("catch inf", "run", "p y", "continue", "continue")
    outcome = cli("debug", *ended, script(LOGARITHM))
    assert outcome.code == 0
    assert "step 0\nCatchpoint 1: inf" in outcome.out and "step 3\nthe end\n" in outcome.out
    assert "=>   7          return torch.log(y)" in outcome.out


def test_a_script_that_calls_no_module(cli, script):
    outcome = cli("debug", "--batch", script("print('done')"))
    assert (outcome.code, outcome.out) == (0, "done\n")
    assert (
        outcome.err
        == "note: train.py called no nn.Module, and no function with @opstep.jax.debug\n"
    )


def test_an_editor_starts_a_script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(NET + TRAINING + "sys.exit(6)\n", encoding="utf-8")
    command = [sys.executable, "-m", "opstep", "debug", "--listen", "0", "--wait", path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        port = int(process.stderr.readline().removeprefix("listening on 127.0.0.1:"))
        with Client.connect(port) as client:
            client.attach()
            client.request("setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": 20}])
            client.request("configurationDone")
            client.expect_stop("breakpoint")
            assert [(f["name"], f["line"]) for f in client.stack()] == [("<module>", 20)]
            client.go("stepIn", "step")
            assert client.stack()[0]["line"] == 12
            client.request("disconnect", terminateDebuggee=False)
            assert process.wait(60) == 6
        assert process.stdout.read() == "step 0\nstep 1\nstep 2\n"
