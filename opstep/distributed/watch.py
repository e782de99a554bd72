"""Who is gone, while this rank waits for a GPU and reads from no connection.

Each pair of ranks keeps a receive open, which ends with the connection: at once where a process is
killed. A rank that ends in its order says so first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

_TAG = 1  # of its messages, beside those of collectives
_EVER = timedelta(days=365)


class Losses:
    """That ranks are waited for which will never come: told once, to whoever asks before or later.
    Threads may use it.
    """

    def __init__(self) -> None:
        self._why = ""
        self._asked: list[Callable[[str], Any]] = []
        self._lock = threading.Lock()

    def ask(self, call: Callable[[str], Any]) -> None:
        with self._lock:
            if not self._why:
                self._asked.append(call)
                return
        call(self._why)

    def tell(self, why: str) -> None:
        with self._lock:
            if self._why:
                return
            self._why = why
        for call in self._asked:
            call(why)


class Watch:
    """Tells `gone` of ranks that are, with what the connection said; from other threads."""

    def __init__(self, torch: Any, rank: int, ranks: int, gone: Callable[[int, str], Any]):
        self._torch = torch
        self._others = [k for k in range(ranks) if k != rank]
        self._gone = gone
        self._threads = [
            threading.Thread(target=self._wait, args=(other,), daemon=True)
            for other in self._others
        ]
        for thread in self._threads:
            thread.start()

    def part(self) -> None:
        """This rank ends in its order; returns once all others do, or are gone."""
        for other in self._others:
            with suppress(RuntimeError):  # one that is gone
                self._torch.distributed.isend(self._byte(), other, tag=_TAG).wait(_EVER)
        for thread in self._threads:
            thread.join()

    def _wait(self, other: int) -> None:
        try:
            self._torch.distributed.irecv(self._byte(), other, tag=_TAG).wait(_EVER)
        except RuntimeError as error:
            self._gone(other, said(error))

    def _byte(self) -> Any:
        return self._torch.zeros(1, dtype=self._torch.uint8)


def said(error: RuntimeError) -> str:
    """The reason that Gloo gives for an error, without the place in its source."""
    return str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
