"""Records of a GPU: from what was launched and reported to recorders and timelines."""

from types import SimpleNamespace

import numpy as np
import pytest
from gpu_reports import KERNEL, layout_of, ran

import opstep
from opstep.runtime.device.cuda.recording import tape
from opstep.runtime.device.cuda.recording.meters import EventMeter, moment
from opstep.runtime.device.cuda.recording.pending import PendingActivation, PendingRecords, Slots
from opstep.runtime.device.cuda.recording.records import NO_ROW, Part, Rows, merged
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.recording import (
    Activation,
    GraphLaunch,
    HostRecord,
    Launch,
    Layout,
    StreamRecord,
    Wait,
)
from opstep.runtime.statistics import WORDS
from opstep.trace.arguments import launched

# --- records --------------------------------------------------------------------------------------


class Reported:
    """A meter whose reports are given."""

    captures, note = True, ""

    def __init__(self, found):
        self.found = found
        self.users = []
        self.gathered = []

    def ready(self, activations):
        return 0

    def gather(self, activations):
        self.gathered += activations

    def read(self, pending):
        self.gathered = [t for t in self.gathered if t is not pending]
        rows = Rows(pending.activation.layout)
        rows.add(self.found)
        return rows

    def begin(self, user):
        self.users.append(user)

    def end(self, user):
        self.users.remove(user)


class Records(Recorder):
    def __init__(self):
        self.records = []

    def add_record(self, record):
        self.records.append(record)


def test_records_of_an_activation():
    layout = layout_of([5, 6], [7], waits=[Wait(1, 0, 0, 0)])
    layout.stats[0] = [(5, 0), (6, 1)]
    layout.launches = [GraphLaunch((Launch(0, 0, 2), Launch(1, 0, 1)))]
    pending = PendingActivation(Activation(3, 0, layout))
    pending.launches[:] = [[1000, 1010]]
    pending.with_stats = True
    slots = Slots(lambda words: np.arange(words, dtype=np.int64))
    pending.stats[0] = slots.get((2 * WORDS + 5) * 8)
    pending.detail_words[0] = 5
    meter = Reported(
        [
            (0, 0, ran(1, 1100, 1200, kernel=KERNEL)),
            (0, 1, ran(1, 1210, 1300)),
            (1, 0, ran(1, 1205, 1400)),
        ]
    )
    pending_records, recorder = PendingRecords(meter, slots), Records()
    pending_records.begin(recorder)
    pending_records.add(recorder, pending)
    pending_records.step_done(Records())  # another run's
    assert recorder.records == []
    pending_records.step_done(recorder)
    host, first, second = recorder.records
    assert isinstance(host, HostRecord) and host.launches.tolist() == [[1000, 1010]]
    assert isinstance(first, StreamRecord) and first.times.tolist() == [[1100, 1200], [1210, 1300]]
    assert first.stats.shape == (2, WORDS) and first.stats[1, 0] == WORDS
    assert first.details.tolist() == list(range(2 * WORDS, 2 * WORDS + 5))
    assert second.details is None
    assert second.waits.tolist() == [[1000, 1200]] and second.stats.shape == (0, WORDS)
    assert layout.kernels == {(0, 0): (KERNEL,)}
    assert slots.get((2 * WORDS + 5) * 8) is pending.stats[0]  # used again
    pending_records.step_done(recorder)
    assert len(recorder.records) == 3
    pending_records.end(recorder)
    assert meter.users == []


def test_pieces_are_cut_where_a_library_runs():
    ours = [object.__new__(tape.BoundGrid) for _ in range(3)]
    theirs = [lambda stream: None, lambda stream: None]
    given = [(0, ours[0]), (0, ours[1]), (1, theirs[0]), (2, theirs[1]), (NO_ROW, ours[2])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "work_of", list)
        made = tape.pieces(2, given)
    assert [p.part for p in made] == [
        Part(2, (0, 0)),
        Part(2, (1,), exact=False),
        Part(2, (2,), exact=False),
        Part(2, (NO_ROW,)),
    ]


