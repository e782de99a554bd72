"""A device that executes nothing: for planning, tests, and measuring the interpreter's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.device.protocols import Bytes, Device, Event, Recorder, Stream, Types
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Step


class NullMemory:
    address = 0

    def __init__(self, nbytes: int):
        self.nbytes = nbytes


def _nothing(*_) -> None:
    """Every command of this device."""


class NullEvent(Event):
    def reset(self) -> None:
        """There is nothing to reach."""

    set = wait = reset

    def done(self) -> bool:
        return True

    def on_done(self, callback: Callable[[], Any]) -> None:
        callback()


class NullStream(Stream):
    submit = record = wait = _nothing

    def start(self) -> None:
        """There is nothing to do."""

    synchronize = drop = abandon = start

    def done(self) -> bool:
        return True


class NullDevice(Device):
    """Values read from it are zeros; memory takes no room."""

    name = "null"
    in_host_memory = True
    captures = False

    def prepare(self, step: Step, types: Types) -> tuple[tuple[()], int]:
        return (), 0  # not a list: an empty one says that the op has nothing to run

    def alloc(self, nbytes: Bytes, what: str = "") -> NullMemory:
        return NullMemory(nbytes)

    def read(self, memory: NullMemory, offset: int, t: TensorType) -> np.ndarray:
        shape: Any = t.shape  # concrete here
        return np.zeros(shape, t.dtype.numpy)

    def write(self, memory: NullMemory, offset: int, t: TensorType, array: Any) -> None:
        """Memory that takes no room holds nothing."""

    def seek_payload(
        self, memory: NullMemory, offset: int, t: TensorType, words: np.ndarray
    ) -> Any:
        return _nothing

    def words(self, count: int) -> np.ndarray:
        return np.zeros(count, np.int64)

    def fill(self, memory: NullMemory, offset: int, nbytes: Bytes, dtype: DType) -> Any:
        return _nothing

    def copy(self, source: int, target: int, nbytes: Bytes) -> Any:
        return _nothing

    def bind(self, launches: Any, addresses: list[int], workspace: int) -> list[Any]:
        return [_nothing]

    def pointers(self, bound: list[Any], slot: int) -> tuple[()]:
        return ()

    def capture(self, bound: list[Any]) -> Any:
        return _nothing

    def run_now(self, bound: list[Any]) -> None:
        """Nothing to launch."""

    def work_now(self, work: list[Any]) -> None:
        """Nothing to do."""

    def delay(self, seconds: float) -> Any:
        return _nothing

    def stream(self) -> NullStream:
        return NullStream()

    def event(self) -> NullEvent:
        return NullEvent()

    def tape(self, binding: Any, recorder: Recorder) -> None:
        """Nothing happens that could be recorded."""
