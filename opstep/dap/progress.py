"""Progress bars of a client: compiling, loading."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import monotonic
from typing import Any

from opstep.dap.registry import Cancelled

SHOW_AFTER_S = 0.3  # what is quicker shows no bar
UPDATE_EVERY_S = 0.1

_numbers = itertools.count(1)


class Progress:
    """One bar. `update` may be called as often as one likes, from any thread. `event` sends; None
    for a client that shows no bars.
    """

    def __init__(
        self,
        event: Callable[[str, Any], None] | None,
        title: str,
        request: int,
        cancellable: bool,
        active: dict[str, Any],
        after: float = SHOW_AFTER_S,
    ):
        self._event = event
        self.id = f"opstep-{next(_numbers)}"
        self.title = title
        self.request = request
        self.cancellable = cancellable
        self.cancelled = False
        self._active = active
        self._after = after
        self._started = False
        self._updated = monotonic()

    def __enter__(self) -> Progress:
        self._active[self.id] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._active[self.id]
        if self._started and self._event:
            self._event("progressEnd", {"progressId": self.id})

    def update(
        self, message: str = "", percentage: float | None = None, at_once: bool = False
    ) -> None:
        """Shows where it stands, but for what follows another update closely; `at_once`: that, too.
        Raises `Cancelled` if the user wants it to end.
        """
        if self.cancelled:
            raise Cancelled
        now = monotonic()
        wait = UPDATE_EVERY_S if self._started else self._after
        if self._event is None or (now - self._updated < wait and not at_once):
            return
        self._updated = now
        body: dict[str, Any] = {"progressId": self.id, "percentage": percentage}
        body["message"] = message or None
        if self._started:
            self._event("progressUpdate", body)
            return
        self._started = True
        body |= {"title": self.title, "cancellable": self.cancellable}
        self._event("progressStart", body | {"requestId": self.request or None})
