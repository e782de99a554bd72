"""Launches whose addresses change between runs, and streams of others: what the driver is told."""

from __future__ import annotations

import ctypes
from itertools import count
from types import SimpleNamespace

import pytest

from opstep.runtime.device.cuda.driver import launching, streams
from opstep.runtime.device.cuda.driver.graphs import Replay
from opstep.runtime.device.cuda.driver.launching import BoundGrid, Launches
from opstep.runtime.device.cuda.driver.streams import (
    CudaEvent,
    CudaStream,
    ForeignStream,
    Sides,
)
from opstep.runtime.device.cuda.lowering import Prepared


class Driver:
    """Takes down calls; what makes something gives a number."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2, CU_EVENT_BLOCKING_SYNC=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self):
        self.calls: list[tuple] = []
        self.numbers = count(1)
        self.module = self

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, *args))
            return next(self.numbers)

        return call

    def names(self) -> list[str]:
        found = [name for name, *_ in self.calls]
        self.calls.clear()
        return found


class Gpu:
    ordinal = 0

    def __init__(self):
        self.driver = Driver()
        self.spare_events = []

    def enter(self):
        return self.driver


@pytest.fixture
def gpu():
    return Gpu()


def test_the_words_of_a_launch_are_set():
    prepared = Prepared(
        SimpleNamespace(function=test_the_words_of_a_launch_are_set),  # pyright: ignore
        words=(0, 7, 0, 0), slots=((0, 1), (2, 0), (3, 1)), workspace=(), tuples=(),
        grid=(1, 1, 1), block=(1, 1, 1), shared=0,
    )  # fmt: skip
    bound = BoundGrid(prepared, 99, {}, [1000, 2000], 0)
    row = bound.row
    for point_to in bound.pointers(1):
        point_to(3000)
    assert bound._words.tolist() == [3000, 7, 1000, 3000]
    assert bound.row == row, "the driver finds them where they were"
    first = ctypes.c_int64.from_address(int(bound._pointers[0]))
    assert first.value == 3000


class Stretch:
    """A stretch at changing addresses. What a run does: `i`ssues it, `C`aptures and launches, or
    launches a `g`raph.
    """

    def __init__(self, gpu, watch=None):
        self.gpu = gpu
        self.replay = Replay(gpu, [int], [CudaStream(gpu)], True, watch)

    def run(self, *places: int) -> str:
        found = []
        for at in places:
            self.replay.moved(at)
            self.gpu.driver.calls.clear()
            self.replay()
            calls = self.gpu.driver.calls
            names = [name for name, *_ in calls]
            graphs = [call[1] for call in calls if call[0] == "cuGraphLaunch"]
            captured = "cuStreamBeginCapture" in names
            found.append("C" if captured else f"g{graphs[0]}" if graphs else "i")
        return "".join(found)


def test_a_stretch_has_a_graph_for_each_of_the_places_that_come_again(gpu):
    stretch = Stretch(gpu)
    assert stretch.run(1, 1) == "iC"
    first = stretch.run(1)
    assert first.startswith("g") and stretch.run(1) == first
    assert stretch.run(2, 3, 2, 3) == "iiCC"
    again = [stretch.run(at) for at in (1, 2, 3)]
    assert again[0] == first and len(set(again)) == 3
    assert stretch.run(*range(4, 400)) == "i" * 396, "nothing is captured for one run"
    assert [stretch.run(at) for at in (1, 2, 3)] == again


def test_of_many_places_the_latest_have_graphs(gpu):
    stretch = Stretch(gpu)
    for at in range(8):
        assert stretch.run(at, at) == "iC"
    zeroth = stretch.run(0)
    assert stretch.run(8) == "i"
    stretch.replay.moved(8)
    stretch.replay()
    destroyed = [call for call in gpu.driver.calls if call[0] == "cuGraphExecDestroy"]
    assert len(destroyed) == 1, "that of places 1"
    assert stretch.run(0) == zeroth
    assert stretch.run(1, 1, 1) == "iiC", "more runs than before are to be worth it"


class Watched:
    """What a stretch tells of itself."""

    at_once, variant = False, "one"

    def __init__(self):
        self.told: list[str] = []

    def issued(self):
        self.told.append("issued")

    def moved(self):
        self.told.append("moved")

    def replay(self, launch):
        self.told.append("replay")
        launch()


def test_whoever_watches_a_stretch_knows_of_one_graph(gpu):
    watch = Watched()
    stretch = Stretch(gpu, watch)
    stretch.replay()
    stretch.replay()
    assert watch.told == ["issued", "replay"]
    assert stretch.run(1) == "i"
    assert watch.told[2:] == ["moved"], "once more it has to be worth a graph"
    stretch.replay()
    stretch.replay()
    assert watch.told[3:] == ["issued", "replay"]


def test_a_stream_of_others_is_waited_for_and_waits(gpu):
    foreign, ours = ForeignStream(gpu, 0), CudaStream(gpu)
    event = CudaEvent(gpu)
    gpu.driver.calls.clear()
    foreign.record(event)
    ours.wait(event)
    ours.record(event)
    foreign.wait(event)
    assert gpu.driver.calls == [
        ("cuEventRecord", event.handle, 0),
        ("cuStreamWaitEvent", ours.handle, event.handle, 0),
        ("cuEventRecord", event.handle, ours.handle),
        ("cuStreamWaitEvent", 0, event.handle, 0),
    ]
    gpu.driver.calls.clear()
    del foreign
    assert gpu.driver.calls == [], "it is theirs"
    assert streams.capturing.stretch is None


class Row:
    """A launch of a table, as `launch_rows` has it."""

    def __init__(self, number: int, beside: bool = False, stamp: bool = False):
        self.row, self.name = (number,) + (0,) * 8, str(number)
        self.beside, self.stamp, self.aside = beside, stamp, stamp


def captured(gpu, monkeypatch, rows):
    """Launches that are captured from now on, what is launched, and streams beside."""
    monkeypatch.setattr(launching, "launcher", lambda: 0)
    launches, launched, sides = Launches(rows), [], Sides(gpu, 2)
    monkeypatch.setattr(launches, "_launch", lambda *args: launched.append(args))
    launches(7)
    assert launched == [(7, 0, len(rows))], "all at once where nothing is captured"
    launched.clear()
    gpu.driver.calls.clear()
    monkeypatch.setattr(streams.capturing, "sides", sides)
    return launches, launched, sides


def test_launches_beside_each_other_are_spread_over_streams_where_they_are_captured(
    gpu, monkeypatch
):
    rows = [Row(k, beside=k in (2, 3, 4)) for k in range(6)]
    launches, launched, sides = captured(gpu, monkeypatch, rows)
    a, b = (side.handle for side in sides.streams)
    launches(7)
    assert launched == [(7, 0, 1), (b, 1, 2), (a, 2, 3), (b, 3, 4), (a, 4, 5), (7, 5, 6)]
    recorded = [call[1:] for call in gpu.driver.calls if call[0] == "cuEventRecord"]
    waited = [call[1:3] for call in gpu.driver.calls if call[0] == "cuStreamWaitEvent"]
    (fork, on), (end_a, _), (end_b, _) = recorded
    assert on == 7 and [stream for _, stream in recorded[1:]] == [a, b]
    assert waited == [(a, fork), (b, fork), (7, end_a), (7, end_b)]


def test_nothing_waits_for_what_is_launched_aside_before_the_end(gpu, monkeypatch):
    rows = [Row(k, stamp=k in (0, 2)) for k in range(4)]
    launches, launched, sides = captured(gpu, monkeypatch, rows)
    a, b = (side.handle for side in sides.streams)
    launches(7)
    launches(8)
    first = [(7, 0, 0), (a, 0, 1), (7, 1, 2), (a, 2, 3), (7, 3, 4)]
    assert launched == first + [({7: 8, a: b}[on], lo, hi) for on, lo, hi in first]
    fork = gpu.driver.calls[0][1]
    behind = [(7, a), (7, a), (8, b), (8, b)]
    assert gpu.driver.calls == [
        call
        for stream, side in behind
        for call in (("cuEventRecord", fork, stream), ("cuStreamWaitEvent", side, fork, 0))
    ]
    gpu.driver.calls.clear()
    sides.end(7)
    assert [call[2] for call in gpu.driver.calls if call[0] == "cuEventRecord"] == [a, b]
    assert [call[1] for call in gpu.driver.calls if call[0] == "cuStreamWaitEvent"] == [7, 7]
    gpu.driver.calls.clear()
    launches.bound[2].aside = False  # one that is waited for comes behind the one before it
    launched.clear()
    launches(7)
    assert launched == [(7, 0, 0), (a, 0, 1), (7, 1, 2), (7, 2, 3), (7, 3, 4)]
    ((_, _, on), (_, waits, _, _)) = gpu.driver.calls[2:]
    assert (on, waits) == (a, 7)
    sides.catch_up(7)
    assert len(gpu.driver.calls) == 4, "nothing came there since"
    gpu.driver.calls.clear()
    sides.begin()  # whatever became of that
    sides.end(7)
    assert gpu.driver.calls == []
