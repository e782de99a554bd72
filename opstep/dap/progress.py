"""Progress bars of a client: compiling, loading."""

from __future__ import annotations

import itertools
from time import monotonic
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import Cancelled

if TYPE_CHECKING:
    from opstep.dap.session import Session

SHOWN_AFTER_S = 0.3  # what is quicker shows no bar
TOLD_EVERY_S = 0.1

_numbers = itertools.count(1)


class Progress:
    """One bar. `update` may be called as often as one likes, from any thread."""

    def __init__(
        self, session: Session, title: str, request: int, cancellable: bool, known: dict[str, Any]
    ):
        self.session = session
        self.id = f"opstep-{next(_numbers)}"
        self.title = title
        self.request = request
        self.cancellable = cancellable
        self.cancelled = False
        self._known = known
        self._shown = False
        self._told = monotonic()

    def __enter__(self) -> Progress:
        self._known[self.id] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._known[self.id]
        if self._shown:
            self.session.event("progressEnd", {"progressId": self.id})

    def update(self, message: str = "", percentage: float | None = None) -> None:
        """Tells where it stands. Raises `Cancelled` if the user wants it to end."""
        if self.cancelled:
            raise Cancelled
        now = monotonic()
        wait = TOLD_EVERY_S if self._shown else SHOWN_AFTER_S
        if not self.session.client.supports_progress_reporting or now - self._told < wait:
            return
        self._told = now
        body: dict[str, Any] = {"progressId": self.id, "percentage": percentage}
        body["message"] = message or None
        if self._shown:
            self.session.event("progressUpdate", body)
            return
        self._shown = True
        body |= {"title": self.title, "cancellable": self.cancellable}
        self.session.event("progressStart", body | {"requestId": self.request or None})
