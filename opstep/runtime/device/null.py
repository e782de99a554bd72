"""A device that executes nothing: for planning, tests, and measuring the interpreter's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Step


class NullMemory:
    address = 0

    def __init__(self, nbytes: int):
        self.nbytes = nbytes


def _nothing(*_) -> None:
    """Every command of this device."""


class NullEvent:
    reset = set = wait = _nothing

    def done(self) -> bool:
        return True

    def on_done(self, callback: Callable[[], Any]) -> None:
        callback()


class NullStream:
    submit = record = wait = start = synchronize = drop = abandon = _nothing


class NullDevice:
    """Values read from it are zeros; memory takes no room."""

    name = "null"
    captures = False

    def prepare(self, step: Step, types: tuple[TensorType | None, ...]) -> tuple[Any, int]:
        return (), 0

    def alloc(self, nbytes: int, what: str = "") -> NullMemory:
        return NullMemory(nbytes)

    def read(self, memory: NullMemory, offset: int, t: TensorType) -> np.ndarray:
        shape: Any = t.shape  # concrete here
        return np.zeros(shape, t.dtype.numpy)

    def write(self, memory: NullMemory, offset: int, t: TensorType, array: Any) -> None:
        """Memory that takes no room holds nothing."""

    def fill(self, memory: NullMemory, offset: int, nbytes: int, dtype: DType):
        return _nothing

    def holds_payload(self, memory: NullMemory, offset: int, t: TensorType) -> bool:
        return False

    def copy(self, source: int, target: int, nbytes: int) -> Callable[[], None]:
        return _nothing

    def bind(self, launches: Any, addresses: list[int], workspace: int) -> Any:
        return _nothing

    def stamp(self, address: int) -> Any:
        return _nothing

    def capture(self, bound: list[Any]) -> Callable[[], None]:
        return _nothing

    def run_now(self, bound: list[Any]) -> None:
        """Nothing to launch."""

    def stream(self) -> NullStream:
        return NullStream()

    def wait_for_op(self, stream: NullStream) -> None:
        """What ``sync=op`` waits for behind each op."""
        stream.synchronize()

    def event(self) -> NullEvent:
        return NullEvent()
