"""The recording of a binding: the launches and callables around its ops that read clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.protocols import Recorder
from opstep.runtime.plan.plan import Step
from opstep.runtime.recording import Activation, Launch, Layout, Taken, Wait

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding


class Tape(ABC):
    """The binding's coder asks it, in order of issue, for the launches around an op (`around`), and
    for callables that hand work over (`launch`, `fill`), wait (`wait`) and synchronise (`sync`).
    The interpreter says when a run begins (`begin`), what the host did (`called`, `fenced`), and
    when all was issued (`finish`). `recorder` may change between runs.

    `layout` says what the rows of records are. A device adds how they are filled.
    """

    def __init__(self, binding: Binding, recorder: Recorder):
        self.binding = binding
        self.recorder = recorder
        self.activation: Activation | None = None
        plan = binding.plan
        self.recorded: dict[int, list[int]] = {}  # step -> values whose statistics are taken
        for step, value in recorder.values_to_record(plan):
            self.recorded.setdefault(step, []).append(value)
        streams = range(max(plan.streams, 1))
        self.layout = Layout(plan, [[] for _ in streams], [[] for _ in streams])
        self.taken = Taken.TIMES  # in the step under way
        self._launched = [0] * len(streams)  # rows already handed over
        self._recorded: dict[int, tuple[int, int]] = {}  # event -> stream, row before it
        self._fence = slice(0)
        # of the host, in the activation under way: begin and end of `layout.syncs`, `layout.calls`
        self._sync_times = np.zeros((0, 2), np.int64)
        self._call_times = np.zeros((0, 2), np.int64)

    # --- while the plan is bound ---

    @abstractmethod
    def around(self, number: int, step: Step, stream: int, bound: Any) -> list[Any]:
        """The launches of the plan's step `number`, which may be none, with those that record it:
        for `launch`.
        """

    def unrecorded(self, launches: list[Any]) -> list[Any]:
        """For `launch`, what looks at values at the end: of no op, and not recorded."""
        return launches

    @abstractmethod
    def launch(self, stream: int, launches: list[Any]) -> Callable[[], None]:
        """Hands over what the rows since the last launch on that stream are."""

    @abstractmethod
    def fill(self, stream: int, work: Any, nbytes: int) -> Callable[[], None]:
        """Hands over what fills so many bytes."""

    def _rows_launched(self, stream: int) -> Launch:
        """Those since the last launch on that stream."""
        lo, hi = self._launched[stream], len(self.layout.rows[stream])
        self._launched[stream] = hi
        return Launch(stream, lo, hi)

    def record(self, event: int, stream: int) -> None:
        """Notes what an event comes after."""
        self._recorded[event] = (stream, len(self.layout.rows[stream]) - 1)

    def wait(self, event: int, stream: int) -> Callable[[], None]:
        source, row = self._recorded[event]
        self.layout.waits.append(Wait(stream, len(self.layout.rows[stream]), source, row))
        return partial(self.binding.streams[stream].wait, self.binding.events[event])

    def sync(self, stream: int, synchronize: Callable[[], None]) -> Callable[[], None]:
        index = len(self.layout.syncs)
        self.layout.syncs.append(stream)
        return lambda: timed(self._sync_times, index, synchronize)

    def fence(self) -> None:
        """Here the host waits for all streams, before it issues what is left."""
        first = len(self.layout.syncs)
        self.layout.syncs += range(len(self.layout.rows))
        self._fence = slice(first, len(self.layout.syncs))

    def call(self, number: int) -> int:
        """An index for the times of a step of control flow."""
        self.layout.calls.append(number)
        return len(self.layout.calls) - 1

    @abstractmethod
    def bound(self) -> None:
        """All of the plan was bound."""

    # --- while it runs ---

    @abstractmethod
    def begin(self, recorder: Recorder, step: int, taken: Taken) -> None:
        """Before the plan's first instruction."""

    def _activate(self, recorder: Recorder, step: int, layout: Layout) -> Activation:
        parent, caller, call = self.binding.parent, None, -1
        if parent is not None:
            assert parent.binding.tape is not None  # who is recorded calls who is recorded
            caller, call = parent.binding.tape.activation, parent.number
        self.recorder = recorder
        self.activation = Activation(
            recorder.next_number(), step, layout, caller, call, self.binding.iteration
        )
        return self.activation

    def called(self, index: int, began: int) -> None:
        self._call_times[index] = began, monotonic_ns()

    def fenced(self, began: int) -> None:
        self._sync_times[self._fence] = began, monotonic_ns()

    @abstractmethod
    def copy(self, stream: int, work: Any, nbytes: int) -> None:
        """Hands over what copies so many bytes, for control flow."""

    @abstractmethod
    def finish(self) -> None:
        """After its last instruction was issued."""


def timed(times: np.ndarray, index: int, work: Callable[[], Any]) -> None:
    """Does the work; ``times[index]`` is when it began and ended."""
    began = monotonic_ns()
    work()
    times[index] = began, monotonic_ns()
