"""A device that PyTorch's tensors of the host are on, and that is behind: what it is told to do is
done, and nobody can tell before it is waited for, or `reached`.
"""

from __future__ import annotations

from functools import partial

from opstep.api import devices
from opstep.api.devices import Kind
from opstep.frontends.torch import calling
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.cpu.streams import CpuEvent, CpuStream


class LateEvent(CpuEvent):
    def __init__(self, device: LateDevice):
        super().__init__()
        self.device = device
        self.seen = False

    def done(self) -> bool:
        return super().done() and (self.seen or self.device.reached)

    def wait(self) -> None:
        self.device.waits += 1
        self.seen = True


class LateStream(CpuStream):
    def record(self, event: LateEvent) -> None:
        self.synchronize()
        event.set()

    def wait(self, event: LateEvent) -> None:
        self.submit(partial(CpuEvent.wait, event))


class ForeignStream(LateStream):
    """PyTorch's."""

    def wait(self, event: LateEvent) -> None:
        """All is done."""


class LateDevice(CpuDevice):
    in_host_memory = False
    gathers = True

    def __init__(self):
        super().__init__(1)
        self.name = "late"
        self.reached = False
        self.waits = 0  # of the host for events

    def read(self, memory, offset, t):
        return super().read(memory, offset, t).copy()

    def stream(self) -> LateStream:
        return LateStream()

    def foreign_stream(self, handle: int) -> ForeignStream:
        return ForeignStream()

    def event(self) -> LateEvent:
        return LateEvent(self)


device = LateDevice()
KIND = Kind("late", lambda number, setup: device, "late is not there", gpu=True)


def use(monkeypatch) -> LateDevice:
    """Compiled models run there."""
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, KIND])
    monkeypatch.setattr(calling, "_name", lambda device: "late")
    monkeypatch.setattr(calling, "_streams_of", lambda device: lambda: 9)
    device.reached, device.waits = False, 0
    return device
