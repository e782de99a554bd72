"""Ctrl-C and SIGTERM while a command runs a graph: exit codes, and the workspace is whole."""

from __future__ import annotations

import re
import signal

import pytest
from interrupting import LAYERS, signalled

import opstep

ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
DEFAULT = signal.SIG_DFL


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number, code, word", ENDS)
@pytest.mark.parametrize("command", ["run", "hunt", "bench"])
def test_commands_end_in_order(cli, write, command, number, code, word):
    file = write("net.opg", LAYERS)
    records = () if command == "bench" else ("--workspace", "runs.db")
    cli(command, file, "-i", "ones", "--steps", 2, *records)  # all is compiled
    with signalled(number, 0.2):
        ended = cli(command, file, "-i", "ones", "--steps", 10_000_000, *records)
    assert ended.code == code
    assert word in ended.err
    assert signal.getsignal(signal.SIGTERM) is DEFAULT
    if command == "bench":
        return
    with opstep.Workspace("runs.db") as ws:
        run = ws.run("last")
        assert run.status == "interrupted"
        if command == "run":
            told = re.search(r"^([\d,]+) of 10,000,000 steps finished", ended.err, re.M)
            assert told and int(told[1].replace(",", "")) == run.steps
        if run.steps:
            again = ws.rerun(run)
            assert again.identical
            assert {"a", "b", "steps"} <= set(again.same)


def test_a_second_ctrl_c_reaches_code_of_the_users():
    """`on_step` is not cut short by the first one, and does not keep off the second."""
    program, seen = opstep.loads(LAYERS), []

    def on_step() -> None:
        seen.append("begun")
        signal.raise_signal(signal.SIGINT)
        seen.append("went on")
        if len(seen) > 2:
            signal.raise_signal(signal.SIGINT)
            seen.append("not reached")

    x = {"x": [[1.0] * 64] * 64}
    with pytest.raises(KeyboardInterrupt):
        program.run("main", x, steps=5, on_step=on_step)
    assert seen == ["begun", "went on"]
    with pytest.raises(KeyboardInterrupt):
        program.run("main", x, steps=5, on_step=on_step)
    assert seen == ["begun", "went on"] * 2
    assert program.params["steps"] == 2


def test_a_handler_of_the_programs_own_stays(tmp_path):
    called = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
            x = {"x": [[1.0] * 64] * 64}
            opstep.loads(LAYERS).run(
                "main", x, recording=recording, on_step=lambda: signal.raise_signal(signal.SIGTERM)
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [1]
    with opstep.Workspace(tmp_path / "runs.db") as ws:
        assert ws.run("last").status == "done"
