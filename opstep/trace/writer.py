"""One thread that writes, fed through a queue that holds no more than so many bytes, and the guard
of a sink: what that raises ends its file, and never the run.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from opstep.trace.sink import FailedSink, Sink, SinkReport

LIMIT = 48 << 20  # bytes queued; whoever brings more waits
GATHER_S = 0.01  # what comes within that time is done together: a thread that wakes up costs more
GATHERED = 1 << 20  # bytes that are not waited with
PATIENCE_S = 0.05  # between two flushes while there is always more
TOGETHER = 1 << 16  # bytes that are worked through at once


class Writer:
    """Hands what is queued to `work`, in order and many items at once, on a thread of its own.

    `flush` is called there when the queue has run empty, and every `PATIENCE_S` while it does not.
    What they raise is their own affair: they must not.
    """

    def __init__(
        self, work: Callable[[list[Any]], Any], flush: Callable[[], Any], limit: int = LIMIT
    ):
        self._do = work
        self._flush = flush
        self._limit = limit
        self._items: list[tuple[Sequence[Any], int]] = []  # with the bytes that they hold
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._nbytes = 0  # queued, and not yet done
        self.most = 0  # the most bytes that were ever queued
        self._dequeued = 0  # calls of `put` whose items the thread has
        self._flushed = 0  # of these, done before the last flush
        self._since = 0.0  # when the first of those came that nobody has begun with
        self._under_way = 0.0  # when the first of those did that are being written; 0: none is
        self._awaited = 0  # callers that wait
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="opstep writer")
        self._thread.start()

    def put(self, items: Sequence[Any], nbytes: int = 0) -> bool:
        """Queues items that hold so many bytes; waits while the queue is full, and says whether it
        did. More than the limit at once is let in alone.
        """
        waited = False
        with self._lock:  # quicker than the condition's own methods
            while self._nbytes > 0 and self._nbytes + nbytes > self._limit:
                self._await()
                waited = True
            if self._closing:  # nobody would do it, and `barrier` would wait for it
                return waited
            if not self._items:
                self._since = monotonic()
                self._changed.notify_all()
            elif self._nbytes <= GATHERED < self._nbytes + nbytes:
                self._changed.notify_all()
            # whatever Ctrl-C cuts off after it: it is there
            self._items.append((items, nbytes))
            self._nbytes += nbytes
            self.most = max(self.most, self._nbytes)
        return waited

    def lag(self) -> float:
        """For how many seconds the oldest of what is not in the files has been waiting."""
        since = self._under_way or (self._since if self._items else 0.0)
        return monotonic() - since if since else 0.0

    def barrier(self) -> None:
        """Returns when all that was queued is done and flushed."""
        with self._lock:  # that of the condition; its own `with` may be cut in two by Ctrl-C
            target = self._dequeued + len(self._items)
            self._changed.notify_all()
            while self._flushed < target:
                self._await()

    def close(self) -> None:
        """Does what is queued, flushes, and ends the thread."""
        with self._lock:  # that of the condition; its own `with` may be cut in two by Ctrl-C
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _await(self) -> None:
        self._awaited += 1
        try:
            self._changed.notify_all()
            self._changed.wait()
        finally:
            self._awaited -= 1

    def _work(self) -> None:
        flushed_at = monotonic()
        done = 0
        while batch := self._gathered():
            batch.reverse()  # what is done is let go, with all that it holds
            while batch:
                together: list[Any] = []
                nbytes, before = 0, len(batch)
                while batch and nbytes < TOGETHER:
                    items, held = batch.pop()
                    together += items
                    nbytes += held
                self._do(together)
                del items, together
                done += before - len(batch)
                self._nbytes_done(nbytes)
                if monotonic() - flushed_at > PATIENCE_S:
                    flushed_at = self._flush_now(done)
            if not self._items:
                flushed_at = self._flush_now(done)
            self._under_way = 0.0

    def _gathered(self) -> list[tuple[Sequence[Any], int]]:
        """The next items to do; none where the thread is to end."""
        with self._changed:
            while not self._items and not self._closing:
                self._changed.wait()
            while not (self._closing or self._awaited or self._nbytes > GATHERED):
                left = self._since + GATHER_S - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch, self._items = self._items, []
            self._dequeued += len(batch)
            self._under_way = self._since
            return batch

    def _nbytes_done(self, nbytes: int) -> None:
        with self._lock:
            self._nbytes -= nbytes
            if self._awaited:
                self._changed.notify_all()

    def _flush_now(self, done: int) -> float:
        self._flush()
        with self._changed:
            self._flushed = done
            self._changed.notify_all()
        return monotonic()


# --- a sink, guarded ------------------------------------------------------------------------------


Call = tuple[Any, ...]  # a method of sinks, by name, and its arguments

NO_ROOM = "no room is left on its disk, or files may not grow so large (ulimit -f)"
MAKE_ROOM = "make room, or use a file elsewhere"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} | {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "IOERR_WRITE", "IOERR_FSYNC", "IOERR_TRUNCATE", "IOERR_SHMSIZE")
}


class Guard:
    """A sink that fails once: from then on it is only closed, and says why. `problem`: why it has
    failed already.
    """

    def __init__(self, sink: Sink | FailedSink, problem: str | None = None):
        self.sink = sink
        self.problem = problem
        self._ends: list[Any] = []  # of runs that ended after it had failed
        self._path = sink.path.absolute()  # also where the process goes to another folder

    def call(self, calls: Iterable[Call]) -> None:
        """On the writer's thread."""
        left, method, arguments = iter(calls), "", []
        if not self.problem:
            try:
                for method, *arguments in left:
                    getattr(self.sink, method)(*arguments)
                return
            except (OSError, sqlite3.Error) as error:
                self.problem = words(error)
            except Exception as error:  # our mistake must not stop the writer: the run would wait
                self.problem = f"internal error: {type(error).__name__}: {error}"
        self._ends += [rest for name, *rest in ((method, *arguments), *left) if name == "end_run"]

    def close(self) -> SinkReport:
        try:
            report = self.sink.close(self._ends)
        except (OSError, sqlite3.Error) as error:
            report = SinkReport(self.sink.path, 0)
            self.problem = self.problem or words(error)
        except Exception as error:  # as above; the other file is still to be closed
            report = SinkReport(self.sink.path, 0)
            self.problem = self.problem or f"internal error: {type(error).__name__}: {error}"
        report.problem = self.problem or report.problem
        if not report.problem and not self._path.exists():  # what is deleted can be written
            report.problem = "the file is gone: it was deleted or moved while the run went on"
        return report


def words(error: Exception) -> str:
    """The error in words; where room is missing, with what to do."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{text}: {NO_ROOM}; {MAKE_ROOM}" if no_room(error) else text


def no_room(error: Exception) -> bool:
    """Whether a file could not grow."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", None)
    return code in _FULL
