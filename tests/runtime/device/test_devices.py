"""Devices by name, what is known of them, and one that is registered here."""

import numpy as np
import pytest

import opstep
from opstep.api import devices
from opstep.api.devices import Kind, canonical, device_named, device_names, kind_of
from opstep.hunting.search import hunt
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.ir.errors import InputError

TRAINED = """
param w: f32[3] = ones()
state seen: i32[] = 0

graph main(x: f32[3]) -> f32[], i32[] {
  p = mul(w, x)
  loss = sum(p)
  next = sub(w, x)
  w <- next
  one = full(value=1, shape=[], dtype=i32)
  count = add(seen, one)
  seen <- count
  return loss, count
}
"""
X = {"x": np.array([0.5, -1.0, 2.0], np.float32)}


class Far(CpuDevice):
    """Its memory is not the host's: reading copies."""

    in_host_memory = False

    def __init__(self, number: int):
        super().__init__(1)
        self.name = f"far:{number}" if number else "far"
        self.title = f"Far {number}"

    def read(self, memory, offset, t):
        return super().read(memory, offset, t).copy()


@pytest.fixture
def far(monkeypatch):
    """The name of a device that this test registers."""
    kind = Kind("far", lambda number, setup: Far(number), "far is far away", gpu=True)
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, kind])
    return "far:2"


def outcome(device: str, **more):
    program = opstep.loads(TRAINED)
    found = program.run("main", X, device=device, steps=3, **more)
    arrays = {n: np.asarray(program.params[n]) for n in ("w", "seen")}
    return [a.tobytes() for a in (*found.outputs, *arrays.values())]


def test_names():
    assert [canonical(n) for n in ("cpu", "cuda", "cuda:0", "cuda:1", "null")] == [
        "cpu", "cuda", "cuda", "cuda:1", "null",
    ]  # fmt: skip
    assert device_names("N") == ["cpu", "cuda", "cuda:N", "null"]
    assert [kind_of(n).gpu for n in device_names()] == [False, True, True, False]
    assert [kind_of(n).computes for n in device_names()] == [True, True, True, False]


@pytest.mark.parametrize(
    "name", ["", "gpu", "cpu:1", "null:0", "cuda:", "cuda:12345", "cuda:-1", "cuda\n", "cuda:1 "]
)
def test_names_of_nothing(name):
    with pytest.raises(InputError, match="there is no device") as caught:
        canonical(name)
    assert caught.value.diagnostics[0].hint == "there are: cpu, cuda, cuda:1, null"


@pytest.mark.parametrize("name", ["cpu", "null"])
def test_a_device_knows_its_name(name):
    assert device_named(name).name == name


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_a_device_that_is_registered_runs(far, mode):
    assert outcome(far, mode=mode) == outcome("cpu", mode=mode)


def test_its_named_tensors_are_current_between_steps(far):
    program, seen = opstep.loads(TRAINED), []
    program.run(
        "main", X, device=far, steps=3, on_step=lambda: seen.append(program.params["seen"].item())
    )
    assert seen == [1, 2, 3]


def test_it_is_recorded(far, tmp_path):
    path = tmp_path / "runs.db"
    with opstep.Recording(workspace=path) as recording:
        outcome(far, recording=recording)
    with opstep.Workspace(path) as workspace:
        assert workspace.runs[0].device == far


def test_it_is_hunted_and_debugged(far):
    assert hunt(opstep.loads(TRAINED), "main", X, steps=2, device=far).findings == []
    debugger = opstep.Debugger(opstep.loads(TRAINED), "main", X, device=far, stop_on_entry=True)
    assert debugger.machine.executor.device.name == far


def test_messages_name_it(far):
    with pytest.raises(InputError) as caught:
        canonical("near")
    assert "far, far:1" in caught.value.diagnostics[0].hint
