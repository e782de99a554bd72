"""Records of a GPU: from what it wrote down to recorders and timelines."""

from contextlib import suppress

import numpy as np
from gpu_reports import KERNEL, HostClock, layout_of, slots_of

import opstep
from opstep.runtime.device.cuda.recording.pending import (
    SLAB,
    Part,
    PendingActivation,
    PendingRecords,
    Slots,
)
from opstep.runtime.device.cuda.recording.records import merged
from opstep.runtime.device.cuda.recording.stamps import Marks, Move
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.recording import (
    COPY,
    FILL,
    Activation,
    GraphLaunch,
    HostRecord,
    Launch,
    Layout,
    StreamRecord,
    Wait,
)
from opstep.runtime.statistics import WORDS
from opstep.trace.packets import launched

# --- records --------------------------------------------------------------------------------------


class Records(Recorder):
    def __init__(self):
        self.records = []

    def add_record(self, record):
        self.records.append(record)


def pending_of(layout, parts, streams, number=0):
    """An activation, what was copied of each stream's part, and all its rows between neighbours."""
    pending = PendingActivation(layout, parts)
    pending.activation = Activation(number, number, layout)
    pending.words = slots_of(*streams)
    pending.marks = [Marks(None, part.address) for part in parts]
    for marks, rows in zip(pending.marks, layout.rows, strict=True):
        marks.rows = [(k, k + 1) for k in range(len(rows))]
    return pending


def test_records_of_an_activation():
    layout = layout_of([5, 6], [7], waits=[Wait(1, 0, 0, 0)])
    layout.stats[0] = [(5, 0), (6, 1)]
    layout.launches = [GraphLaunch((Launch(0, 0, 2), Launch(1, 0, 1)))]
    parts = [Part(0, 4, 2 * WORDS, 5), Part(0, 2, 0, 0)]
    words = [1100, 1200, 1300, *[0] * (parts[0].before - 3), *range(2 * WORDS + 5)]
    copied = [1310, 1320]  # behind the stamps of rows and fills
    pending = pending_of(layout, parts, [words, [1205, 1400, *copied]])
    pending.launches[:] = [[1000, 1010]]
    pending.with_stats = True
    pending.copies[1] = [Move(2, 3, 64, COPY)]
    slots = Slots(lambda words: np.zeros(words, np.int64))
    slot = slots.get(len(words))
    slot[: len(words)] = words
    pending.words[0] = slot
    pending_records, recorder = PendingRecords(HostClock(), slots), Records()
    pending_records.add(recorder, pending)
    pending_records.step_done(Records())  # another run's
    assert recorder.records == []
    pending_records.step_done(recorder)
    host, first, second = recorder.records
    assert isinstance(host, HostRecord) and host.launches.tolist() == [[1000, 1010]]
    assert isinstance(first, StreamRecord) and first.times.tolist() == [[1100, 1200], [1200, 1300]]
    assert first.stats.shape == (2, WORDS) and first.stats[1, 0] == WORDS
    assert first.details.tolist() == list(range(2 * WORDS, 2 * WORDS + 5))
    assert second.details is None and second.times.tolist() == [[1205, 1400]]
    assert second.waits.tolist() == [[1000, 1200]] and second.stats.shape == (0, WORDS)
    assert second.moves.tolist() == []  # within a row, where no copy can be
    assert slots.get(len(slot)) is slot  # used again
    pending_records.step_done(recorder)
    assert len(recorder.records) == 3
    pending_records.end(recorder)
    pending_records.step_done(recorder)
    assert len(recorder.records) == 3


def test_copies_and_fills_come_in_their_order():
    layout = layout_of([5])
    layout.launches = [Launch(0, 0, 1)]
    pending = pending_of(layout, [Part(0, 4, 0, 0)], [[100, 200, 240, 260, 210, 230]])
    pending.marks[0].fills = [Move(2, 3, 16, FILL)]
    pending.copies[0] = [Move(4, 5, 8, COPY)]
    pending_records = PendingRecords(HostClock(), Slots(lambda words: np.zeros(words, np.int64)))
    recorder = Records()
    pending_records.add(recorder, pending)
    pending_records.step_done(recorder)
    assert recorder.records[1].moves.tolist() == [[210, 230, 8, COPY], [240, 260, 16, FILL]]


class LateRecorder(Records):
    def __init__(self):
        super().__init__()
        self.flush = None

    def may_defer(self, flush):
        self.flush = flush
        return True

    def caught_up(self, step):
        self.records.append(step)


def test_small_slots_are_parts_of_one():
    made = []

    def make(words):
        made.append(words)
        return np.zeros(words, np.int64)

    slots = Slots(make)
    held = [slots.get(3) for _ in range(SLAB // 4)]
    assert made == [SLAB] and {len(slot) for slot in held} == {4}
    assert len({slot.ctypes.data for slot in held}) == len(held)
    slots.give_back(held[0])
    assert slots.get(4) is held[0] and made == [SLAB]
    assert len(slots.get(2 * SLAB)) == 2 * SLAB and made == [SLAB, 2 * SLAB]


def test_what_is_handed_over_is_not_lost_with_what_cannot_be():
    layout = layout_of([5])
    layout.launches = [Launch(0, 0, 1)]
    pending_records = PendingRecords(HostClock(), Slots(lambda words: np.zeros(words, np.int64)))

    class Fails(LateRecorder):
        def add_record(self, record):
            super().add_record(record)
            if len(self.records) == 2:
                raise KeyboardInterrupt

    recorder = Fails()
    for number in range(3):
        parts = [Part(0, 2, 0, 0)]
        pending_records.add(recorder, pending_of(layout, parts, [[1100, 1200]], number))
    with suppress(KeyboardInterrupt):
        pending_records.step_done(recorder, now=True)
    pending_records.step_done(recorder, now=True)
    found = [r if isinstance(r, int) else r.activation.step for r in recorder.records]
    assert found == [0, 0, 1, 1, 2, 2, 2]


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


def test_records_of_steps_are_made_during_the_next_one():
    layout = layout_of([5])
    layout.launches = [Launch(0, 0, 1)]
    pending_records = PendingRecords(HostClock(), Slots(lambda words: np.zeros(words, np.int64)))
    recorder = LateRecorder()

    def step(number):
        pending = pending_of(layout, [Part(0, 2, 0, 0)], [[1100, 1200]], number)
        pending_records.add(recorder, pending)
        pending_records.meanwhile(recorder)
        pending_records.step_done(recorder)

    def steps():
        return [r if isinstance(r, int) else r.activation.step for r in recorder.records]

    step(0)
    assert steps() == []
    step(1)
    assert steps() == [0, 0, 0]
    step(2)
    assert steps() == [0, 0, 0, 1, 1, 1]
    recorder.flush()
    assert steps()[6:] == [2, 2, 2]
    recorder.flush()
    assert len(steps()) == 9


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
