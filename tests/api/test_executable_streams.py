"""Graphs called on memory of a device that is not the host's, behind streams of others."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from api.executables import TEXT, TRAINED, random

import opstep
from opstep.api import devices
from opstep.api.devices import Kind
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.api.settings import RunSettings
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.cpu.streams import CpuStream
from opstep.runtime.ir.types import TensorType, f32

BRANCHES = """
graph main(x: f32[512, 64]) -> f32[512, 64] {
  a = exp(x)
  b = sin(x)
  c = matmul(a, b, transpose_b=true)
  d = matmul(b, a, transpose_b=true)
  e = add(c, d)
  y = matmul(e, x)
  return y
}
"""


class Far(CpuDevice):
    """Its memory is not the host's, and other libraries have streams there."""

    in_host_memory = False

    def __init__(self):
        super().__init__(1)
        self.name = "far"
        self.alignment = 64
        self.theirs = CpuStream()

    def read(self, memory, offset, t):
        return super().read(memory, offset, t).copy()

    def foreign_stream(self, handle):
        assert handle == 9
        return self.theirs


@pytest.fixture
def far(monkeypatch):
    on = Far()
    kind = Kind("far", lambda number, setup: on, "far is far away", gpu=True)
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, kind])
    return on


@pytest.mark.parametrize("at", [0, 4])
def test_a_call_on_a_stream_comes_behind_and_before_what_is_queued_there(far, at):
    """Nobody waits: the call returns while its input is not there yet. `at`: where tensors begin,
    which may be where kernels cannot read or write.
    """
    x, y = random((8, 4)), random((8, 4), 1)
    expected = [a.tobytes() for a in opstep.loads(TEXT).run(inputs={"x": x, "y": y}).outputs]
    types = [TensorType(f32, (8, 4))] * 4 + [TensorType(f32, ())]
    memory = [far.alloc(8 * 16 + at) for _ in types]
    tensors = [
        ExternalTensor(m.address + at, t, "far", m) for m, t in zip(memory, types, strict=True)
    ]
    executable = Executable(opstep.loads(TEXT), None, types[:2], RunSettings(device="far"))
    found: list[bytes] = []
    for _ in range(3):
        found.clear()
        gate = threading.Event()
        far.theirs.submit(gate.wait)
        for m in memory:
            far.theirs.submit(partial(m.bytes.fill, 0))
        for m, array in zip(memory, (x, y), strict=False):
            far.theirs.submit(partial(far.write, m, at, types[0], array))
        executable(tensors[:2], tensors[2:], stream=9)
        for t in tensors[2:]:
            far.theirs.submit(lambda t=t: found.append(np.asarray(t).tobytes()))
        for stream in executable._idle[None][0].context.streams:
            stream.start()
        far.theirs.start()
        assert not found
        gate.set()
        far.theirs.synchronize()
        assert found == expected


class Noted(CpuStream):
    """A stream of others that takes down what it is told, and does it at once."""

    def __init__(self):
        super().__init__()
        self.told: list[tuple[str, object]] = []

    def record(self, event):
        self.told.append(("record", event))
        event.set()

    def wait(self, event):
        self.told.append(("wait", event))


def reach(executable: Executable, told: list) -> None:
    for stream in executable._idle[None][0].context.streams:
        stream.start()
    for _, event in told:
        event.wait()


def test_a_call_on_another_stream_comes_after_the_call_before(far):
    """They share memory for the values between."""
    t = TensorType(f32, (512, 64))
    executable = Executable(opstep.loads(BRANCHES), None, [t], RunSettings(device="far"))
    assert executable.plan.streams > 1
    memory = [far.alloc(512 * 256) for _ in range(2)]
    x, target = (ExternalTensor(m.address, t, "far", m) for m in memory)
    far.write(memory[0], 0, t, random((512, 64)))
    first = far.theirs = Noted()
    executable([x], [target], stream=9)
    ends = first.told[1:]
    reach(executable, ends)
    second = far.theirs = Noted()
    executable([x], [target], stream=9)
    reach(executable, second.told)
    assert [kind for kind, _ in first.told] == ["record", *["wait"] * executable.plan.streams]
    assert second.told[: len(ends)] == ends
    assert second.told[len(ends)][0] == "record"
    (own,) = executable([x])  # waits
    assert np.asarray(own).tobytes() == np.asarray(target).tobytes()
    assert np.asarray(own).any()


def test_memory_of_a_device_is_adopted_there(far):
    x = np.array([1, 2, 3], "f4")
    program = opstep.loads(TRAINED)
    memory = far.alloc(12)
    far.write(memory, 0, TensorType(f32, (3,)), 5)
    w = ExternalTensor(memory.address, TensorType(f32, (3,)), "far", memory)
    program.params.adopt("w", w)
    executable = Executable(program, None, [w.type], RunSettings(device="far"))
    (given,) = (ExternalTensor(m.address, w.type, "far", m) for m in [far.alloc(12)])
    far.write(given.memory, 0, w.type, x)
    for k in range(1, 3):
        result, _ = executable([given])
        np.testing.assert_array_equal(np.asarray(w), 5 - k * x)
        np.testing.assert_array_equal(np.asarray(result), 5 - k * x)
        np.testing.assert_array_equal(program.params["w"], 5 - k * x)
    far.write(memory, 0, w.type, 7)
    np.testing.assert_array_equal(program.params["w"], 7, "whoever wrote it")
    program.run("main", {"x": x})
    np.testing.assert_array_equal(program.params["w"], 7 - x, "what a run elsewhere made of it")
    executable([given])
    np.testing.assert_array_equal(np.asarray(w), 7 - 2 * x, "is brought here")


