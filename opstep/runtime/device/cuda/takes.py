"""What recorded runs have launched and not yet told, and how it becomes records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from opstep.runtime.device.cuda.records import Nodes, Rows, between, issued, settled, waits
from opstep.runtime.recording import Activation, HostRecord, Recorder, StreamRecord
from opstep.runtime.statistics import WORDS


class Take:
    """One activation: what the host did, and marks of what it launched."""

    def __init__(self, activation: Activation):
        layout = activation.layout
        self.activation = activation
        self.launches = np.zeros((len(layout.launches), 2), np.int64)
        self.syncs = np.zeros((len(layout.syncs), 2), np.int64)
        self.calls = np.zeros((len(layout.calls), 2), np.int64)
        self.with_stats = False
        self.stats: dict[int, np.ndarray] = {}  # by stream: slots, where they are copied to
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

    def read(self, takes: Sequence[Take]) -> list[Rows]:
        """The times of the rows of each, after all was done."""
        ...

    def begin(self, user: int) -> None: ...
    def end(self, user: int) -> None: ...


class Takes:
    """Of one GPU. Runs are told apart by their recorders."""

    def __init__(self, meter: Meter, slots: Slots):
        self.meter = meter
        self.slots = slots
        self._pending: dict[int, list[Take]] = {}
        self._lock = threading.Lock()

    def begin(self, recorder: Recorder) -> None:
        self.meter.begin(id(recorder))

    def end(self, recorder: Recorder) -> None:
        """It records no more for now."""
        with self._lock:
            self._pending.pop(id(recorder), None)
        self.meter.end(id(recorder))

    def add(self, recorder: Recorder, take: Take) -> None:
        with self._lock:
            self._pending.setdefault(id(recorder), []).append(take)

    def collect(self, recorder: Recorder) -> None:
        """Hands over the records of what has finished. The run's streams are idle."""
        with self._lock:
            takes = self._pending.pop(id(recorder), [])
        if not takes:
            return
        for take, rows in zip(takes, self.meter.read(takes), strict=True):
            layout = take.activation.layout
            for place, kernels in rows.kernels.items():
                layout.kernels.setdefault(place, tuple(kernels))
            recorder.take(HostRecord(take.activation, take.launches, take.syncs, take.calls))
            for record in _records(take, rows, self.slots):
                recorder.take(record)


def _records(take: Take, rows: Rows, slots: Slots) -> list[StreamRecord]:
    layout, found = take.activation.layout, []
    began = issued(layout, take.launches)
    times = [settled(t, b) for t, b in zip(rows.times, began, strict=True)]
    for stream, own in enumerate(times):
        stood = waits(layout, stream, times, began)
        taken, stats = layout.stats[stream], None
        if take.with_stats:
            stats = np.zeros((len(taken), WORDS), np.int64)
            if taken:
                stats[...] = take.stats[stream][: stats.size].reshape(stats.shape)
                slots.give_back(take.stats[stream])
        moves = between(rows.moves[stream], own)
        if len(own) or len(stood) or taken or len(moves):
            found.append(StreamRecord(take.activation, stream, own, stood, stats, moves))
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
