"""One thread that writes, fed through a queue that holds no more than so many bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

LIMIT = 48 << 20  # bytes queued; whoever brings more waits
PATIENCE_S = 0.05  # between two flushes while there is always more


class Writer:
    """Does what is queued, in order, on a thread of its own.

    `flush` is called there when the queue has run empty, and every `PATIENCE_S` while it does not.
    What the work raises is its own affair: it must not.
    """

    def __init__(self, flush: Callable[[], Any], limit: int = LIMIT):
        self._flush = flush
        self._limit = limit
        self._items: deque[tuple[Callable[[], Any], int]] = deque()
        self._changed = threading.Condition()
        self._nbytes = 0  # queued, and not yet done
        self.most = 0  # the most bytes that were ever queued
        self._put = 0  # items that came
        self._flushed = 0  # items that were done before the last flush
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="opstep writer")
        self._thread.start()

    def put(self, work: Callable[[], Any], nbytes: int = 0) -> None:
        """Queues work that holds so many bytes; waits while the queue is full. More than the limit
        at once is let in alone.
        """
        with self._changed:
            while self._nbytes and self._nbytes + nbytes > self._limit:
                self._changed.wait()
            if self._closing:  # nobody would do it, and `barrier` would wait for it
                return
            self._items.append((work, nbytes))
            self._nbytes += nbytes
            self._put += 1
            self.most = max(self.most, self._nbytes)
            self._changed.notify_all()

    def barrier(self) -> None:
        """Returns when all that was queued is done and flushed."""
        with self._changed:
            wanted = self._put
            while self._flushed < wanted:
                self._changed.wait()

    def close(self) -> None:
        """Does what is queued, flushes, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        flushed_at = monotonic()
        done = 0
        while True:
            with self._changed:
                while not self._items and self._flushed == self._put and not self._closing:
                    self._changed.wait()
                batch, self._items = self._items, deque()
                if not batch and self._closing and self._flushed == self._put:
                    return
            while batch:
                work, nbytes = batch.popleft()  # what is done is let go, with all that it holds
                work()
                del work
                done += 1
                sleep(0)  # who runs the program is not kept waiting for Python's lock
                with self._changed:
                    self._nbytes -= nbytes
                    self._changed.notify_all()
                if monotonic() - flushed_at > PATIENCE_S:
                    flushed_at = self._flush_now(done)
            if not self._items:
                flushed_at = self._flush_now(done)

    def _flush_now(self, done: int) -> float:
        self._flush()
        with self._changed:
            self._flushed = done
            self._changed.notify_all()
        return monotonic()