def called(far, executable: Executable, memory: list, seed: int) -> None:
    """A call with all of its tensors in this memory, checked."""
    types = [*executable.types, *executable.result_types]
    x, y = random((8, 4), seed), random((8, 4), 50 + seed)
    expected = [a.tobytes() for a in opstep.loads(TEXT).run(inputs={"x": x, "y": y}).outputs]
    for m, t, array in zip(memory, types, (x, y), strict=False):
        far.write(m, 0, t, array)
    executable.run([m.address for m in memory[:2]], [m.address for m in memory[2:]])
    found = [far.read(m, 0, t).tobytes() for m, t in zip(memory[2:], types[2:], strict=True)]
    assert found == expected


@pytest.fixture
def replaying(far, monkeypatch):
    """An executable on a device that replays what it ran at the same addresses, somewhere to put
    its tensors, and the numbers of addresses that the device was told.
    """
    far.replays = True
    told: list[int] = []
    monkeypatch.setattr(far, "moved", lambda code, places: told.append(places))
    types = [TensorType(f32, (8, 4))] * 2
    executable = Executable(opstep.loads(TEXT), None, types, RunSettings(device="far"))
    nbytes = [*executable.nbytes, *executable.result_nbytes]
    return executable, lambda: [far.alloc(n) for n in nbytes], told


def test_tensors_that_keep_moving_are_copied_where_that_spares_launches(far, replaying):
    """After some calls they have places of their own."""
    executable, somewhere, told = replaying
    counted, memory = [], []  # kept, so that each call's is elsewhere
    for seed in range(14):
        memory.append(somewhere())
        called(far, executable, memory[-1], seed)
        counted.append(len(told))
    assert counted[0] < counted[7] <= counted[9] == counted[13]
    assert len(set(told)) == 9, "each is another place, and the last one that of its own"


def test_tensors_that_come_back_are_used_where_they_are(far, replaying):
    """Nothing is copied for them, and the device knows their places again."""
    executable, somewhere, told = replaying
    places = [somewhere() for _ in range(3)]
    for seed in range(30):
        called(far, executable, places[seed % 3], seed)
    numbers = sorted(set(told))
    turn = told[: len(told) // 10]
    assert len(numbers) == 3 and told == turn * 10
    (held,) = executable._idle[None]
    assert not held.places.before and not held.places._copies


class Captured:
    """A stretch that a device has captured once it was issued."""

    def __init__(self, code, streams):
        self.code, self.streams = code, streams
        self.ready, self.launches = False, []

    def __call__(self):
        self.ready = True
        for do in self.code:
            do()

    def launch(self, stream):
        self.launches.append(stream)
        stream.synchronize()  # what comes before it
        self()
        for own in self.streams:
            own.synchronize()


def test_what_is_captured_goes_to_the_stream_of_others_itself(far, monkeypatch):
    """With copies of what kernels cannot read or write where it is, behind the call before; the
    next one that is not captured comes behind it.
    """
    made: list[Captured] = []

    def stretch(code, streams, *_):
        made.append(Captured(code, streams))
        return [made[-1]]

    monkeypatch.setattr(far, "stretches", True, raising=False)
    monkeypatch.setattr(far, "stretch", stretch)
    types = [TensorType(f32, (8, 4))] * 2
    executable = Executable(opstep.loads(TEXT), None, types, RunSettings(device="far"))
    nbytes = [n + 4 for n in (*executable.nbytes, *executable.result_nbytes)]
    memory = [far.alloc(n) for n in nbytes]

    def call(seed: int, at: int) -> list:
        """Tensors begin at that byte."""
        x, y = random((8, 4), seed), random((8, 4), 50 + seed)
        expected = [a.tobytes() for a in opstep.loads(TEXT).run(inputs={"x": x, "y": y}).outputs]
        for m, array in zip(memory, (x, y), strict=False):
            far.write(m, at, types[0], array)
        far.theirs = Noted()
        addresses = [m.address + at for m in memory]
        executable.run(addresses[:2], addresses[2:], 9)
        reach(executable, far.theirs.told)
        far.theirs.synchronize()
        found = [
            far.read(m, at, t).tobytes()
            for m, t in zip(memory[2:], executable.result_types, strict=True)
        ]
        assert found == expected
        return [kind for kind, _ in far.theirs.told]

    assert call(0, 0) == ["record", "wait"], "issued on streams of its own"
    assert call(1, 0) == ["wait", "record"], "behind the last one's end"
    assert call(2, 4) == ["wait", "record"]
    assert [type(s).__name__ for s in made[0].launches] == ["Noted", "Noted"]
    made[0].ready = False
    assert call(3, 0) == ["wait", "record", "wait"]
    assert call(4, 0) == ["wait", "record"]


def test_an_interrupt_behind_a_launch_waits_for_the_stream_of_others(far, monkeypatch):
    """It uses memory that is given back next."""
    monkeypatch.setattr(far, "stretches", True, raising=False)
    monkeypatch.setattr(far, "stretch", lambda code, streams, *_: [Captured(code, streams)])
    types = [TensorType(f32, (8, 4))] * 2
    executable = Executable(opstep.loads(TEXT), None, types, RunSettings(device="far"))
    memory = [far.alloc(n) for n in (*executable.nbytes, *executable.result_nbytes)]
    addresses = [m.address for m in memory]

    class Interrupted(Noted):
        abandoned = False

        def record(self, event):
            raise KeyboardInterrupt

        def abandon(self):
            self.abandoned = True

    first = far.theirs = Noted()
    executable.run(addresses[:2], addresses[2:], 9)
    reach(executable, first.told)
    far.theirs = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        executable.run(addresses[:2], addresses[2:], 9)
    assert far.theirs.abandoned
