"""Recordings that end otherwise than by being closed after their runs, or cannot begin."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from waiting import PATIENCE_S

import opstep
from opstep.runtime.ir.errors import InputError

PROGRAM = "graph main(x: f32[3]) -> f32[3] {\n  y = relu(x)\n  return y\n}\n"


def test_a_run_goes_on_when_its_recording_is_closed(tmp_path):
    program = opstep.loads(PROGRAM)
    recording = opstep.Recording(workspace=tmp_path / "r.db", trace=tmp_path / "r.pftrace")
    begun, closed = threading.Event(), threading.Event()
    left: list[int] = []

    def on_step() -> None:
        left.append(len(left))
        if len(left) == 10:
            begun.set()
            closed.wait(10)

    def run() -> None:
        x = {"x": np.ones(3, "f4")}
        program.run("main", x, steps=500, recording=recording, on_step=on_step)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(10)
    problems = [written.problem for written in recording.close()]
    closed.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(left) == 500
    assert problems == [None, None]
    with opstep.Workspace(tmp_path / "r.db") as ws:
        assert ws.run().status == "interrupted"
        assert ws.run().steps == 10


def test_one_file_cannot_be_both(tmp_path):
    with pytest.raises(InputError, match="cannot be both"):
        opstep.Recording(workspace=tmp_path / "a.db", trace=tmp_path / "x" / ".." / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_no_trace(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe"):
        opstep.Recording(trace=tmp_path / "pipe")


def test_another_folder_does_not_lose_a_recording(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = opstep.loads(PROGRAM)
    with opstep.Recording(workspace="runs.db") as recording:
        program.run("main", {"x": np.ones(3, np.float32)}, recording=recording)
        monkeypatch.chdir("/")
    assert recording.close()[0].problem is None


def test_a_recording_is_of_one_process(tmp_path):
    program = opstep.loads(PROGRAM)
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        program.run("main", {"x": np.ones(3, np.float32)}, recording=recording)
        child = os.fork()
        if child == 0:
            try:
                program.run("main", {"x": np.ones(3, np.float32)}, recording=recording)
            except InputError as error:
                os._exit(7 if "process that opened it" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert recording.close()[0].problem is None


def test_a_recording_that_nobody_closes_is_whole(tmp_path):
    script = f"""
import numpy as np, opstep
recording = opstep.Recording(workspace={str(tmp_path / "runs.db")!r})
program = opstep.loads({PROGRAM!r})
for _ in range(3):
    program.run("main", {{"x": np.ones(3, np.float32)}}, recording=recording)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
    with opstep.Workspace(tmp_path / "runs.db") as workspace:
        run = workspace.run("last")
        assert (run.status, run.steps) == ("done", 3)


def test_a_run_under_way_is_not_pruned(tmp_path):
    program = opstep.loads(PROGRAM)
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        program.run("main", {"x": np.ones(3, np.float32)}, recording=recording)
        recording.barrier()
        with (
            opstep.Workspace(tmp_path / "runs.db") as workspace,
            pytest.raises(InputError, match="is under way"),
        ):
            workspace.prune(["last"])
