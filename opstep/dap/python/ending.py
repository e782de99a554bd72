"""The end of a script in a terminal. debugpy's adapter may wait 30 seconds for what its launcher
would have said, where both ended with the terminal.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 2  # that the adapter may take once its launcher has ended


class Ending:
    """`announce` sends the client ``terminated``, where the adapter does not in time."""

    def __init__(self, announce: Callable[[], None]):
        self._announce = announce
        self._is_known = threading.Event()  # to the client

    def is_news(self) -> bool:
        """Of ``terminated`` from the adapter: whether the client has not had it yet."""
        was_known = self._is_known.is_set()
        self._is_known.set()
        return not was_known

    def watch(self, script: int) -> None:
        """The launcher is the script's parent. Linux alone says when it ends."""
        with suppress(AttributeError, OSError):
            launcher = _parent(script)
            threading.Thread(
                target=self._wait, args=(os.pidfd_open(launcher),), daemon=True
            ).start()

    def _wait(self, launcher: int) -> None:
        poll = select.poll()
        poll.register(launcher, select.POLLIN)
        poll.poll()
        os.close(launcher)
        if not self._is_known.wait(PATIENCE_S) and self.is_news():
            self._announce()


def _parent(process: int) -> int:
    """Raises `OSError` where there is no such process."""
    fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    return int(fields.split()[1])
