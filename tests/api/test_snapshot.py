"""All named tensors at one moment, while runs go on."""

from __future__ import annotations

import numpy as np

import opstep
from opstep.api.snapshot import Snapshot
from opstep.runtime.device.store import Before
from opstep.runtime.ir.errors import DeviceError

COUNTS = """
param w: f32[3] = normal()
param absent: f32[2]
state n: i64[] = 0

graph main() -> i64[] {
  m = add(n, 1)
  n <- m
  return m
}
"""


def test_runs_change_nothing_of_a_snapshot():
    program = opstep.loads(COUNTS)
    first, second = Snapshot(program), Snapshot(program)
    assert first.take() == 20  # bytes
    program.run("main", steps=3)
    second.take()
    program.run("main")
    assert list(first) == list(second) == ["w", "n"]  # the other has no value
    assert (first.read("n"), second.read("n"), program.params["n"]) == (0, 3, 4)
    assert (first.read("w") == program.params["w"]).all()


def test_its_memory_is_used_again():
    program = opstep.loads(COUNTS)
    snapshot = Snapshot(program)
    snapshot.take()
    before = snapshot.read("n")
    program.params["absent"] = np.ones(2, np.float32)
    program.run("main")
    snapshot.take()
    assert snapshot.read("n") == 1 and np.shares_memory(before, snapshot.read("n"))
    assert list(snapshot) == ["w", "absent", "n"]


def test_a_device_without_room_for_a_copy(monkeypatch):
    """It is made on the host then."""
    program = opstep.loads(COUNTS)
    program.run("main")
    copies = Before.copies

    def full(self, names):
        if self.store is program._store("null"):
            raise DeviceError("no memory is left")
        return copies(self, names)

    monkeypatch.setattr(Before, "copies", full)
    monkeypatch.setattr(program.params, "places", lambda: {"w": "null", "n": "null"})
    snapshot = Snapshot(program)
    assert snapshot.take() == 20
    assert snapshot.read("n") == 1
    assert (snapshot.read("w") == program.params["w"]).all()