# --- events ---------------------------------------------------------------------------------------


class Events:
    """A driver of events, whose clock is `now`, in ns."""

    def __init__(self):
        self.now = 5_000_000_000
        self.made = 0
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def cuStreamCreate(self, flags):  # noqa: N802
        return 77

    def cuEventCreate(self, flags):  # noqa: N802
        self.made += 1
        return [0]

    def cuEventRecord(self, event, stream):  # noqa: N802
        event[0] = self.now

    def cuStreamSynchronize(self, stream):  # noqa: N802
        pass

    def cuEventElapsedTime(self, first, last):  # noqa: N802
        return np.float32((last[0] - first[0]) / 1e6)


def test_times_of_events(monkeypatch):
    driver = Events()
    monkeypatch.setattr(
        "opstep.runtime.device.cuda.recording.meters.monotonic_ns", lambda: driver.now - 10**9
    )
    meter = EventMeter(SimpleNamespace(driver=driver, enter=lambda: driver), "a note")

    def work(stream):
        driver.now += 300_000

    layout = layout_of([4, 5])
    pending = PendingActivation(Activation(0, 0, layout))
    for row in (0, NO_ROW, 1):
        piece = SimpleNamespace(part=Part(0, (row,), exact=False), work=work)
        meter.issue(pending, piece, 1)
    meter.gather([pending])
    rows = meter.read(pending)
    began = 4_000_000_000
    expected = [[began, began + 300_000], [began + 600_000, began + 900_000]]
    assert np.abs(rows.times[0] - expected).max() < 500
    before = driver.made
    meter.issue(pending, SimpleNamespace(part=Part(0, (0,), exact=False), work=work), 1)
    assert driver.made == before  # events are used again


def test_moments_are_told_backwards():
    assert moment(10_000_000, 2.5) == 7_500_000


# --- words ----------------------------------------------------------------------------------------


def test_kernels_among_the_arguments():
    assert launched(()) == {}
    assert launched((KERNEL,))["kernels"]["1"] == {
        "name": "k",
        "grid": "4 x 2",
        "block": "256",
        "registers": 40,
        "static_shared": 1024,
        "dynamic_shared": 0,
    }


def test_the_timeline_of_a_graph_that_was_launched_at_once(tmp_path, monkeypatch):
    """A run on the CPU whose records are told as a GPU's are."""
    from opstep.trace import recording as module
    from opstep.trace.viewer.engine import Engine

    def as_graph(add_record):
        def add_as_graph(self, record):
            activation = record.activation
            layout = activation.layout
            launches, _ = merged(layout.launches, [list(range(len(layout.launches)))])
            kernels = {
                (s, r): (KERNEL,) for s, rows in enumerate(layout.rows) for r in range(len(rows))
            }
            changed = Layout(
                layout.plan, layout.rows, layout.stats, launches, layout.waits, layout.syncs,
                layout.calls, kernels,
            )  # fmt: skip
            record = record._replace(activation=activation._replace(layout=changed))
            if isinstance(record, HostRecord):
                spans = record.launches
                record = record._replace(
                    launches=np.array([[spans[:, 0].min(), spans[:, 1].max()]])
                )
            add_record(self, record)

        return add_as_graph

    monkeypatch.setattr(module._Recorder, "add_record", as_graph(module._Recorder.add_record))
    program = opstep.load("examples/branches.opg")
    inputs = {"left": np.ones((2048, 32), "f4"), "right": np.ones((2048, 48), "f4"), "bias": 0.5}
    trace = tmp_path / "run.pftrace"
    with opstep.Recording(trace=trace) as recording:
        program.run("main", inputs, streams=2, recording=recording)
    with Engine(trace) as engine:
        count = engine.query("select count() from slice where category = 'op'").rows[0][0]
        launches = engine.query(
            "select name, extract_arg(arg_set_id, 'debug.ops') from slice where category = 'launch'"
        ).rows
        assert len(launches) == 1 and launches[0][1] == count
        assert launches[0][0].startswith("launch graph ")
        flows = engine.query(
            "select count() from flow join slice as l on l.id = flow.slice_out "
            "where l.category = 'launch'"
        ).rows[0][0]
        assert flows == count
        grids = engine.query(
            "select distinct extract_arg(arg_set_id, 'debug.kernels.1.grid') from slice "
            "where category = 'op'"
        ).rows
        assert [list(row) for row in grids] == [["4 x 2"]]


