"""The protocol of a device: memory, streams, events, launches. One file a device implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Step


class Memory(Protocol):
    """Bytes on a device, freed when nothing refers to them."""

    address: int
    nbytes: int


@runtime_checkable
class Event(Protocol):
    """A point in a stream. `done()` polls; `wait()` blocks the host; `on_done` calls back, from any
    thread.
    """

    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def on_done(self, callback: Callable[[], Any]) -> None: ...


class Stream(Protocol):
    """Work in order. `submit` queues it and returns; `synchronize` blocks the host until all is
    done.
    """

    def submit(self, work: Callable[[], None]) -> None: ...
    def record(self, event: Event) -> None: ...
    def wait(self, event: Event) -> None: ...
    def start(self) -> None: ...
    def synchronize(self) -> None: ...


class Device(Protocol):
    """See `cpu` for the meaning of each in the plainest case."""

    name: str

    def prepare(self, step: Step, types: tuple[TensorType | None, ...]) -> tuple[Any, int]: ...
    def alloc(self, nbytes: int) -> Memory: ...
    def view(self, memory: Memory, offset: int, t: TensorType) -> np.ndarray: ...
    def fill(
        self, memory: Memory, offset: int, nbytes: int, dtype: DType
    ) -> Callable[[], None]: ...
    def copy(self, source: int, target: int, nbytes: int) -> Callable[[], None]: ...
    def bind(self, launches: Any, addresses: list[int], workspace: int) -> Any: ...
    def stamp(self, address: int) -> Any: ...
    def capture(self, bound: list[Any]) -> Callable[[], None]: ...
    def stream(self) -> Stream: ...
    def event(self) -> Event: ...
