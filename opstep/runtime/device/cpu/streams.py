"""Streams and events of the CPU: queues of work, worker threads, flags."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from opstep.runtime.device.protocols import Event, Stream


class CpuEvent(Event):
    """Set once by the stream that records it; `reset` before it is recorded again.

    Whoever waits takes a token and puts it back. Python's own events and semaphores are no choice
    here: a Ctrl-C may leave their locks held, and what would set them free then waits for ever.
    """

    def __init__(self):
        self._done = False
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        self._done = False
        with suppress(Empty):
            while True:
                self._tokens.get_nowait()

    def done(self) -> bool:
        return self._done

    def wait(self) -> None:
        self._tokens.get()
        self._tokens.put(None)

    def set(self) -> None:
        with self._lock:
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        self._tokens.put(None)
        for callback in callbacks:
            callback()

    def on_done(self, callback: Callable[[], Any]) -> None:
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()


class _Queue:
    """Work in order, done by whoever has the turn."""

    def __init__(self):
        self.items: deque[Callable[[], None]] = deque()
        self.turn = threading.Lock()
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        self.closed = False
        self.error: BaseException | None = None

    def drain(self) -> None:
        items = self.items
        with self.turn:
            while items:
                try:
                    work = items.popleft()
                except IndexError:  # all was dropped this moment
                    return
                try:
                    work()
                except Exception as error:  # told to the host when it synchronises
                    self.error = self.error or error

    def work(self) -> None:
        """The worker thread's life."""
        while not self.closed:
            self.wakeups.get()
            self.drain()

    def close(self) -> None:
        self.closed = True
        self.wakeups.put(None)


class CpuStream(Stream):
    """A queue, and a thread that works through it from the first `start` until the stream is
    dropped.

    A host that would only wait for the queue works through it itself (`synchronize`): one thread at
    a time has the turn, so the order is kept whoever does it, and a short run pays for no thread
    switch.
    """

    def __init__(self):
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self.submit = self._queue.items.append
        weakref.finalize(self, self._queue.close)

    def record(self, event: CpuEvent) -> None:
        self.submit(event.set)

    def wait(self, event: CpuEvent) -> None:
        self.submit(event.wait)

    def start(self) -> None:
        """Lets the worker begin with what is queued."""
        if not self._queue.items:
            return
        if self._thread is None:
            work = self._queue.work  # not a method of the stream: the thread must not keep it alive
            self._thread = threading.Thread(target=work, daemon=True, name="opstep stream")
            self._thread.start()
        self._queue.wakeups.put(None)

    def synchronize(self) -> None:
        """Returns when the queue is empty and its last work done; raises what that work raised."""
        queue = self._queue
        queue.drain()
        if queue.error is not None:
            error, queue.error = queue.error, None
            raise error

    def drop(self) -> None:
        """Drops what is queued. The work under way may wait for an event of another stream that
        is never reached now: whoever drops what stands before that sets it then.
        """
        self._queue.items.clear()

    def abandon(self) -> None:
        """Returns when the queue is empty and its last work done, whatever came of that."""
        self._queue.drain()
        self._queue.error = None
