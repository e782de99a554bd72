"""A timeline whose every figure is known: its times are made up, and written as a run's are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import opstep
from opstep.runtime.recording import (
    Activation,
    HostRecord,
    Launch,
    Layout,
    RunInfo,
    StreamRecord,
    Wait,
)
from opstep.trace.sink import Run, StepDone
from opstep.trace.timeline import TimelineSink

TEXT = """\
graph main(x: f32[N]) -> f32[N] {
  a = exp(x)
  b = abs(x)
  c = add(a, b)
  d = relu(c)
  return d
}
"""
FILE = "made.opg"
NONE = np.zeros((0, 2), np.int64)
BEGIN = 5_000_000  # of the first step; ns


def program() -> opstep.Program:
    return opstep.loads(TEXT, FILE)


def plan():
    return program().plan(symbols={"N": 1000}, policy=opstep.policy(streams=2))


class Maker:
    """Writes runs; `scale` multiplies all times of a step, which are told from its beginning."""

    def __init__(self, path: Path):
        self.sink = TimelineSink(path)
        self.plan = plan()
        self.number = 0

    def run(self, key: str) -> Run:
        info = RunInfo(program(), "main", {}, self.plan.policy, "cpu", None, 7, 1)
        run = Run(key, info, 1e9, BEGIN, "none", 1, {}, {})
        self.sink.begin_run(run)
        return run

    def step(self, run: Run, step: int, at: int, layout: Layout, host, streams, end: int, scale=1):
        """`host`: times of launches and of syncs; `streams`: of ops and waits, by stream."""
        self.number += 1
        activation = Activation(self.number, step, layout)
        launches, syncs = (self.times(pairs, at, scale) for pairs in host)
        self.sink.add_record(run, HostRecord(activation, launches, syncs, NONE))
        for stream, pairs in enumerate(streams):
            ops, waits = (self.times(p, at, scale) for p in pairs)
            self.sink.add_record(run, StreamRecord(activation, stream, ops, waits, None))
        self.sink.end_step(run, StepDone(step, at, at + end * scale, {}))

    def times(self, pairs, at: int, scale: int) -> np.ndarray:
        return np.array(pairs, np.int64).reshape(-1, 2) * scale + at


def two_streams(path: Path) -> None:
    """Two runs. The first has three steps that take one, three and two times as long; in each, c on
    stream 0 waits for b on stream 1. In the second the host waits for a before it launches b.
    """
    made = Maker(path)
    rows, stats = [[0, 2, 3], [1]], [[], []]
    launches = [Launch(0, 0, 1), Launch(1, 0, 1), Launch(0, 1, 3)]
    layout = Layout(made.plan, rows, stats, launches, [Wait(0, 1, 1, 0)], [0])
    host = [(10, 20), (30, 40), (50, 60)], [(100, 760)]
    first = [(25, 225), (555, 655), (655, 755)], [(230, 550)]
    run = made.run("aa112233")
    for step, (at, scale) in enumerate([(0, 1), (2000, 3), (6000, 2)]):
        streams = [first, ([(45, 545)], [])]
        made.step(run, step, BEGIN + at, layout, host, streams, 1000, scale)

    layout = Layout(made.plan, [[0], [1]], stats, [Launch(0, 0, 1), Launch(1, 0, 1)], [], [0, 1])
    host = [(10, 20), (240, 250)], [(100, 230), (255, 320)]
    run = made.run("aabbccdd")
    streams = [([(25, 225)], []), ([(260, 300)], [])]
    made.step(run, 0, BEGIN + 10_000, layout, host, streams, 330)
    made.sink.flush()
    made.sink.close()
