"""When texts are checked: soon after something was typed, and in slices, so that whoever asks in
between is answered.
"""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from opstep.editors.server import Log
from opstep.lsp import checking
from opstep.lsp.diagnostics import diagnostics_json
from opstep.lsp.project import Project
from opstep.lsp.settings import flag
from opstep.runtime.ir.collector import collector_paused

DELAY_S = 0.004  # a text is checked when nothing more was typed for so long
SLICE_S = 0.02  # of work, between two looks at what the client says
LARGE = 200_000  # characters; from here on Python's collector is kept away from a text

# Cycles are few: what the collector would walk through is mostly syntax trees.
_THRESHOLDS = (50_000, 20, 50)

Notify = Callable[[str, dict[str, Any]], None]


class CheckScheduler:
    """Checks the open texts of one client, and publishes what is wrong."""

    def __init__(self, project: Project, notify: Notify, log: Log):
        self.project = project
        self.notify = notify
        self.log = log
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._checked: set[str] = set()  # texts that were checked once
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)

    def check_soon(self, uri: str) -> None:
        """Checks a text when nothing more has come for a moment; what is going on is dropped."""
        self._cancel(uri)
        loop = asyncio.get_running_loop()
        self._waiting[uri] = loop.call_later(DELAY_S, self._begin, uri)

    def check_all(self) -> None:
        """Checks all open texts."""
        for file in self.project.files():
            self.check_soon(file.uri)

    def forget(self, uri: str) -> None:
        """A text is closed: nothing is wrong with it any more."""
        self._cancel(uri)
        self._checked.discard(uri)
        self._publish(uri, [], None)
        gc.unfreeze()

    def end(self) -> None:
        """The client is gone."""
        for uri in list(self._waiting):
            self._cancel(uri)
        gc.set_threshold(*self._thresholds)

    def _cancel(self, uri: str) -> None:
        if waiting := self._waiting.pop(uri, None):
            waiting.cancel()

    def _begin(self, uri: str) -> None:
        file = self.project.opened(uri)
        if file is not None:
            self._go_on(uri, checking.steps(file))

    def _go_on(self, uri: str, steps: Iterator[None], sliced: bool = False) -> None:
        """One slice; the next one comes when what the client has said is answered. `sliced`: it is
        not the first.
        """
        self._waiting.pop(uri, None)
        try:
            until = time.perf_counter() + SLICE_S
            with collector_paused():
                for _ in steps:
                    if time.perf_counter() > until:
                        gc.freeze()  # else the collector walks through all that was read so far
                        self._later(self._go_on, uri, steps, True)
                        return
                if sliced:
                    gc.freeze()
            self._later(self._finish, uri)
        except Exception:  # a bug; the next text may be checked all the same
            self.log(f"checking {uri}: {traceback.format_exc()}")

    def _later(self, function: Callable[..., None], uri: str, *rest: Any) -> None:
        """Goes on when what the client has said so far is answered."""
        loop = asyncio.get_running_loop()
        self._waiting[uri] = loop.call_later(0, function, uri, *rest)

    def _finish(self, uri: str) -> None:
        """Publishes what was found."""
        self._waiting.pop(uri, None)
        file = self.project.opened(uri)
        if file is None:
            return
        try:
            with collector_paused():
                unused = flag(self.project, "diagnostics.unused", True)
                self._publish(uri, diagnostics_json(file, unused), file.version)
                if uri not in self._checked and len(file.text) > LARGE:
                    gc.freeze()
                self._checked.add(uri)
        except Exception:  # likewise
            self.log(f"checking {uri}: {traceback.format_exc()}")

    def _publish(self, uri: str, found: list[dict[str, Any]], version: int | None) -> None:
        params: dict[str, Any] = {"uri": uri, "diagnostics": found}
        if version is not None:
            params["version"] = version
        self.notify("textDocument/publishDiagnostics", params)
