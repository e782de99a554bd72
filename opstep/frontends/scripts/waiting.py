"""Says what a script waits for where that lasts: the import of a framework, a translation.

with told(tell):
    waiting = Waiting("importing PyTorch")
    ...
    waiting.done()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0  # what is quicker is not told

Tell = Callable[[str], Callable[[], None]]  # of what lasts; gives what is to be called at its end

_tell: Tell | None = None


@contextmanager
def told(tell: Tell | None) -> Iterator[None]:
    """While the block lasts, this is told of it, from any thread."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


class Waiting:
    """From its making to `done`."""

    def __init__(self, what: str):
        self._what = what
        self._lock = threading.Lock()
        self._is_done = False
        self._ended: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None
        if _tell is not None:
            self._timer = threading.Timer(PATIENCE_S, self._lasts, [_tell])
            self._timer.daemon = True
            self._timer.start()

    def _lasts(self, tell: Tell) -> None:
        with self._lock:
            if not self._is_done:
                self._ended = tell(self._what)

    def done(self) -> None:
        """Nobody waits any more; to say it again does nothing."""
        with self._lock:
            if self._is_done:
                return
            self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is not None:
            self._ended()
