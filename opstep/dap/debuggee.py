"""What a session debugs, and how it goes and stops. All but `later` and `pause` belong to the
thread that owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import State
from opstep.runtime.ir.diagnostics import OpstepError, render_all

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.debugger import Debugger
    from opstep.runtime.debugger.stops import Stop

# What the debugger calls a reason, and what the protocol does.
REASONS = {
    "function": "function breakpoint",
    "data": "data breakpoint",
    "end": "pause",
}
FIRST_THREAD = 1  # the protocol's number of stream 0: some clients take 0 for none


class Debuggee:
    """A run, or a Python program that runs graphs now and then (`debugger` is None in between).

    `exits`: whether the session is over when the run has ended. `stops_at_end`: whether it stops
    there first, so that one can go back.
    """

    def __init__(self, session: Session, folder: Path, *, exits: bool, stops_at_end: bool = False):
        self.session = session
        self.folder = folder
        self.exits = exits
        self.stops_at_end = stops_at_end
        self.debugger: Debugger | None = None
        self.stop: Stop | None = None
        self.error: OpstepError | None = None
        self.done = True
        self.relaunch: Callable[[], None] | None = None
        self._wanted: Callable[[], None] | None = None  # at the next stop, in its place

    def later(self, action: Callable[[], None]) -> None:
        """Has the owning thread do something while the run goes on."""
        debugger = self.debugger
        if debugger is not None:
            debugger.later(action)

    def pause(self) -> None:
        """Stops it before the next op; from any thread."""
        debugger = self.debugger
        if debugger is not None:
            debugger.pause()

    def interrupt(self, action: Callable[[], None]) -> None:
        """Does something as soon as the run is stopped, in place of telling of the stop."""
        if self.session.state is State.RUNNING:
            self._wanted = action
            self.pause()
        else:
            action()

    # --- going and stopping ---

    def go(self, action: Callable[[], Stop]) -> None:
        """Lets it run until it stops, and tells of that."""
        session = self.session
        session.moved()
        self.done, self.error = False, None
        session.state = State.RUNNING
        if len(session.inbox):  # came in between: nobody else would look
            self.later(session.drain)
        try:
            self.stop = action()
        except OpstepError as error:
            self._failed(error)
            return
        except BaseException:
            self.done = True
            session.state = State.ENDED
            self._over(1)
            raise
        session.state = State.STOPPED
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted()
        else:
            self._stopped(self.stop)

    def _stopped(self, stop: Stop) -> None:
        if stop.reason == "end" and not (self.stops_at_end and not self.session.leaving):
            self.end(0)
            return
        self.session.event("stopped", self._told(stop))

    def _told(self, stop: Stop) -> dict[str, Any]:
        """The body of a ``stopped`` event."""
        body: dict[str, Any] = {
            "reason": REASONS.get(stop.reason, stop.reason),
            "threadId": stop.thread + FIRST_THREAD,
            "allThreadsStopped": True,
        }
        if stop.text:
            body |= {"text": stop.text, "description": stop.text}
        if stop.reason == "end":
            body["description"] = "The graph has returned"
        if stop.hits:
            body["hitBreakpointIds"] = self.session.hits(stop.hits)
        return body

    def _failed(self, error: OpstepError) -> None:
        """The run cannot go on: what it says is told, with its place."""
        self.error = error
        self.session.output(render_all(error.diagnostics), "stderr", **self._place(error))
        self.end(1)

    def _place(self, error: OpstepError) -> dict[str, Any]:
        first = error.diagnostics[0]
        if first.source is None or first.span is None:
            return {}
        line, column = first.source.locate(first.span.start)
        client, path = self.session.client, first.source.path
        source = self.session.source(path, first.source.text)
        return {"source": source, "line": client.line(line), "column": client.column(column)}

    # --- the end ---

    def end(self, code: int) -> None:
        """The run is over. A launched one ends the session's debuggee with it."""
        self.done = True
        self.session.moved()
        self.session.state = State.ENDED if self.exits else State.IDLE
        if code == 0 and self.debugger is not None:
            self._results(self.debugger)
        self._over(code)

    def _results(self, debugger: Debugger) -> None:
        for name, array in debugger.result().items():
            self.session.output(f"{name} = {shown(array)}", "stdout")

    def _over(self, code: int) -> None:
        if self.exits:
            self.session.event("exited", {"exitCode": code})
            self.session.event("terminated")


def shown(array: Any) -> str:
    """A result in one line: its type, and its elements if they are few."""
    from opstep.runtime.ir.types import TensorType, dtype_of

    t = TensorType(dtype_of(array.dtype), array.shape)
    if array.size > 16:
        return str(t)
    return f"{t}  {array.tolist()}"