class LateRecorder(Records):
    def __init__(self):
        super().__init__()
        self.flush = None

    def may_defer(self, flush):
        self.flush = flush
        return True

    def caught_up(self, step):
        self.records.append(step)


def test_records_of_short_steps_are_made_during_later_ones(monkeypatch):
    from opstep.runtime.device.cuda.recording import pending as module

    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(module, "monotonic_ns", lambda: next(clock))
    layout = layout_of([5])
    layout.launches = [Launch(0, 0, 1)]
    meter = Reported([(0, 0, ran(1, 1100, 1200))])
    pending_records, recorder = (
        PendingRecords(meter, Slots(lambda words: np.zeros(words, np.int64))),
        LateRecorder(),
    )

    def step(number):
        pending_records.add(recorder, PendingActivation(Activation(number, number, layout)))
        pending_records.meanwhile(recorder)
        pending_records.step_done(recorder)

    def steps():
        return [r if isinstance(r, int) else r.activation.step for r in recorder.records]

    step(0)
    step(1)
    assert steps() == [] and meter.gathered == []
    monkeypatch.setattr(meter, "ready", lambda given: min(len(given), 1))
    step(2)  # the first was reported
    assert steps() == []
    step(3)
    assert steps() == [0, 0, 0]
    monkeypatch.setattr(meter, "ready", lambda given: 0)
    monkeypatch.setattr(module, "monotonic_ns", lambda: 2 * module.PERIOD)
    step(4)  # all have to be asked for, and so has one that was ready meanwhile
    step(5)
    assert steps()[3:] == [1, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    recorder.flush()
    assert steps()[13:] == [5, 5, 5]


def test_ends_of_steps_come_behind_their_records(tmp_path, monkeypatch):
    """A recorder whose device is late."""
    from opstep.trace import recording as module

    program = opstep.load("examples/branches.opg")
    inputs = {"left": np.ones((2048, 32), "f4"), "right": np.ones((2048, 48), "f4"), "bias": 0.5}
    held, order = [], []
    recorders = module._Recorder
    add_record, end_step, put = recorders.add_record, recorders.end_step, recorders._put

    def flush(recorder):
        records, held[:] = held[:], []
        for record in records:
            add_record(recorder, record)
        if records:
            recorder.caught_up(records[-1].activation.step)

    def late_end(self, outputs, failed=False):
        self.may_defer(lambda: flush(self))
        end_step(self, outputs, failed)
        if self._steps % 3 == 2:
            flush(self)

    def noted(self, method, argument, nbytes=0):
        if method != "add_overhead":
            step = argument.activation.step if method == "add_record" else argument.step
            order.append((step, method == "end_step"))
        put(self, method, argument, nbytes)

    monkeypatch.setattr(module._Recorder, "add_record", lambda self, record: held.append(record))
    monkeypatch.setattr(module._Recorder, "end_step", late_end)
    monkeypatch.setattr(module._Recorder, "_put", noted)
    with opstep.Recording(trace=tmp_path / "run.pftrace") as recording:
        program.run("main", inputs, steps=4, recording=recording)
        program.run("main", inputs, steps=3, recording=recording)
    assert order == sorted(order)
    assert [step for step, ends in order if ends] == list(range(7))
