"""Kernels that are compiled on the way, shown to the client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cpu import ahead

if TYPE_CHECKING:
    from opstep.dap.progress import Progress
    from opstep.dap.session import Session

COMPILING = "opstep: compiling kernels"


class Compiling:
    """``session.per_session(Compiling)``: a bar as long as kernels are compiled, whoever waits for
    them, also in the background of a stop.
    """

    def __init__(self, session: Session):
        self._session = session
        self._bar: Progress | None = None
        self._done = 0
        self._lock = threading.Lock()
        Compiler.on_compile, Compiler.on_compiled = self._began, self._ended

    def _began(self, kernel: str) -> None:
        with self._lock:
            if self._bar is None:
                self._bar, self._done = self._session.progress(COMPILING, after=0.0), 0
                self._bar.__enter__()
            number = self._done + 1
            total = number + ahead.waiting()
            message = f"{kernel}, {number} of {total} (once: they are kept)"
            self._bar.update(message, 100 * self._done / total, at_once=True)  # each is a while

    def _ended(self, kernel: str) -> None:
        with self._lock:
            self._done += 1
            if not ahead.waiting():
                self._close_bar()

    def _close_bar(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.__exit__()

    def close(self) -> None:
        """The session is over."""
        if Compiler.on_compile == self._began:
            Compiler.on_compile = Compiler.on_compiled = None
        with self._lock:
            self._close_bar()
