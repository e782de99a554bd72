"""Work that recorded runs have launched and not handed over yet, and how it becomes records."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.cuda.recording.records import between, issued, settled, waits
from opstep.runtime.device.cuda.recording.stamps import Clock, Marks, Move
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.recording import Activation, HostRecord, Layout, StreamRecord
from opstep.runtime.statistics import WORDS

SLAB = 1 << 13  # words; smaller slots are parts of one
COPIES = 64  # of a stream, in an activation, whose times are taken


class Part(NamedTuple):
    """A stream's share of a tape's memory, in words: stamps, those of copies, statistics and what
    is taken beyond them.
    """

    address: int
    stamps: int
    statistics: int
    details: int

    @property
    def before(self) -> int:
        """Words before the statistics."""
        return self.stamps + 2 * COPIES

    @property
    def words(self) -> int:
        return self.before + self.statistics + self.details


class PendingActivation:
    """One activation: what the host did, and what the GPU wrote down."""

    activation: Activation

    def __init__(self, layout: Layout, parts: Sequence[Part]):
        self.layout = layout
        self.parts = parts
        self.launches = np.zeros((len(layout.launches), 2), np.int64)
        self.syncs = np.zeros((len(layout.syncs), 2), np.int64)
        self.calls = np.zeros((len(layout.calls), 2), np.int64)
        self.with_stats = False
        self.marks: Sequence[Marks] = ()  # of each stream
        self.copies: list[list[Move]] = [[] for _ in parts]  # likewise
        self.words: dict[int, np.ndarray] = {}  # by stream: slots, where its part is copied to


class _Run:
    """Work that a run has launched and not handed to its recorder yet, oldest first."""

    def __init__(self) -> None:
        self.activations: deque[PendingActivation] = deque()
        self.done = 0  # how many of them are of steps that have ended
        self.lock = threading.RLock()


class PendingRecords:
    """Of one GPU. Runs are told apart by their recorders.

    Records are made while the next step is under way, if the recorder lets them be late.
    """

    def __init__(self, clock: Clock, slots: Slots):
        self.clock = clock
        self.slots = slots
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()

    def end(self, recorder: Recorder) -> None:
        """It records no more for now; no stream of its run is busy."""
        try:
            self.step_done(recorder, now=True)
        finally:
            with self._lock:
                self._runs.pop(id(recorder), None)

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
            with suppress(DeviceError) if now else nullcontext():  # the GPU may be lost
                self.clock.compare()
            if now or not recorder.may_defer(partial(self._flush, run, recorder)):
                self._flush(run, recorder)

    def meanwhile(self, recorder: Recorder) -> None:
        """The GPU has something to do: what is known of steps that have ended is handed over."""
        run = self._runs.get(id(recorder))
        if run is not None and run.done:
            self._flush(run, recorder)

    def _flush(self, run: _Run, recorder: Recorder) -> None:
        with run.lock:
            step = -1
            while run.done:
                run.done -= 1
                pending = run.activations.popleft()
                step = pending.activation.step
                recorder.add_record(
                    HostRecord(pending.activation, pending.launches, pending.syncs, pending.calls)
                )
                for record in _records(pending, self.clock):
                    recorder.add_record(record)
                for words in pending.words.values():
                    self.slots.give_back(words)
            if step >= 0:
                recorder.caught_up(step)


def _records(pending: PendingActivation, clock: Clock) -> list[StreamRecord]:
    layout, records = pending.layout, []
    began = issued(layout, pending.launches)
    times = [
        settled(_spans(clock, pending, stream, marks.rows), b)
        for stream, (marks, b) in enumerate(zip(pending.marks, began, strict=True))
    ]
    for stream, own in enumerate(times):
        part = pending.parts[stream]
        waited = waits(layout, stream, times, began)
        tensors, stats, details = layout.stats[stream], None, None
        if pending.with_stats:
            stats = np.zeros((len(tensors), WORDS), np.int64)
            if tensors:
                further = pending.words[stream][part.before :]
                stats[...] = further[: stats.size].reshape(stats.shape)
                if part.details:
                    details = further[stats.size :][: part.details].copy()
        moves = _moves(clock, pending, stream, own)
        if len(own) or len(waited) or tensors or len(moves):
            record = StreamRecord(pending.activation, stream, own, waited, stats, moves)
            records.append(record._replace(details=details))
    return records


def _spans(
    clock: Clock, pending: PendingActivation, stream: int, ends: Sequence[tuple[int, int]]
) -> np.ndarray:
    if not ends:
        return np.zeros((0, 2), np.int64)
    return clock.spans(pending.words[stream], np.array(ends, np.int64))


def _moves(clock: Clock, pending: PendingActivation, stream: int, times: np.ndarray) -> np.ndarray:
    """i64[n, 4], see `StreamRecord`."""
    moves = [*pending.marks[stream].fills, *pending.copies[stream]]
    spans = _spans(clock, pending, stream, [(m.first, m.last) for m in moves])
    order = np.argsort(spans[:, 0], kind="stable")
    about = np.array([(m.nbytes, m.kind) for m in moves], np.int64).reshape(-1, 2)
    found = np.hstack([between(spans[order], times), about[order]])
    return found[found[:, 0] < found[:, 1]]


class Slots:
    """Pinned memory for what is copied from the GPU, in i64 words, by powers of two. `make`: gives
    so many, for as long as the process lives.
    """

    def __init__(self, make: Callable[[int], np.ndarray]):
        self._make = make
        self._free: dict[int, list[np.ndarray]] = {}
        self._lock = threading.Lock()

    def get(self, words: int) -> np.ndarray:
        """At least so many."""
        words = 1 << max(words - 1, 0).bit_length()
        with self._lock:
            free = self._free.setdefault(words, [])
            if not free and words < SLAB:
                free += np.split(self._make(SLAB), SLAB // words)
            if free:
                return free.pop()
        return self._make(words)

    def give_back(self, slot: np.ndarray) -> None:
        with self._lock:
            self._free.setdefault(len(slot), []).append(slot)
