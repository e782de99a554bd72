"""What a session debugs, and how it goes and stops. All but `later` and `leave` belong to
the thread that owns it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.job import odd_results
from opstep.dap.client_breakpoints import ClientBreakpoints
from opstep.dap.registry import State
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.checks import Problem, Stop
    from opstep.runtime.debugger.debugger import Debugger
    from opstep.runtime.debugger.frames import Frame

# What the debugger calls a reason, and what the protocol does.
REASONS = {
    "function": "function breakpoint", "data": "data breakpoint", "end": "pause",
    "waiting": "pause",
}  # fmt: skip
FIRST_THREAD = 1  # the protocol's number of stream 0: some clients take 0 for none
OK, FAILED, ENDED_BY_USER = 0, 1, 130  # exit codes, as of the command line
FEW = 16  # elements of a result that are written out


class Debuggee:
    """A run; or a Python program that runs graphs now and then (`debugger` is None in between).

    `exits`: whether the session is over when the run has. `stops_at_end`: whether it stops there
    first, so that one can go back; None: where a result has a NaN or an infinity. `goes_on`: what
    becomes of it when the client leaves and does not say: it goes on by itself, or it ends.
    """

    def __init__(
        self,
        session: Session,
        folder: Path,
        *,
        exits: bool = True,
        stops_at_end: bool | None = False,
        goes_on: bool = False,
    ):
        self.session = session
        self.folder = folder
        self.exits = exits
        self.stops_at_end = stops_at_end
        self.goes_on = goes_on
        self.debugger: Debugger | None = None
        self.error: OpstepError | None = None  # that the run ended with
        self.terminated = False  # by the client
        self.pauses_next = False  # whether the next run stops before its first op
        self._at_next_stop: Callable[[], None] | None = None  # at the next stop, in its place
        self._fatal: Problem | None = None  # an error that the run cannot get past
        self._told_assert: int | None = None  # the position of a failed assert that one stood at
        self._at_end = False  # whether it stands there, and that was told
        self._keeps_focus = False  # at the next stop
        self._steps = False  # and at the end of the run in the next one
        self._stamp: tuple[int, int] | None = None
        self._reported_stamp: tuple[int, int] | None = None

    def begin(self, debugger: Debugger) -> None:
        """This is the run from now on; it gets the breakpoints that the client wants."""
        self.debugger = debugger
        self.error, self._fatal, self.terminated, self._at_end = None, None, False, False
        self._told_assert = None
        self.pauses_next = False
        debugger.on_output = self._write_output
        self._stamp = self._stamp_now()
        self.session.per_session(ClientBreakpoints).attach(debugger.breakpoints)

    def release(self) -> None:
        """The run is over; the Python program may run another."""
        self.debugger = None
        self.session.per_session(ClientBreakpoints).detach()
        self.session.invalidate()

    # --- from any thread ---

    def later(self, action: Callable[[], None]) -> None:
        """Has the owning thread do something while the run goes on."""
        debugger = self.debugger
        if debugger is not None:
            debugger.later(action)

    def leave(self, terminate: bool | None) -> None:
        """The client is gone, or takes its leave; None: it did not say what is to become of it."""
        if terminate is None:
            terminate = not self.goes_on
        if terminate:
            self.terminated = True
            self.later(self.pause)
        else:
            self.goes_on = True
            self.later(self.disarm)

    # --- going and stopping ---

    def pause(self) -> None:
        """Stops the run that goes on, before its next op."""
        if self.debugger is not None:
            self.debugger.pause()

    def interrupt(self, action: Callable[[], None]) -> None:
        """Does something as soon as the run stands, in place of telling of the stop."""
        if self.session.state is State.RUNNING:
            self._at_next_stop = action
            self.pause()
        else:
            action()

    def started(self) -> Stop:
        """Begins the run."""
        assert self.debugger is not None
        return self.debugger.start()

    def announce(self) -> None:
        """It is about to go on, by a request that does not say so by itself: else clients take the
        next stop for one beside the old. To be told before the response, as VS Code takes events
        that follow each other for one moment, and would lose the stop.
        """
        if self.session.state is State.STOPPED:
            body = {"threadId": FIRST_THREAD, "allThreadsContinued": True}
            self.session.event("continued", body)

    def go(
        self, action: Callable[[], Stop], keeps_focus: bool = False, steps: bool = False
    ) -> None:
        """Lets it run until it stops, and tells of that; `keeps_focus`: the client is to look at
        something else all the same; `steps`: behind its end comes the begin of the next run.
        """
        session = self.session
        self._keeps_focus, self._steps = keeps_focus, steps
        self._report_edit()
        session.invalidate()
        session.state = State.RUNNING
        if len(session.inbox):  # came in between: nobody else would look
            self.later(session.drain)
        try:
            stop = action()
            if self.debugger is not None:
                self.debugger = self.debugger.at(stop.thread)
            self._stopped(stop)
        except OpstepError as error:
            self._failed(error)
        except BaseException:  # a bug: told by who called, and the client is not left waiting
            self.end(FAILED)
            raise

    def _stopped(self, stop: Stop) -> None:
        """It stands: does what is to be done then, or tells of it."""
        session = self.session
        session.state = State.STOPPED
        action, self._at_next_stop = self._at_next_stop, None
        if action is not None:  # by the loop that called us, not from within
            session.inbox.put_first(lambda: session.guard(action))
        elif self.terminated:
            self.end(ENDED_BY_USER)
        else:
            self._report(stop)

    def _report(self, stop: Stop) -> None:
        """Of an error that the run cannot get past one is told first, and may look around; to go on
        from there ends the run.
        """
        stop = self._at_failed_assert(stop)
        problem, before = stop.exception, self._fatal
        stood, self._at_end = self._at_end, stop.reason == "end"
        self._fatal = problem if problem and problem.error else None
        if stop.reason == "end" and before and before.error and before.kind == "device":
            self._failed(before.error)  # a device that is lost computes nothing more
        elif stop.reason == "end" and self._fatal and (stood or not self.stops_at_end):
            assert self._fatal.error is not None
            self._failed(self._fatal.error)  # of an assert
        elif stop.reason == "end" and not self._fatal and (stood or not self._to_be_seen()):
            self._finished()
        elif before and self._fatal and before.position == self._fatal.position:
            assert before.error is not None
            self._failed(before.error)
        else:
            self.session.event("stopped", self._stopped_body(stop))

    def _at_failed_assert(self, stop: Stop) -> Stop:
        """A failed assert ends a run only with its step: where nobody has stopped at it, one goes
        back to it.
        """
        problem, debugger = stop.exception, self.debugger
        if problem is None or problem.kind != "assert" or debugger is None:
            return stop
        told, self._told_assert = self._told_assert == problem.position, problem.position
        if stop.reason == "end" and not told and not self.session.leaving:
            with suppress(InputError):  # it is forgotten
                return debugger.stand_at(problem)
        return stop

    def _to_be_seen(self) -> bool:
        """Whether it stops where it has come to its end."""
        if self.stops_at_end is None:
            return bool(self._odd_results())
        return self.stops_at_end

    def _odd_results(self) -> list[str]:
        """Of each result with NaNs or infinities, how many."""
        debugger = self.debugger
        assert debugger is not None
        return [odd.text for odd in odd_results(debugger.results())]

    def _stopped_body(self, stop: Stop) -> dict[str, Any]:
        """The body of a ``stopped`` event."""
        label = self.debugger.label if self.debugger else ""
        text = f"{label}{stop.exception.message}" if stop.exception else stop.text
        reason = REASONS.get(stop.reason, stop.reason)
        if stop.reason == "end" and stop.exception:
            reason, text = "exception", f"{text}; the graph has returned"
        elif stop.reason == "end":
            text = "; ".join(("the graph has returned", *self._odd_results()))
        body: dict[str, Any] = {
            "reason": reason,
            "threadId": stop.thread + FIRST_THREAD,
            "allThreadsStopped": True,
        }
        text = self._behind_op(text)
        if text:
            named = stop.exception is not None and stop.exception.node is not None
            shown = text if named else text[:1].upper() + text[1:]
            body |= {"text": text, "description": shown}
        if self._keeps_focus:
            body["preserveFocusHint"] = True
        if hits := self.session.per_session(ClientBreakpoints).ids(stop.hits):
            body["hitBreakpointIds"] = hits
        return body

    def _behind_op(self, text: str) -> str:
        """The text of a stop; where it stands behind an op and not before one, it says so."""
        debugger = self.debugger
        last = debugger.machine.history.last_point() if debugger else None
        if debugger is None or last is None or not debugger.stop_point.after_op:
            return text
        activation, point = last
        results = [r.name.text for r in getattr(point.statement, "results", ())]
        name = ", ".join(results) or activation.plan.steps[point.step].op.name
        return f"{text}; {name} has run" if text else f"{name} has run"

    def _write_output(self, text: str, frame: Frame | None) -> None:
        """The debugger writes: a log message, a condition that cannot be evaluated."""
        more: dict[str, Any] = {}
        if frame is not None:
            client = self.session.client
            more["source"] = self.session.source_of(frame)
            more |= {"line": client.line(frame.line), "column": client.column(frame.column)}
        self.session.output(text, "console", **more)

    # --- the end ---

    def _finished(self) -> None:
        debugger = self.debugger
        assert debugger is not None
        self.pauses_next = self._steps
        if self.exits:  # else the Python program gets them
            for name, array in debugger.results().items():
                self.session.output(f"{name} = {result_text(array)}", "stdout")
        self.end(OK)

    def _failed(self, error: OpstepError) -> None:
        """The run cannot go on: what it says is told, with its place."""
        self.error = error
        self.session.output(self.session.worded(error), "stderr", **self._location(error))
        self.end(FAILED)

    def _location(self, error: OpstepError) -> dict[str, Any]:
        first = error.diagnostics[0]
        if first.source is None or first.span is None:
            return {}
        line, column = first.source.locate(first.span.start)
        client, path = self.session.client, first.source.path
        source = self.session.source(path, first.source.text)
        return {"source": source, "line": client.line(line), "column": client.column(column)}

    def end(self, code: int) -> None:
        """The run is over; a launched one ends with it what the client debugs."""
        self.session.invalidate()
        self.session.state = State.ENDED if self.exits else State.IDLE
        if self.exits:
            self.session.event("exited", {"exitCode": code})
            self.session.event("terminated")

    def terminate(self) -> None:
        """The client wants it to end. A Python program that it attached to loses a run, and goes
        on without it.
        """
        self.terminated = True
        self.end(ENDED_BY_USER)
        attached = self.session.attached
        if attached is not None:
            attached.client_left(self.session)
            self.session.event("terminated")

    def disarm(self) -> None:
        """Nothing stops the run any more."""
        if self.debugger is not None:
            self.session.per_session(ClientBreakpoints).clear()

    def finish_detached(self) -> None:
        """The client is gone and the run goes on: to its end."""
        if self.session.state is State.STOPPED and self.goes_on and not self.terminated:
            debugger = self.debugger
            assert debugger is not None
            self.disarm()
            self.stops_at_end = False
            self.go(lambda: debugger.go("continue"))

    # --- the program's file ---

    @property
    def file(self) -> Path | None:
        """Where the program was read from."""
        texts = self.debugger.host.texts() if self.debugger else []
        path = Path(texts[0].source.path) if texts else None
        return path if path and path.is_file() else None

    @property
    def edited(self) -> bool:
        """Whether the program's file is another than the one that runs."""
        return self._stamp is not None and self._stamp_now() != self._stamp

    def reloaded(self) -> None:
        """The file was read again."""
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> tuple[int, int] | None:
        file = self.file
        if file is None:
            return None
        found = os.stat(file)
        return found.st_mtime_ns, found.st_size

    def _report_edit(self) -> None:
        now = self._stamp_now() if self._stamp is not None else None
        if now not in (self._stamp, self._reported_stamp):
            self._reported_stamp = now
            self.session.output(
                "The program's file has changed: restart the frame to continue with its new text."
            )


def result_text(array: Any) -> str:
    """A result in one line: its type, and its elements if they are few."""
    from opstep.runtime.ir.types import TensorType, dtype_of

    t = TensorType(dtype_of(array.dtype), array.shape)
    return str(t) if array.size > FEW else f"{t}  {array.tolist()}"
