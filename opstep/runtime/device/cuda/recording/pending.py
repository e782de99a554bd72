"""Launches of recorded runs that are not reported yet, and how they become records."""

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


class PendingActivation:
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
        self.detail_words: dict[int, int] = {}  # likewise: words of details after the statistics
        self.marks: list[Any] = []  # of the meter


class Meter(Protocol):
    """How the times of kernels are taken."""

    captures: bool  # whether stretches may be replayed as graphs
    note: str  # for people; "" where all is as it should be

    def around(self, row: int, bound: Sequence[Any]) -> list[tuple[int, Any]]:
        """The launches of a row, each with its row."""
        ...

    def issue(self, pending: PendingActivation, piece: Any, stream: int) -> None: ...
    def replay(
        self, pending: PendingActivation, nodes: Nodes, launch: Callable[[], None]
    ) -> None: ...

    def ready(self, activations: Sequence[PendingActivation]) -> int:
        """How many of them, from the first, were reported in full without being asked for."""
        ...

    def gather(self, activations: Sequence[PendingActivation]) -> None:
        """Fetches what was reported of them; all that they launched is done."""
        ...

    def read(self, pending: PendingActivation) -> Rows:
        """The times of the rows of one that was gathered. Once."""
        ...

    def begin(self, user: int) -> None: ...
    def end(self, user: int) -> None: ...


class _Run:
    """What a run has launched and not yet handed to its recorder, oldest first."""

    def __init__(self) -> None:
        self.activations: list[PendingActivation] = []
        self.done = 0  # how many of them are of steps that have ended
        self.gathered = 0  # how many of them can be handed over
        self.lock = threading.RLock()


class PendingRecords:
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

    def add(self, recorder: Recorder, pending: PendingActivation) -> None:
        with self._lock:
            run = self._runs.setdefault(id(recorder), _Run())
        with run.lock:
            run.activations.append(pending)

    def step_done(self, recorder: Recorder, now: bool = False) -> None:
        """A step has ended, and no stream of the run is busy. `now`: all of it is handed over."""
        run = self._runs.get(id(recorder))
        if run is None:
            return
        with run.lock:
            run.done = len(run.activations)
            if now or not recorder.may_defer(partial(self._flush_all, run, recorder)):
                self._flush_all(run, recorder)
                return
            run.gathered += self.meter.ready(run.activations[run.gathered : run.done])
            oldest = run.activations[run.gathered : run.gathered + 1]
            if oldest and monotonic_ns() - oldest[0].began > PERIOD:
                self._gather(run)

    def meanwhile(self, recorder: Recorder) -> None:
        """The GPU has something to do: what was gathered is handed over."""
        run = self._runs.get(id(recorder))
        if run is not None and run.gathered:
            with run.lock:
                self._flush(run, recorder)

    def _flush_all(self, run: _Run, recorder: Recorder) -> None:
        """What is known of all steps that have ended."""
        with run.lock:
            self._gather(run)
            self._flush(run, recorder)

    def _gather(self, run: _Run) -> None:
        if run.done > run.gathered:
            self.meter.gather(run.activations[run.gathered : run.done])
            run.gathered = run.done

    def _flush(self, run: _Run, recorder: Recorder) -> None:
        activations = run.activations[: run.gathered]
        del run.activations[: run.gathered]
        run.done -= len(activations)
        run.gathered = 0
        for pending in activations:
            rows = self.meter.read(pending)
            if rows.missing:
                recorder.times_missing(rows.missing)
            layout = pending.activation.layout
            for row, kernels in rows.kernels.items():
                layout.kernels.setdefault(row, tuple(kernels))
            recorder.add_record(
                HostRecord(pending.activation, pending.launches, pending.syncs, pending.calls)
            )
            for record in _records(pending, rows, self.slots):
                recorder.add_record(record)
        if activations:
            recorder.caught_up(activations[-1].activation.step)


def _records(pending: PendingActivation, rows: Rows, slots: Slots) -> list[StreamRecord]:
    layout, records = pending.activation.layout, []
    began = issued(layout, pending.launches)
    times = [settled(t, b) for t, b in zip(rows.times, began, strict=True)]
    for stream, own in enumerate(times):
        waited = waits(layout, stream, times, began)
        tensors, stats, details = layout.stats[stream], None, None
        if pending.with_stats:
            stats = np.zeros((len(tensors), WORDS), np.int64)
            if tensors:
                words = pending.stats[stream]
                stats[...] = words[: stats.size].reshape(stats.shape)
                if detail_words := pending.detail_words.get(stream):
                    details = words[stats.size :][:detail_words].copy()
                slots.give_back(words)
        moves = between(rows.moves[stream], own)
        if len(own) or len(waited) or tensors or len(moves):
            record = StreamRecord(pending.activation, stream, own, waited, stats, moves)
            records.append(record._replace(details=details))
    return records


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
