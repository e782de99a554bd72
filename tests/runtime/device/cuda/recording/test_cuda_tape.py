"""A GPU's tape over kernels of the CPU: what the host notes of a run, without a GPU."""

import ctypes
from itertools import count
from time import monotonic_ns

import numpy as np
import pytest
from branching import SIZE, branching
from gpu_reports import KERNEL, HostClock

import opstep
from opstep.api import devices
from opstep.api.devices import Kind
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.cuda.driver.launching import work_of
from opstep.runtime.device.cuda.recording.kernels import Launched
from opstep.runtime.device.cuda.recording.pending import PendingRecords, Slots
from opstep.runtime.device.cuda.recording.tape import CudaTape
from opstep.runtime.device.protocols import Recorder, Stream
from opstep.runtime.plan.plan import Fuse
from opstep.runtime.recording import HostRecord, StreamRecord

LOOP = """
graph more(n: i32[]) -> bool[] {
  three = full(value=3, shape=[], dtype=i32)
  go = less(n, three)
  return go
}

graph once(n: i32[]) -> i32[] {
  one = full(value=1, shape=[], dtype=i32)
  m = add(n, one)
  return m
}

graph main(n: i32[]) -> i32[] {
  m = while(n, test=more, body=once)
  return m
}
"""


class Queue(Stream):
    """Does what it is given at once, as one of a GPU: work takes the stream's handle."""

    handle = 7

    def submit(self, work):
        work(self.handle)

    def record(self, event):
        event.set()

    def wait(self, event):
        assert event.done(), "work is issued in an order that its waits allow"

    def start(self):
        """Nothing waits."""

    synchronize = drop = abandon = start

    def done(self):
        return True


class Stamp:
    aside = False

    def __init__(self, work):
        self.work = work

    def __call__(self, stream):
        self.work(stream)


class TapedDevice(CpuDevice):
    """Kernels of the CPU that are handed over as those of a GPU."""

    name = "taped"

    def __init__(self):
        super().__init__(1)
        self.pending_records = PendingRecords(
            HostClock(), Slots(lambda words: np.zeros(words, np.int64))
        )

    def stream(self):
        return Queue()

    def bind(self, launches, addresses, workspace):
        call = CpuDevice.capture(self, super().bind(launches, addresses, workspace))
        return [lambda stream: call()]

    def capture(self, bound):
        return work_of(bound)

    def copy(self, source, target, nbytes):
        move = super().copy(source, target, nbytes)
        return lambda stream: move()

    def stamp(self, address):
        at = ctypes.c_int64.from_address(address)
        return [Stamp(lambda stream: setattr(at, "value", monotonic_ns()))]

    def read_later(self, source, target, nbytes, stream):
        ctypes.memmove(target.ctypes.data, source, nbytes)

    def launched(self, launch):
        return [Launched(KERNEL, False)]

    def tape(self, binding, recorder):
        return CudaTape(self, binding, recorder, self.pending_records)

    def recorded_step(self, recorder, now=False):
        self.pending_records.step_done(recorder, now)

    def unrecord(self, recorder):
        self.pending_records.end(recorder)


class Notes(Recorder):
    """A recording and its recorder, of times alone."""

    fuses = Fuse.NOTHING

    def __init__(self):
        self.numbers, self.steps = count(), count()
        self.records, self.ended = [], []

    def begin_run(self, info):
        return self

    def values_to_record(self, plan):
        return ()

    def begin_step(self):
        return next(self.steps), False

    def next_number(self):
        return next(self.numbers)

    def add_record(self, record):
        self.records.append(record)

    def end_step(self, outputs, failed=False):
        self.ended.append(len(self.records))

    def end_run(self, error, unwritten):
        assert error is None

    def of(self, kind):
        return [r for r in self.records if isinstance(r, kind)]


@pytest.fixture
def recorded(monkeypatch):
    """Runs a program there: (its result, what was recorded)."""
    kind = Kind("taped", lambda number, setup: TapedDevice())
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, kind])

    def run(text, inputs, **how):
        notes = Notes()
        return opstep.loads(text).run("main", inputs, device="taped", recording=notes, **how), notes

    return run


def ordered(times):
    return bool((times[:, 0] > 0).all() and (times[:, 0] <= times[:, 1]).all())


@pytest.mark.parametrize("streams", [1, 3])
def test_each_op_has_a_row_and_each_launch_its_times(recorded, streams):
    x = {"x": np.linspace(-1, 1, SIZE, dtype=np.float32)}
    found, notes = recorded(branching(3, 4), x, streams=streams, steps=2)
    plain = opstep.loads(branching(3, 4)).run("main", x, streams=streams)
    assert found.outputs[0].tobytes() == plain.outputs[0].tobytes()
    assert len(notes.ended) == 2 and notes.ended[0] == len(notes.records) // 2
    for record in notes.of(StreamRecord):
        layout = record.activation.layout
        assert len(record.times) == len(layout.rows[record.stream]) and ordered(record.times)
        assert len(record.waits) == sum(w.stream == record.stream for w in layout.waits)
    for record in notes.of(HostRecord):
        layout = record.activation.layout
        launched = [(la.stream, row) for la in layout.launches for row in range(la.lo, la.hi)]
        rows = [(s, k) for s, steps in enumerate(layout.rows) for k in range(len(steps))]
        assert sorted(launched) == rows, "each row is launched once"
        assert len(record.launches) == len(layout.launches) and ordered(record.launches)
        assert (len(layout.waits) > 0) == (streams > 1)


def test_what_the_host_waits_for_has_times(recorded):
    x = {"x": np.ones(SIZE, np.float32)}
    _, notes = recorded(branching(2, 2), x, streams=2, sync="op")
    (host,) = notes.of(HostRecord)
    assert len(host.syncs) == len(host.activation.layout.syncs) > 0 and ordered(host.syncs)


def test_the_fence_before_updates_has_times(recorded):
    update = "  next = add(n, b0_3)\n  n <- next\n  return view"
    text = f"state n: f32[{SIZE}] = ones()\n\n{branching(3, 4).replace('  return view', update)}"
    _, notes = recorded(text, {"x": np.ones(SIZE, np.float32)}, streams=2, steps=3)
    for host in notes.of(HostRecord):
        assert host.activation.layout.syncs == [0, 1] and ordered(host.syncs)


def test_calls_have_times_and_activations_know_their_caller(recorded):
    found, notes = recorded(LOOP, {"n": np.int32(0)})
    assert found.outputs[0] == 3
    whole = [h for h in notes.of(HostRecord) if h.activation.plan.graph == "main"]
    assert len(whole) == 1 and len(whole[0].calls) == 1 and ordered(whole[0].calls)
    turns = [h.activation for h in notes.of(HostRecord) if h.activation.plan.graph == "once"]
    assert [a.turn for a in turns] == [0, 1, 2]
    assert all(a.caller is whole[0].activation for a in turns)
