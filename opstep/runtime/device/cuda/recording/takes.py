"""What recorded runs have launched and not yet told, and how it becomes records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np

from opstep.runtime.device.cuda.recording.records import (
    Nodes,
    Rows,
    between,
    issued,
    settled,
    waits,
)
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.recording import Activation, HostRecord, StreamRecord
from opstep.runtime.statistics import WORDS

PERIOD = 15_000_000  # ns


class Take:
    """One activation: what the host did, and marks of what it launched."""

    def __init__(self, activation: Activation):
        layout = activation.layout
        self.activation = activation
        self.began = monotonic_ns()
        self.launches = np.zeros((len(layout.launches), 2), np.int64)
        self.syncs = np.zeros((len(layout.syncs), 2), np.int64)
        self.calls = np.zeros((len(layout.calls), 2), np.int64)
        self.with_stats = False
        self.stats: dict[int, np.ndarray] = {}  # by stream: slots, where they are copied to
        self.beyond: dict[int, int] = {}  # likewise: words behind the statistics
        self.marks: list[Any] = []  # of the meter


class Meter(Protocol):
    """How the times of kernels are taken."""

    captures: bool  # whether stretches may be replayed as graphs
    note: str  # for people; "" where all is as it should be

    def around(self, row: int, bound: Sequence[Any]) -> list[tuple[int, Any]]:
        """The launches of a row, each with its row."""
        ...

    def issue(self, take: Take, piece: Any, stream: int) -> None: ...
    def replay(self, take: Take, nodes: Nodes, launch: Callable[[], None]) -> None: ...

    def ready(self, takes: Sequence[Take]) -> int:
        """How many of them, from the first, were reported in full without being asked for."""
        ...

    def gather(self, takes: Sequence[Take]) -> None:
        """Fetches what was reported of them; all that they launched is done."""
        ...

    def read(self, take: Take) -> Rows:
        """The times of the rows of one that was gathered. Once."""
        ...

    def begin(self, user: int) -> None: ...
    def end(self, user: int) -> None: ...


class _Run:
    """What a run has launched and not yet told, oldest first."""

    def __init__(self) -> None:
        self.takes: list[Take] = []
        self.done = 0  # how many of them are of steps that have ended
        self.gathered = 0  # how many of them can be told
        self.lock = threading.RLock()


class Takes:
    """Of one GPU. Runs are told apart by their recorders.

    To ask for reports takes time in which the GPU does nothing, and to make records of them takes
    some more. So they are asked for only where they do not come by themselves within `PERIOD`, and
    records are made while the next step is under way, if the recorder lets them be late.
    """

    def __init__(self, meter: Meter, slots: Slots):
        self.meter = meter
        self.slots = slots
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()

    def begin(self, recorder: Recorder) -> None:
        self.meter.begin(id(recorder))

    def end(self, recorder: Recorder) -> None:
        """It records no more for now; no stream of its run is busy."""
        try:
            self.step_done(recorder, now=True)
        finally:
            with self._lock:
                self._runs.pop(id(recorder), None)
            self.meter.end(id(recorder))

    def add(self, recorder: Recorder, take: Take) -> None:
        with self._lock:
            run = self._runs.setdefault(id(recorder), _Run())
        with run.lock:
            run.takes.append(take)

    def step_done(self, recorder: Recorder, now: bool = False) -> None:
        """A step has ended, and no stream of the run is busy. `now`: what is known is told."""
        run = self._runs.get(id(recorder))
        if run is None:
            return
        with run.lock:
            run.done = len(run.takes)
            if now or not recorder.may_defer(partial(self._tell_all, run, recorder)):
                self._tell_all(run, recorder)
                return
            run.gathered += self.meter.ready(run.takes[run.gathered : run.done])
            oldest = run.takes[run.gathered : run.gathered + 1]
            if oldest and monotonic_ns() - oldest[0].began > PERIOD:
                self._gather(run)

    def meanwhile(self, recorder: Recorder) -> None:
        """The GPU has something to do: what was gathered is told."""
        run = self._runs.get(id(recorder))
        if run is not None and run.gathered:
            with run.lock:
                self._tell(run, recorder)

    def _tell_all(self, run: _Run, recorder: Recorder) -> None:
        """What is known of all steps that have ended."""
        with run.lock:
            self._gather(run)
            self._tell(run, recorder)

    def _gather(self, run: _Run) -> None:
        if run.done > run.gathered:
            self.meter.gather(run.takes[run.gathered : run.done])
            run.gathered = run.done

    def _tell(self, run: _Run, recorder: Recorder) -> None:
        takes = run.takes[: run.gathered]
        del run.takes[: run.gathered]
        run.done -= len(takes)
        run.gathered = 0
        for take in takes:
            rows = self.meter.read(take)
            if rows.missing:
                recorder.times_missing(rows.missing)
            layout = take.activation.layout
            for place, kernels in rows.kernels.items():
                layout.kernels.setdefault(place, tuple(kernels))
            recorder.add_record(HostRecord(take.activation, take.launches, take.syncs, take.calls))
            for record in _records(take, rows, self.slots):
                recorder.add_record(record)
        if takes:
            recorder.caught_up(takes[-1].activation.step)


def _records(take: Take, rows: Rows, slots: Slots) -> list[StreamRecord]:
    layout, found = take.activation.layout, []
    began = issued(layout, take.launches)
    times = [settled(t, b) for t, b in zip(rows.times, began, strict=True)]
    for stream, own in enumerate(times):
        stood = waits(layout, stream, times, began)
        taken, stats, details = layout.stats[stream], None, None
        if take.with_stats:
            stats = np.zeros((len(taken), WORDS), np.int64)
            if taken:
                words = take.stats[stream]
                stats[...] = words[: stats.size].reshape(stats.shape)
                if beyond := take.beyond.get(stream):
                    details = words[stats.size :][:beyond].copy()
                slots.give_back(words)
        moves = between(rows.moves[stream], own)
        if len(own) or len(stood) or taken or len(moves):
            record = StreamRecord(take.activation, stream, own, stood, stats, moves)
            found.append(record._replace(details=details))
    return found


class Slots:
    """Pinned memory for what is copied from the GPU, in sizes of powers of two. `make`: gives so
    many i64 words, for as long as the process lives.
    """

    def __init__(self, make: Callable[[int], np.ndarray]):
        self._make = make
        self._free: dict[int, list[np.ndarray]] = {}
        self._lock = threading.Lock()

    def get(self, nbytes: int) -> np.ndarray:
        """At least so many bytes."""
        words = 1 << max(nbytes // 8 - 1, 0).bit_length()
        with self._lock:
            free = self._free.get(words)
            if free:
                return free.pop()
        return self._make(words)

    def give_back(self, slot: np.ndarray) -> None:
        with self._lock:
            self._free.setdefault(len(slot), []).append(slot)
