"""A recording that is closed while runs go on."""

from __future__ import annotations

import threading

import numpy as np

import opstep

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
