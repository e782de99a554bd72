"""What other threads ask of a run that goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """`calls` are to be made between two points of the run; `pausing`: it is to stop there."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], Any]] = deque()
        self.pausing = threading.Event()

    def serve(self) -> bool:
        """Makes the calls; whether the run is to stop. For the thread that runs."""
        while self.calls:
            self.calls.popleft()()
        return self.pausing.is_set()
