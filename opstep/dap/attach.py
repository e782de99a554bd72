"""``opstep.debug``: lets an editor attach to a Python program and step through the graphs it runs.

    import opstep

    opstep.debug.listen(5678)
    opstep.debug.wait_for_client()
    program.run("train", inputs)      # stops where the editor's breakpoints are

While a client is attached, `Program.run` runs under the debugger, on the thread that called it,
with the switches that it was given. What it returns is the same. Runs with listeners, a recording
or ``on_step``, and those of other threads meanwhile, go on as always.
"""

from __future__ import annotations

import atexit
import dis
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import FrameType
from typing import TYPE_CHECKING, Any

from opstep.api import program as programs
from opstep.api.devices import kind_of
from opstep.dap.debuggee import Debuggee
from opstep.dap.python import hosting
from opstep.dap.registry import DapError, State
from opstep.dap.server import Listener
from opstep.dap.source_view import SourceView
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.debugging import Debugger
    from opstep.api.job import Result
    from opstep.api.program import Program
    from opstep.api.settings import RunSettings
    from opstep.dap.requests.lifecycle import AttachArguments
    from opstep.dap.session import Session

FAILED, INTERRUPTED = 1, 130  # of an uncaught exception, and of Ctrl-C


def outermost_frame() -> FrameType | None:
    """The main thread's: the program's own, if that is a script or a module."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return None if hasattr(sys, "ps1") or sys.flags.interactive else frame


def exit_code(outermost: FrameType | None) -> int | None:
    """None where `SystemExit` has the code, which cannot be seen here."""
    if outermost is None:
        return None
    if dis.opname[outermost.f_code.co_code[outermost.f_lasti]].startswith("RETURN"):
        return 0
    uncaught = getattr(sys, "last_value", None)
    traceback = getattr(uncaught, "__traceback__", None)
    if traceback is None or traceback.tb_frame is not outermost:
        return None
    return INTERRUPTED if isinstance(uncaught, KeyboardInterrupt) else FAILED


FAREWELL_S = 1.0  # how long the end of the program waits for its client to have taken its leave
POLL_S = 0.01


class Attached:
    """A Python program that clients can attach to, one at a time."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._session: Session | None = None
        self._arguments: AttachArguments | None = None
        self._lock = threading.Lock()
        self._configured = threading.Event()
        self._running = threading.Lock()

    @property
    def session(self) -> Session | None:
        """Of the client that is attached."""
        return self._session

    # --- what a session tells ---

    def debuggee(self, session: Session, arguments: AttachArguments) -> Debuggee:
        """This program, for a session. Raises `DapError` where another one has it."""
        with self._lock:
            if self._session is not None and not self._session.leaving:
                raise DapError("another client is attached to this program", show=True)
            self._session, self._arguments = session, arguments
        folder = Path(arguments.cwd).absolute() if arguments.cwd else Path.cwd()
        found = Debuggee(
            session,
            folder,
            exits=False,
            stops_at_end=arguments.stop_at_end,
            goes_on=arguments.on_disconnect == "continue",
        )
        found.pauses_next = arguments.stop_on_entry
        return found

    def debug_python(self, session: Session, message: dict[str, Any]) -> None:
        """The client attaches to all of the program. Raises `DapError`."""
        hosting.debug_python(session, message)

    def configured(self) -> None:
        """The client has set its breakpoints."""
        self._configured.set()

    def client_left(self, session: Session) -> None:
        """The client is gone."""
        with self._lock:
            if self._session is session:
                self._session = self._arguments = None
                self._configured.clear()

    def process_ends(self, process: int, outermost: FrameType | None) -> None:
        """A child that was forked has no client."""
        if os.getpid() == process:
            self.program_ends(exit_code(outermost))

    def program_ends(self, code: int | None) -> None:
        """Tells the client, which may hang up then."""
        session = self._session
        if session is None or session.leaving:
            return
        self.client_left(session)
        if code is not None:
            session.event("exited", {"exitCode": code})
        session.event("terminated")
        until = monotonic() + FAREWELL_S
        while not session.leaving and monotonic() < until:
            sleep(POLL_S)

    def wait(self, timeout: float | None) -> bool:
        return self._configured.wait(timeout)

    # --- runs of the program ---

    def run(
        self, program: Program, graph: str | None, inputs: Any, settings: RunSettings
    ) -> Result | None:
        """A run under the debugger; None where nobody wants to see it."""
        session, arguments = self._session, self._arguments
        if session is None or arguments is None or session.state is not State.IDLE:
            return None
        if not kind_of(settings.device).computes or not self._running.acquire(blocking=False):
            return None
        try:
            return self._debugged(session, arguments, program, graph, inputs, settings)
        finally:
            self._running.release()

    def _debugged(
        self, session: Session, arguments: AttachArguments, program, graph, inputs,
        settings: RunSettings,
    ) -> Result:  # fmt: skip
        from opstep.api.debugging import Debugger, debugged

        if arguments.mode is not None:
            settings = replace(settings, mode=arguments.mode)
        debuggee = session.debuggee
        assert debuggee is not None
        debugger = Debugger(
            program, graph, inputs, stop_on_entry=debuggee.pauses_next,
            stop_at_end=arguments.stop_at_end, **debugged(settings),
        )  # fmt: skip
        debugger.view = session.per_session(SourceView).view
        session.inbox.own()
        began = perf_counter()
        try:
            with session.turn:
                debuggee.begin(debugger)
                debuggee.go(debuggee.started)
                while session.state is State.STOPPED and (job := session.inbox.get()):
                    job()
                debuggee.finish_detached()
        finally:
            debuggee.release()
            session.inbox.disown()
        if debuggee.error is not None:
            raise debuggee.error
        if debuggee.terminated:
            raise OpstepError("the run was ended from the debugger")
        return result_of(debugger, perf_counter() - began)


