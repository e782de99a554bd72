"""The timeline of a recording's runs, as Perfetto reads it. `tracks` has its layout."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.runtime.recording import HostRecord, Overhead, StreamRecord
from opstep.trace import perfetto
from opstep.trace.free import FreeRecord
from opstep.trace.sink import Checkpoint, Run, RunEnd, SinkReport, StepDone
from opstep.trace.template import prepare
from opstep.trace.tracks import Record, RunTracks

_FLUSHED = 1 << 20  # bytes of packets that are written at once, about
_BUNDLE = 1 << 17  # of those that are compressed together
_END = b""  # of what is
_RECORD_BYTES, _SLICE_BYTES = 200, 150  # about


class TimelineSink:
    """Writes a trace (`trace.sink.Sink`). What is flushed is whole packets, appended: wherever the
    file is cut, what stands before the cut can be read.

    With `steps` it shows only those, and what led to the first step.

    A file that is there is replaced when the first run begins, if it is a trace; raises
    `InputError` if it is something else, or cannot be written.
    """

    def __init__(self, path: str | Path, steps: range | None = None):
        self.path = Path(path)
        self._steps = steps  # that are shown; None: all
        self._file, self._is_new = _open(self.path)
        prepare()  # so that no run waits for that
        self._interned = perfetto.Interned()
        self._uuids = count(1)
        self._runs: dict[Run, RunTracks] = {}
        self._records: dict[Run, list[Record]] = {}  # that are not packets yet
        self._step = -1  # the last that has ended
        self._awaited = 0  # bytes that they will be, about
        self._pending: list[Any] = []  # packets, as bytes
        self._nbytes = 0  # written

    def begin_run(self, run: Run) -> None:
        if not self._runs:
            self._begin_file()
        tracks = RunTracks(run, len(self._runs) + 1, self._interned, self._uuids)
        self._runs[run] = tracks
        self._add(tracks, [])

    def add_record(self, run: Run, record: StreamRecord | HostRecord | FreeRecord) -> None:
        if self._steps is None or not self._left_out(record.activation.step):
            # of a stream its ops, of the host what it launched
            slices = len(record.ops if isinstance(record, FreeRecord) else record[2])
            self._await(run, record, _RECORD_BYTES + _SLICE_BYTES * slices)

    def add_overhead(self, run: Run, spent: Overhead) -> None:
        if not self._left_out(self._step):
            self._await(run, spent, _SLICE_BYTES)

    def end_step(self, run: Run, step: StepDone) -> None:
        self._step = step.step
        if not self._left_out(step.step):
            self._await(run, step, _SLICE_BYTES)

    def _left_out(self, step: int) -> bool:
        return self._steps is not None and step >= 0 and step not in self._steps

    def add_checkpoint(self, run: Run, checkpoint: Checkpoint) -> None:
        """A timeline holds no tensors."""

    def add_metrics(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
        """Its slice of that step is there already."""

    def end_run(self, run: Run, end: RunEnd) -> None:
        self._make()
        self._add(self._runs[run], [self._runs[run].end(end)])
        self._runs[run].forget()

    def flush(self) -> None:
        self._make()
        if self._pending:
            pending, self._pending = self._pending, []
            self._write(b"".join(map(perfetto.bundle, _bundles(pending))))

    def _await(self, run: Run, record: Record, nbytes: int) -> None:
        """Records become packets together, many at once."""
        self._records.setdefault(run, []).append(record)
        self._awaited += nbytes
        if self._awaited > _FLUSHED:
            self.flush()

    def _make(self) -> None:
        records, self._records, self._awaited = self._records, {}, 0
        for run, found in records.items():
            self._add(self._runs[run], self._runs[run].packets(found))

    def close(self, ends: Sequence[Any] = ()) -> SinkReport:
        if self._file < 0:
            return self._report()
        try:
            if self._runs:
                self.flush()
            elif self._is_new:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)
            self._file = -1
        return self._report()

    def _report(self) -> SinkReport:
        runs = self._runs.values()
        counts = [("run", len(runs)), ("slice", sum(r.slices for r in runs))]
        return SinkReport(self.path, self._nbytes, [*counts, ("flow", sum(r.flows for r in runs))])

    def _add(self, tracks: RunTracks, parts: list[Any]) -> None:
        """Queues packets after those that they refer to."""
        new = [*tracks.described, *self._interned.packets()]
        tracks.described = []
        if new:  # apart: what is changed elsewhere in the file leaves them as they are
            self._pending += [perfetto.encode(new), _END]
        self._pending += [part for part in parts if len(part)]

    def _begin_file(self) -> None:
        if stat.S_ISREG(os.fstat(self._file).st_mode):
            os.ftruncate(self._file, 0)
        self._write(perfetto.preamble())

    def _write(self, data: bytes) -> None:
        """Appends all of it, or leaves the file as it was."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):  # a pipe cannot take back what it has got
                os.ftruncate(self._file, self._nbytes)
            raise
        self._nbytes += len(data)


def _bundles(parts: Iterable[Any]) -> Iterator[bytes]:
    """Packets that are compressed together: a byte that is changed later costs one such bundle."""
    held: list[Any] = []
    nbytes = 0
    for part in parts:
        if part is not _END:
            held.append(part)
            nbytes += len(part)
        if held and (part is _END or nbytes > _BUNDLE):
            yield b"".join(held)
            held, nbytes = [], 0
    if held:
        yield b"".join(held)


def _open(path: Path) -> tuple[int, bool]:
    """The file's descriptor, and whether it was not there before."""
    is_new = not path.exists()
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        hint = "give a file in a folder that is there and can be written"
        raise InputError(f"{path}: {error.strerror}", hint=hint) from None
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISFIFO(mode):
            raise InputError(f"{path} is a pipe; a trace is a file")
        if stat.S_ISREG(mode):
            _claim(file, path)
    except BaseException:
        os.close(file)
        raise
    return file, is_new


def _claim(file: int, path: Path) -> None:
    """Raises `InputError` where a file is not to be replaced."""
    with suppress(ImportError):  # a system without such locks
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "close that recording, or give another name"
            raise InputError(f"{path}: another recording is writing it", hint=hint) from None
        except OSError:
            pass  # a file system without locks
    head = os.pread(file, 1 << 16, 0)
    if head and not perfetto.is_trace(head):
        hint = "give another name, or remove it"
        raise InputError(f"{path} is there, and is not a trace: it is not replaced", hint=hint)
