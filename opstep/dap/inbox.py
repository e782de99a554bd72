"""Requests that wait for the thread that owns the debuggee."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

MOST_WAITING = 1000  # jobs; a client that sends more without listening is told so
SIGNALS_S = 1.0  # a signal that another thread took wakes nobody: how often it is looked for

Job = Callable[[], None]


class Inbox:
    """A bounded queue whose jobs only its owner takes. Ownership can be lent to another thread:
    that of a Python program, while it runs a graph.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._owners: list[int] = []
        self._closed = False

    def put(self, job: Job) -> bool:
        """From any thread. False where too many wait."""
        with self._changed:
            if len(self._jobs) >= MOST_WAITING:
                return False
            self._jobs.append(job)
            self._changed.notify_all()
            return True

    def put_first(self, job: Job) -> None:
        """In front of all that waits: what the owner itself has still to do."""
        with self._changed:
            self._jobs.appendleft(job)
            self._changed.notify_all()

    def get(self) -> Job | None:
        """The next job, for the owner, which waits for it; None once the inbox is closed."""
        me = threading.get_ident()
        with self._changed:
            while not self._closed and not (self._jobs and self._owners[-1] == me):
                self._changed.wait(SIGNALS_S)
            return None if self._closed else self._jobs.popleft()

    def poll(self) -> Job | None:
        """The next job if there is one: for the owner, between two points of a run."""
        with self._changed:
            return self._jobs.popleft() if self._jobs else None

    def __len__(self) -> int:
        return len(self._jobs)

    def own(self) -> None:
        """From now on the calling thread takes the jobs, until it disowns them."""
        with self._changed:
            self._owners.append(threading.get_ident())
            self._changed.notify_all()

    def disown(self) -> None:
        """The owner before takes them again."""
        with self._changed:
            self._owners.remove(threading.get_ident())
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes the owner for good; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