def result_of(debugger: Debugger, seconds: float) -> Result:
    """What `Program.run` returns."""
    from opstep.api.job import Result

    if isinstance(debugger.outputs, Result):
        return debugger.outputs
    found = debugger.result()
    plan = debugger.machine.history.finished[-1][1].plan
    arrays = [array.copy() for array in found.values()]
    return Result(list(found), arrays, plan, seconds, [])


_attached = Attached()  # of this process: it has one door


def listen(port: int = 0, host: str = "127.0.0.1") -> int:
    """Lets an editor attach, on a port of this machine (0: a free one); gives the port.

    Raises `InputError` where the port cannot be had, or the program listens already.
    """
    if _attached.listener is not None:
        raise InputError(f"the program listens on port {_attached.listener.port} already")
    listener = Listener(host, port, None, _attached)
    _attached.listener = listener
    threading.Thread(target=listener.run, name="opstep debug", daemon=True).start()
    programs.interposed = _attached.run
    atexit.unregister(_attached.process_ends)
    atexit.register(_attached.process_ends, os.getpid(), outermost_frame())
    return listener.port


def wait_for_client(timeout: float | None = None) -> bool:
    """Waits until an editor is attached and has set its breakpoints; False after `timeout` seconds.

    Raises `InputError` where the program does not listen.
    """
    if _attached.listener is None:
        raise InputError("nobody can attach yet", hint="call opstep.debug.listen(port) first")
    return _attached.wait(timeout)


def port() -> int | None:
    """The port at which the program listens; None where it does not."""
    return _attached.listener.port if _attached.listener is not None else None


def is_attached() -> bool:
    """Whether a client is there that sees graphs, and none runs."""
    session = _attached.session
    return session is not None and session.state is State.IDLE


def pause_next(wanted: bool) -> None:
    """Whether the next run of a graph stops before its first op."""
    session = _attached.session
    if session is not None and session.debuggee is not None:
        session.debuggee.pauses_next = wanted


def program_ends(code: int) -> None:
    """Tells the client the exit code of the program, which is over."""
    _attached.program_ends(code)


def stop_listening() -> None:
    """Nobody can attach any more; who is attached stays."""
    if _attached.listener is not None:
        _attached.listener.close()
        _attached.listener = None
