"""Records a bound plan where it runs: native clocks and statistics between its launches.

A stream's figures go to memory of the tape, are overwritten when the plan runs again, and so are
copied by a last piece of work on the same stream (`finish`). What the host knows about order, it
knows when the plan is bound (`Layout`); while the plan runs only clocks are read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.device.details import Details
from opstep.runtime.ir.types import TensorType, i64
from opstep.runtime.plan.plan import Run, Step
from opstep.runtime.plan.plan import Wait as Await
from opstep.runtime.recording import (
    Activation,
    HostRecord,
    Launch,
    Layout,
    Recorder,
    StreamRecord,
    Wait,
)
from opstep.runtime.statistics import ENABLED, RECORD, WORDS, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding


class _Track:
    """Memory for what one stream records."""

    def __init__(self, device: Any, ops: int, waits: int, taken: int, stats: int, words: int):
        self.memory = device.alloc((ops + taken) * 16 + stats * RECORD.nbytes + words * 8)
        self.times = device.view(self.memory, 0, TensorType(i64, (ops, 2)))
        self.taken = device.view(self.memory, ops * 16, TensorType(i64, (taken, 2)))
        at = (ops + taken) * 16
        self.stats = device.view(self.memory, at, TensorType(i64, (stats, WORDS)))
        at += self.stats.nbytes
        self.details = device.view(self.memory, at, TensorType(i64, (words,)))
        self.detailed = self.memory.address + at  # where those of the next tensor go
        self.waits = np.zeros((waits, 2), np.int64)
        self.times[...] = 0
        self.workspace: Any = None  # of the statistics kernels
        self.used = bool(ops or waits or stats)

    def record(self, activation: Activation, stream: int, with_stats: bool) -> StreamRecord:
        """Copies of times, waits and, if wanted, statistics."""
        times, waits = _kept(self.times), _kept(self.waits)
        if not with_stats:
            return StreamRecord(activation, stream, times, waits, None)
        stats, taken, details = _kept(self.stats), _kept(self.taken), None
        if len(self.details):
            details = self.details.copy()
        return StreamRecord(activation, stream, times, waits, stats, None, taken, details)


class Tape:
    """What a binding is recorded with, for as long as it lives. `recorder` may change between runs.

    The binding's coder asks it, in order of issue, for the launches around an op (`around`), and
    for callables that hand work over (`launch`), wait (`wait`) and synchronise (`sync`).
    """

    def __init__(self, binding: Binding, recorder: Recorder):
        self.binding = binding
        self.device = binding.device
        self.recorder = recorder
        self.activation: Activation | None = None
        plan = binding.plan
        self.wanted: dict[int, list[int]] = {}
        for step, value in recorder.wanted(plan):
            self.wanted.setdefault(step, []).append(value)
        streams = range(max(plan.streams, 1))
        self.layout = Layout(plan, [[] for _ in streams], [[] for _ in streams])
        self._with_stats = False  # in the step under way
        self._cell = self.device.alloc(ENABLED.nbytes)  # where the kernels look for that
        self._enabled = self.device.view(self._cell, 0, ENABLED)
        self._enabled[...] = False
        self._groups = [0] * len(streams)  # steps whose statistics are taken, so far
        self._launched = [0] * len(streams)  # rows already handed over
        self._recorded: dict[int, tuple[int, int]] = {}  # event -> stream, row before it
        self._details = Details(self.device, recorder)
        self._tracks = self._allocate()
        self._launch_times = np.zeros((0, 2), np.int64)
        self._launched_at: Any = ()
        self._sync_times = np.zeros((0, 2), np.int64)
        self._call_times = np.zeros((0, 2), np.int64)
        self._fence = slice(0)

    # --- while the plan is bound ---

    def _allocate(self) -> list[_Track]:
        """A track for each stream, with working memory that its statistics share."""
        plan = self.binding.plan
        streams = len(self.layout.rows)
        ops, waits, taken, stats, words, most = ([0] * streams for _ in range(6))
        for instruction in plan.instructions:
            if isinstance(instruction, Run):
                step, stream = instruction
                ops[stream] += bool(plan.steps[step].launches)
                taken[stream] += step in self.wanted
                for value in self.wanted.get(step, ()):
                    stats[stream] += 1
                    t, needed = plan.values[value].type, self._prepared(value)[1]
                    words[stream] += self._details.nbytes(t) // 8
                    most[stream] = max(most[stream], needed, self._details.workspace(t))
            elif isinstance(instruction, Await):
                waits[instruction.stream] += 1
        counts = zip(ops, waits, taken, stats, words, strict=True)
        tracks = [_Track(self.device, *n) for n in counts]
        for track, nbytes in zip(tracks, most, strict=True):
            track.workspace = self.device.alloc(nbytes)
        return tracks

    def _prepared(self, value: int) -> tuple[Any, int]:
        plan = self.binding.plan
        return self.device.prepare(*step_for(plan.values[value].type, plan.policy.fill == "nan"))

    def around(self, number: int, step: Step, stream: int, bound: Any) -> list[Any]:
        """The step's launches between two readings of the clock, then those of its statistics."""
        track, rows = self._tracks[stream], self.layout.rows[stream]
        made: list[Any] = []
        if bound:
            place = track.memory.address + 16 * len(rows)
            made = [self.device.stamp(place), *bound, self.device.stamp(place + 8)]
            rows.append(number)
        if number in self.wanted:
            place = track.memory.address + track.times.nbytes + 16 * self._groups[stream]
            self._groups[stream] += 1
            taking = self._statistics(number, stream)
            made += [self.device.stamp(place), *taking, self.device.stamp(place + 8)]
        return made

    def _statistics(self, number: int, stream: int) -> list[Any]:
        track, taken, made = self._tracks[stream], self.layout.stats[stream], []
        before = track.times.nbytes + track.taken.nbytes
        for value in self.wanted[number]:
            source = self.binding.place(value).address
            target = track.memory.address + before + RECORD.nbytes * len(taken)
            launches, _ = self._prepared(value)
            addresses = [source, self._cell.address, target]
            made += self.device.bind(launches, addresses, track.workspace.address)
            t, addresses[2] = self.binding.plan.values[value].type, track.detailed
            made += self._details.bound(t, addresses, track.workspace.address)
            track.detailed += self._details.nbytes(t)
            taken.append((number, value))
        return made

    def launch(self, stream: int, launches: list[Any]) -> Callable[[], None]:
        """Hands over what the rows since the last launch on that stream are."""
        work = self.device.capture(launches)
        lo, hi = self._launched[stream], len(self.layout.rows[stream])
        self._launched[stream] = hi
        index = len(self.layout.launches)
        self.layout.launches.append(Launch(stream, lo, hi))
        return partial(self._launch, index, self.binding.streams[stream].submit, work)

    def move(self, stream: int, work: Any) -> Callable[[], None]:
        """Hands over a copy or a fill."""
        return partial(self.binding.streams[stream].submit, work)

    def record(self, event: int, stream: int) -> None:
        """Notes what an event comes after."""
        self._recorded[event] = (stream, len(self.layout.rows[stream]) - 1)

    def wait(self, event: int, stream: int) -> Callable[[], None]:
        source, row = self._recorded[event]
        index = sum(w.stream == stream for w in self.layout.waits)
        self.layout.waits.append(Wait(stream, len(self.layout.rows[stream]), source, row))
        times = self._tracks[stream].waits
        work = partial(_timed, times, index, self.binding.events[event].wait)
        return partial(self.binding.streams[stream].submit, work)

    def sync(self, stream: int, synchronize: Callable[[], None]) -> Callable[[], None]:
        index = len(self.layout.syncs)
        self.layout.syncs.append(stream)
        return lambda: _timed(self._sync_times, index, synchronize)

    def fence(self) -> None:
        """Here the host waits for all streams, before it issues what is left."""
        first = len(self.layout.syncs)
        self.layout.syncs += range(len(self.layout.rows))
        self._fence = slice(first, len(self.layout.syncs))

    def fenced(self, began: int) -> None:
        self._sync_times[self._fence] = began, monotonic_ns()

    def call(self, number: int) -> int:
        """An index for the times of a step of control flow."""
        self.layout.calls.append(number)
        return len(self.layout.calls) - 1

    def bound(self) -> None:
        """All of the plan was bound."""
        self._launch_times = np.zeros((len(self.layout.launches), 2), np.int64)
        self._launched_at = self._launch_times.reshape(-1).data  # quicker to set
        self._sync_times = np.zeros((len(self.layout.syncs), 2), np.int64)
        self._call_times = np.zeros((len(self.layout.calls), 2), np.int64)

    # --- while it runs ---

    def begin(self, recorder: Recorder, step: int, with_stats: bool) -> None:
        """Before the plan's first instruction."""
        parent, caller, call = self.binding.parent, None, -1
        if parent is not None:
            assert parent.binding.tape is not None  # who is recorded calls who is recorded
            caller, call = parent.binding.tape.activation, parent.number
        self.recorder = recorder
        self.activation = Activation(
            recorder.next_number(), step, self.layout, caller, call, self.binding.iteration
        )
        if with_stats != self._with_stats:  # no stream is busy, or the value stays as it is
            self._enabled[...] = self._with_stats = with_stats

    def called(self, index: int, began: int) -> None:
        self._call_times[index] = began, monotonic_ns()

    def finish(self) -> None:
        """After its last instruction was issued: the figures are copied when they stand."""
        activation, with_stats, take = self.activation, self._with_stats, self.recorder.take
        assert activation is not None
        for stream, track in enumerate(self._tracks):
            if track.used:
                work = partial(_take, take, activation, stream, track, with_stats)
                self.binding.streams[stream].submit(work)
        host = (_kept(self._launch_times), _kept(self._sync_times), _kept(self._call_times))
        take(HostRecord(activation, *host))

    def _launch(self, index: int, submit: Callable[[Any], None], work: Any) -> None:
        times = self._launched_at
        times[2 * index] = monotonic_ns()
        submit(work)
        times[2 * index + 1] = monotonic_ns()


def _take(
    take: Callable[[StreamRecord], None],
    activation: Activation,
    stream: int,
    track: _Track,
    with_stats: bool,
) -> None:
    take(track.record(activation, stream, with_stats))


def _kept(figures: np.ndarray) -> np.ndarray:
    """A copy, where there is anything to copy."""
    return figures.copy() if len(figures) else figures


def _timed(times: np.ndarray, index: int, work: Callable[[], Any]) -> None:
    began = monotonic_ns()
    work()
    times[index] = began, monotonic_ns()
