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
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.device.tape import Tape, timed
from opstep.runtime.ir.types import TensorType, i64
from opstep.runtime.plan.plan import Run, Step
from opstep.runtime.plan.plan import Wait as Await
from opstep.runtime.recording import Activation, HostRecord, StreamRecord, Taken
from opstep.runtime.statistics import ENABLED, RECORD, WORDS, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cpu.device import CpuDevice


class _Track:
    """Memory for what one stream records."""

    def __init__(self, device: CpuDevice, ops: int, waits: int, spans: int, stats: int, words: int):
        self.memory = device.alloc((ops + spans) * 16 + stats * RECORD.nbytes + words * 8)
        self.times = device.view(self.memory, 0, TensorType(i64, (ops, 2)))
        self.spans = device.view(self.memory, ops * 16, TensorType(i64, (spans, 2)))
        at = (ops + spans) * 16
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
        times, waits = _snapshot(self.times), _snapshot(self.waits)
        if not with_stats:
            return StreamRecord(activation, stream, times, waits, None)
        stats, spans, details = _snapshot(self.stats), _snapshot(self.spans), None
        if len(self.details):
            details = self.details.copy()
        return StreamRecord(activation, stream, times, waits, stats, None, spans, details)


class CpuTape(Tape):
    """Of a CPU's binding."""

    def __init__(self, device: CpuDevice, binding: Binding, recorder: Recorder):
        super().__init__(binding, recorder)
        self.device = device
        self._cell = device.alloc(ENABLED.nbytes)  # where the kernels look whether they are wanted
        self._enabled = device.view(self._cell, 0, ENABLED)
        self._enabled[...] = False
        self._groups = [0] * len(self.layout.rows)  # steps whose statistics are taken, so far
        self._details = Details(device, recorder)
        self._tracks = self._allocate()
        self._launch_times = np.zeros((0, 2), np.int64)
        self._launched_at: Any = ()

    # --- while the plan is bound ---

    def _allocate(self) -> list[_Track]:
        """A track for each stream, with working memory that its statistics share."""
        plan = self.binding.plan
        streams = len(self.layout.rows)
        ops, waits, spans, stats, words, most = ([0] * streams for _ in range(6))
        for instruction in plan.instructions:
            if isinstance(instruction, Run):
                step, stream = instruction
                ops[stream] += bool(plan.steps[step].launches)
                spans[stream] += step in self.recorded
                for value in self.recorded.get(step, ()):
                    stats[stream] += 1
                    t, needed = plan.values[value].type, self._prepared(value)[1]
                    words[stream] += self._details.nbytes(t) // 8
                    most[stream] = max(most[stream], needed, self._details.workspace(t))
            elif isinstance(instruction, Await):
                waits[instruction.stream] += 1
        counts = zip(ops, waits, spans, stats, words, strict=True)
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
        launches: list[Any] = []
        if bound:
            address = track.memory.address + 16 * len(rows)
            launches = [self.device.stamp(address), *bound, self.device.stamp(address + 8)]
            rows.append(number)
        if number in self.recorded:
            address = track.memory.address + track.times.nbytes + 16 * self._groups[stream]
            self._groups[stream] += 1
            taking = self._statistics(number, stream)
            launches += [self.device.stamp(address), *taking, self.device.stamp(address + 8)]
        return launches

    def _statistics(self, number: int, stream: int) -> list[Any]:
        track, recorded, made = self._tracks[stream], self.layout.stats[stream], []
        before = track.times.nbytes + track.spans.nbytes
        for value in self.recorded[number]:
            source = self.binding.address_of(value).address
            target = track.memory.address + before + RECORD.nbytes * len(recorded)
            launches, _ = self._prepared(value)
            addresses = [source, self._cell.address, target]
            taking = self.device.bind(launches, addresses, track.workspace.address)
            t, addresses[2] = self.binding.plan.values[value].type, track.detailed
            taking += self._details.bound(t, addresses, track.workspace.address)
            self.binding.lookers.append(([value], taking))
            made += taking
            track.detailed += self._details.nbytes(t)
            recorded.append((number, value))
        return made

    def launch(self, stream: int, launches: list[Any]) -> Callable[[], None]:
        work = self.device.capture(launches)
        index = len(self.layout.launches)
        self.layout.launches.append(self._rows_launched(stream))
        return partial(self._launch, index, self.binding.streams[stream].submit, work)

    def fill(self, stream: int, work: Any, nbytes: int) -> Callable[[], None]:
        return partial(self.binding.streams[stream].submit, work)

    def copy(self, stream: int, work: Any, nbytes: int) -> None:
        self.binding.streams[stream].submit(work)

    def wait(self, event: int, stream: int) -> Callable[[], None]:
        index = sum(w.stream == stream for w in self.layout.waits)
        super().wait(event, stream)
        times = self._tracks[stream].waits
        work = partial(timed, times, index, self.binding.events[event].wait)
        return partial(self.binding.streams[stream].submit, work)

    def bound(self) -> None:
        self._launch_times = np.zeros((len(self.layout.launches), 2), np.int64)
        self._launched_at = self._launch_times.reshape(-1).data  # quicker to set
        self._sync_times = np.zeros((len(self.layout.syncs), 2), np.int64)
        self._call_times = np.zeros((len(self.layout.calls), 2), np.int64)

    # --- while it runs ---

    def begin(self, recorder: Recorder, step: int, taken: Taken) -> None:
        self._activate(recorder, step, self.layout)
        if taken != self.taken:  # no stream is busy, or the value stays as it is
            self.taken = taken
            self._enabled[...] = taken == Taken.STATISTICS

    def finish(self) -> None:
        """The figures are copied when they stand."""
        if self.taken == Taken.NOTHING:
            return
        activation, deliver = self.activation, self.recorder.add_record
        with_stats = self.taken == Taken.STATISTICS
        assert activation is not None
        for stream, track in enumerate(self._tracks):
            if track.used:
                work = partial(_hand_over, deliver, activation, stream, track, with_stats)
                self.binding.streams[stream].submit(work)
        host = (
            _snapshot(self._launch_times),
            _snapshot(self._sync_times),
            _snapshot(self._call_times),
        )
        deliver(HostRecord(activation, *host))

    def _launch(self, index: int, submit: Callable[[Any], None], work: Any) -> None:
        times = self._launched_at
        times[2 * index] = monotonic_ns()
        submit(work)
        times[2 * index + 1] = monotonic_ns()


def _hand_over(
    deliver: Callable[[StreamRecord], None],
    activation: Activation,
    stream: int,
    track: _Track,
    with_stats: bool,
) -> None:
    deliver(track.record(activation, stream, with_stats))


def _snapshot(figures: np.ndarray) -> np.ndarray:
    """A copy, where there is anything to copy."""
    return figures.copy() if len(figures) else figures
