"""Who is gone, while this rank waits for a GPU and reads from no connection.

Each pair of ranks keeps a receive open, which ends with the connection: at once where a process is
killed. A rank that ends by itself says so first, and whether in its order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

_TAG = 1  # of its messages, beside those of collectives
_PARTING_S = 3.0
_GRACE_S = 1.0
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
    """Tells `gone` of ranks that are, with why; from other threads."""

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

    def part(self, failed: bool) -> None:
        """This rank ends; returns once all others do, or are gone. Where it has `failed` it does
        not wait for one for long: who hears of it ends, too.
        """
        for other in self._others:
            with suppress(RuntimeError):  # one that is gone
                word = self._torch.tensor([failed], dtype=self._torch.uint8)
                self._torch.distributed.isend(word, other, tag=_TAG).wait(_EVER)
        end = time.monotonic() + _PARTING_S
        for thread in self._threads:  # which are to be no more when Python ends
            thread.join(max(0.0, end - time.monotonic()) if failed else None)

    def _wait(self, other: int) -> None:
        word = self._torch.zeros(1, dtype=self._torch.uint8)
        try:
            self._torch.distributed.irecv(word, other, tag=_TAG).wait(_EVER)
        except RuntimeError as error:
            self._gone(other, said(error))
        else:
            if word[0]:
                time.sleep(_GRACE_S)  # what ended it may end this rank, too, in its own words
                self._gone(other, "it ended with an error")


def said(error: RuntimeError) -> str:
    """The reason that Gloo gives for an error, without the place in its source."""
    return str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
