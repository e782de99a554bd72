"""``opstep debug train.py``: one session, which goes from run to run of the script's modules."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api import program as programs
from opstep.api.debugging import Debugger, debugged
from opstep.cli import launched
from opstep.cli.common import OK, PROGRAM, say
from opstep.cli.debug.opening import asked, begun, given_commands
from opstep.cli.debug.points import BreakpointTable
from opstep.cli.debug.session import Session
from opstep.cli.scripts import Started
from opstep.dap import attach
from opstep.frontends.scripts.script import Leave
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.api.results import Result
    from opstep.api.settings import RunSettings
    from opstep.cli.debug.reading import Reader
    from opstep.cli.debug.showing import Paint

STEPS = ("next", "step", "nexti", "stepi", "finish", "until")  # to the next run, at a run's end

_PAUSES = b"\nstops where a module is called next; Ctrl-C again ends the script\n"


def debug_script(file: str, options: dict[str, Any]) -> int:
    """Gives the script's exit code; that of a session that was ended is 0."""
    if options["wait"] and options["listen"] is None:
        raise InputError("--wait needs --listen PORT")
    started = Started(file, options)
    if (adapter := launched.adapter) is not None:
        attach.listen_to(adapter)
        return started.run()
    if options["listen"] is not None:
        return _listened(started)
    debugger = ScriptDebugger(file, options)
    programs.interposed = debugger.run
    try:
        with nullcontext() if options["batch"] else debugger.paused_by_ctrl_c():
            return started.run()
    except Leave:
        return PROGRAM if options["batch"] and debugger.failed else OK
    finally:
        programs.interposed = None


def _listened(started: Started) -> int:
    """An editor is the debugger."""
    say(f"listening on 127.0.0.1:{attach.listen(started.options['listen'])}")
    try:
        if started.options["wait"]:
            attach.wait_for_client()
        code = started.run()
        attach.program_ends(code)
        return code
    finally:
        attach.stop_listening()


class ScriptSession(Session):
    """`readers`: where commands come from, one after another; at the end of the last the session
    is over. They are read until the run goes on to its end.
    """

    def __init__(self, debugger: Debugger, paint: Paint, interactive: bool):
        super().__init__(debugger, paint, interactive)
        self.points = BreakpointTable(keeps_unknown=True)
        self.readers: deque[Reader] = deque()
        self.has_left = False  # the run
        self.pauses = False  # the next run, at its begin: Ctrl-C was pressed before it
        self._switched = False  # to another reader

    def reads(self) -> bool:
        return not (self.over or self.has_left or self._switched)

    def loop(self, reader: Reader) -> None:
        """A script of commands that another one names may go on in later runs."""
        self.readers.appendleft(reader)
        self._switched = True

    def converse(self) -> None:
        """Does commands until the run goes on to its end, or the session is over."""
        while self.readers and not self.over and not self.has_left:
            self._switched, reader = False, self.readers[0]
            super().loop(reader)
            if self.reads():
                self.readers.remove(reader)
        self.over = self.over or not (self.readers or self.has_left)

    def enter(self, debugger: Debugger) -> None:
        """Another run begins, with the breakpoints that there are."""
        self.debugger = debugger
        debugger.on_output = self.on_output
        debugger.stop_on_entry = self.command in STEPS or self.pauses
        if self.pauses:
            self.say(self.paint("Paused.", "bold yellow"))
        self.ended = self.has_left = self.pauses = False
        self.points.move(debugger.breakpoints)
        self.go(debugger.start)

    @property
    def waits(self) -> bool:
        """Whether a run could be of interest."""
        return (
            self.pauses
            or self.command in STEPS
            or any(e.enabled for e in self.points.entries.values())
        )

    def show_results(self) -> None:
        """A run that ended: the script goes on."""
        self.has_left = True


class ScriptDebugger:
    """What runs of the graphs of a script are given to; the first one begins the session."""

    def __init__(self, file: str, options: dict[str, Any]):
        self._file = file
        self._options = options
        self._first = given_commands(options)
        self._session: ScriptSession | None = None
        self._running = threading.Lock()
        self._process = os.getpid()

    @property
    def failed(self) -> bool:
        """Whether a command of -x or -ex could not be done."""
        return self._session is not None and self._session.failed

    @contextmanager
    def paused_by_ctrl_c(self) -> Iterator[None]:
        """While the block lasts, Ctrl-C in the script's own code stops at the begin of its next
        run; pressed again before that, it ends the script, which may call no module any more.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, at: Any) -> None:
            session = self._session
            if session is None or session.pauses or self._running.locked():
                signal.default_int_handler(number, at)
            session.pauses = True
            if os.getpid() == self._process:
                os.write(2, _PAUSES)  # a print of the script's may be under way

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def run(
        self, program: Program, graph: str | None, inputs: Any, settings: RunSettings
    ) -> Result | None:
        """A run under the debugger; None where nobody wants to see it. Raises `Leave`."""
        session = self._session
        if (session is not None and not session.waits) or os.getpid() != self._process:
            return None
        if not self._running.acquire(blocking=False):  # another thread's is debugged
            return None
        try:
            debugger = self._debugger(program, graph, inputs, settings)
            if session is None:
                session = self._session = self._begun(debugger, graph)
            else:
                session.enter(debugger)
            session.converse()
            return self._result(session)
        finally:
            self._running.release()

    def _begun(self, debugger: Debugger, graph: str | None) -> ScriptSession:
        session = begun(ScriptSession, debugger, self._options["batch"])
        session.readers.extend(self._first)
        if not self._options["batch"]:
            session.readers.append(asked(session))
        session.say(f"{self._file}: {graph} is about to run for the first time")
        if session.interactive:
            session.say("run, start or break first; help lists the commands.")
        return session

    def _debugger(
        self, program: Program, graph: str | None, inputs: Any, settings: RunSettings
    ) -> Debugger:
        settings = replace(settings, mode=self._options["mode"])
        debugger = Debugger(
            program, graph, inputs, memory_budget=int(self._options["memory"] * 2**30),
            files=Path.cwd(), **debugged(settings),
        )  # fmt: skip
        if self._options["workspace"]:
            from opstep.trace.workspace.scope import recorded_runs

            debugger.stop_point.runs = recorded_runs(self._options["workspace"])
        debugger.view = "auto"
        return debugger

    def _result(self, session: ScriptSession) -> Result:
        if not session.has_left:
            raise Leave
        debugger, stop = session.debugger, session.debugger.stop
        if stop is not None and stop.exception is not None and stop.exception.error is not None:
            raise stop.exception.error
        return attach.result_of(debugger, 0.0)
