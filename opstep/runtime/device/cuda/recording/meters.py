"""How the times of kernels are taken: by CUPTI, or by events where that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.cuda.driver.launching import work_of
from opstep.runtime.device.cuda.recording.cupti import Collector, collector
from opstep.runtime.device.cuda.recording.pending import Meter, PendingActivation
from opstep.runtime.device.cuda.recording.records import Nodes, Part, Ran, Rows, issued

READINGS = 5  # of the host's clock beside an event, of which the closest is believed


def meter_for(gpu: Gpu) -> Meter:
    """What the machine allows."""
    try:
        made = collector()
        if made.works(gpu):
            return CuptiMeter(made)
        why = "CUPTI reports nothing: another profiler uses the GPU, or its use is not permitted"
    except ImportError:
        why = "cupti-python is not there: pip install 'opstep[cuda]'"
    except Exception as error:  # its errors have no class of their own in all versions
        why = f"CUPTI cannot be used: {error}"
    return EventMeter(gpu, f"times are those of events, ops are launched one by one ({why})")


class CuptiMeter:
    """Times by CUPTI."""

    captures = True
    note = ""

    def __init__(self, collector: Collector):
        self._collector = collector

    def begin(self, user: int) -> None:
        self._collector.acquire(user)

    def end(self, user: int) -> None:
        self._collector.release(user)

    def around(self, row: int, bound: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(row, b) for b in bound]

    def issue(self, pending: PendingActivation, piece: Any, stream: int) -> None:
        token = self._collector.launch(lambda: piece.work(stream))
        pending.marks.append((token, piece.part))

    def replay(self, pending: PendingActivation, nodes: Nodes, launch: Callable[[], None]) -> None:
        pending.marks.append((self._collector.launch(launch), nodes))

    def ready(self, activations: Sequence[PendingActivation]) -> int:
        for k, pending in enumerate(activations):
            if not all(self._collector.complete(t, _kernels(what)) for t, what in pending.marks):
                return k
        return len(activations)

    def gather(self, activations: Sequence[PendingActivation]) -> None:
        self._collector.gather(
            {t: _kernels(what) for pending in activations for t, what in pending.marks}
        )

    def read(self, pending: PendingActivation) -> Rows:
        rows = Rows(pending.activation.layout)
        for token, what in pending.marks:
            what.fill(rows, self._collector.pop(token))
        return rows


def _kernels(what: Part | Nodes) -> int:
    """How many reports there are at least."""
    if isinstance(what, Nodes):
        return len(what.places)
    return len(what.rows) if what.exact else 0


class Row:
    """What an op launches, as one piece between two events."""

    def __init__(self, bound: Sequence[Any]):
        self._work = work_of(bound)

    def __call__(self, stream: int) -> None:
        self._work(stream)


class EventMeter:
    """Times by events around each row. They have half a microsecond's resolution, and an op's time
    has that of its launch in it.
    """

    captures = False

    def __init__(self, gpu: Gpu, note: str):
        self.note = note
        self._gpu = gpu
        driver = gpu.enter()
        self._stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._free: list[Any] = []  # events; lists change in one step

    def begin(self, user: int) -> None:
        """Nothing has to be turned on."""

    end = begin

    def around(self, row: int, bound: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(row, Row(bound))]

    def issue(self, pending: PendingActivation, piece: Any, stream: int) -> None:
        part = piece.part
        if part.rows[0] < 0:
            piece.work(stream)
            return
        record, first, last = self._gpu.driver.cuEventRecord, self._event(), self._event()
        record(first, stream)
        piece.work(stream)
        record(last, stream)
        pending.marks.append((part, first, last))

    def replay(self, pending: PendingActivation, nodes: Nodes, launch: Callable[[], None]) -> None:
        raise AssertionError("stretches are captured though events cannot time them")

    def ready(self, activations: Sequence[PendingActivation]) -> int:
        return 0  # events are asked, all at once

    def gather(self, activations: Sequence[PendingActivation]) -> None:
        driver = self._gpu.enter()
        reference, now = self._reference()
        early = 0
        for pending in activations:
            began = issued(pending.activation.layout, pending.launches)
            for k, (part, first, last) in enumerate(pending.marks):
                ago = [driver.cuEventElapsedTime(event, reference) for event in (first, last)]
                start, end = (moment(now, ms) for ms in ago)
                early = max(early, int(began[part.stream][part.rows[0]]) - start)
                pending.marks[k] = (part, start, end)
                self._free += [first, last]
        self._free.append(reference)
        # Nothing runs before it is launched: by so much the reference's time was read too early.
        for pending in activations:
            pending.marks[:] = [(part, s + early, e + early) for part, s, e in pending.marks]

    def read(self, pending: PendingActivation) -> Rows:
        rows = Rows(pending.activation.layout)
        for part, start, end in pending.marks:
            rows.add([(part.stream, part.rows[0], Ran(0, 0, start, end, None))])
        return rows

    def _event(self) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            return self._gpu.driver.cuEventCreate(0)

    def _reference(self) -> tuple[Any, int]:
        """An event that was just reached, and when that was."""
        driver, found = self._gpu.driver, []
        for _ in range(READINGS):
            event, before = self._event(), monotonic_ns()
            driver.cuEventRecord(event, self._stream)
            driver.cuStreamSynchronize(self._stream)
            after = monotonic_ns()
            found.append((after - before, (before + after) // 2, event))
        found.sort(key=lambda reading: reading[0])
        self._free += [event for _, _, event in found[1:]]
        return found[0][2], found[0][1]


def moment(now: int, ago_ms: float) -> int:
    """ns, of what was so many ms before."""
    return now - round(ago_ms * 1e6)
