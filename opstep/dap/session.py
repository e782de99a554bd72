"""One client, from ``initialize`` until it is gone.

Two threads work for a session. One reads: it answers what is wrong, and what is quick and must not
wait (`Request.wire`). The other owns the debuggee and handles all else, one request at a time, in
the order in which they came; while a run goes on the debugger lets it do that between two points.
Any thread sends.
"""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opstep.dap.checking import plain
from opstep.dap.client import Client, Sources, in_launch
from opstep.dap.inbox import Inbox
from opstep.dap.progress import SHOW_AFTER_S, Progress
from opstep.dap.python import launching, proxy
from opstep.dap.references import References
from opstep.dap.registry import (
    BAD_ARGUMENTS,
    INTERNAL,
    MACHINE,
    NO_ANSWER,
    PROGRAM_ERROR,
    UNKNOWN_REQUEST,
    Cancelled,
    DapError,
    Request,
    State,
    requests,
)
from opstep.dap.wire import Wire
from opstep.editors.wire import BadMessage, BrokenStream, Gone
from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.wording import Words, in_python, worded
from opstep.trace.describe import call_name

if TYPE_CHECKING:
    from opstep.dap.debuggee import Debuggee
    from opstep.runtime.debugger.debugger import Debugger
    from opstep.runtime.debugger.frames import Frame

T = TypeVar("T")

LONGEST_TEXT = 4000  # characters of an error that are sent
MOST_OWN_REQUESTS = 100  # requests of ours that wait for an answer


class Forwarder(Protocol):
    """Another server, which messages are handed on to."""

    def forward(self, message: dict[str, Any]) -> None: ...
    def close(self, terminate: bool | None = None) -> None: ...


class HostProgram(Protocol):
    """The Python program that a session is a door to (`opstep.dap.attach`)."""

    def debuggee(self, session: Session, arguments: Any) -> Debuggee: ...
    def debug_python(self, session: Session, message: dict[str, Any]) -> None: ...
    def configured(self) -> None: ...
    def client_left(self, session: Session) -> None: ...


class Session:
    """What handlers get.

    `client` is what it said of itself; `state` where the session stands; `debuggee` what was
    launched or attached to, and `debugger` its run; `references` numbers that hold while it is
    stopped; `sources` texts that no file holds; `attached` the Python program that this is a door
    to, if it is one; `alone`: no other session is in this process.
    """

    def __init__(
        self,
        wire: Wire,
        log: Callable[[str], None] | None = None,
        *,
        alone: bool = False,
        attached: HostProgram | None = None,
    ):
        self.wire = wire
        self.client = Client()
        self.state = State.NEW
        self.debuggee: Debuggee | None = None
        self.references = References()
        self.sources = Sources()
        self.inbox = Inbox()
        self.leaving = False
        self.alone = alone
        self.attached = attached
        self._log = log or (lambda _: None)
        self._per_session: dict[Any, Any] = {}
        self._per_stop: dict[Any, Any] = {}
        self.turn = threading.RLock()  # of who handles a request
        self.greeting: dict[str, Any] = {}  # initialize, as it came
        self.current: dict[str, Any] = {}  # the request that came last, for the owning thread
        self._relay: Forwarder | None = None
        self._local = _Handling()
        self._waiting: set[int] = set()  # requests that came and are not answered yet
        self._cancelled: set[int] = set()
        self._own_requests: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._progress: dict[str, Progress] = {}
        self._lock = threading.Lock()

    # --- what handlers use ---

    @property
    def debugger(self) -> Debugger:
        """The run under control. Raises `DapError` where there is none."""
        if self.debuggee is None or self.debuggee.debugger is None:
            raise DapError(f"not possible while {self.state.value}")
        return self.debuggee.debugger

    @property
    def folder(self) -> Path:
        """What relative paths are relative to."""
        return self.debuggee.folder if self.debuggee else Path.cwd()

    @property
    def words(self) -> Words:
        """How arguments are called: a program that one attaches to gives them in Python."""
        return in_launch if self.attached is None else in_python

    def worded(self, error: OpstepError) -> str:
        """All that it says, in these words."""
        return error.text(self.words)

    def event(self, event: str, body: Any = None) -> None:
        """Sends an event; from any thread. A client that is gone hears nothing, and that is all."""
        message = {"type": "event", "event": event}
        self._send(message if body is None else message | {"body": plain(body)})

    def output(self, text: str, category: str = "console", **more: Any) -> None:
        """Sends text for the debug console; a line if it does not end with one."""
        text = text if text.endswith("\n") else text + "\n"
        self.event("output", {"category": category, "output": text, **more})

    def after(self, action: Callable[[], None]) -> None:
        """What happens behind the response of the request that is being handled."""
        self._local.after.append(action)

    def per_stop(self, kind: Callable[[Session], T]) -> T:
        """``kind(session)``, made once a stop and dropped when the run goes on."""
        if kind not in self._per_stop:
            self._per_stop[kind] = kind(self)
        return self._per_stop[kind]

    def forget(self, kind: Callable[[Session], Any]) -> None:
        """What was made once a stop is made anew when it is wanted."""
        self._per_stop.pop(kind, None)

    def per_session(self, kind: Callable[[Session], T]) -> T:
        """``kind(session)``, made once a session. Its `close`, if there is one, ends it."""
        if kind not in self._per_session:
            self._per_session[kind] = kind(self)
        return self._per_session[kind]

    def invalidate(self) -> None:
        """The run goes on, or its past was changed: what was told of this stop holds no longer."""
        self.references.clear()
        self._per_stop.clear()

    def source(self, path: str, text: str = "") -> dict[str, Any]:
        """A ``Source`` for a path as frames and breakpoints have it, and the text found there."""
        return self.sources.describe(path, text, self.client, self.folder)

    def source_of(self, frame: Frame) -> dict[str, Any]:
        """Of a frame; of a function of Python with its place in the graph, for views."""
        if frame.python is None:
            return self.source(frame.path, frame.source.text if frame.source else "")
        graph = frame._replace(python=None)
        place = {
            "name": call_name(graph.activation.plan, graph.frame),
            "path": self.source_of(graph).get("path", ""),
            "line": self.client.line(graph.line),
        }
        return self.source(frame.path) | {"adapterData": place}

    def check_cancelled(self) -> None:
        """Raises `Cancelled` if the request that is being handled was: for what takes long."""
        if self._local.seq in self._cancelled or self.leaving:
            raise Cancelled

    def progress(
        self, title: str, cancellable: bool = False, after: float = SHOW_AFTER_S
    ) -> Progress:
        """A progress bar, as a context manager, where the client shows such. What takes less than
        `after` seconds shows none.
        """
        event = self.event if self.client.supports_progress_reporting else None
        return Progress(event, title, self._local.seq, cancellable, self._progress, after)

    def shows(self, action: Callable[[], T]) -> T:
        """Does something that the user asked for by hand: what goes wrong is shown."""
        try:
            return action()
        except OpstepError as error:
            found = self._problem(error)
            places = list(self._places(error))
            if self.client.shows_places:  # by its extension
                raise DapError(found.text, found.id, short=found.short, problems=places) from None
            self.output(found.text, "important")
            raise DapError(found.text, found.id, show=True, short=found.short) from None

    def _places(self, error: OpstepError) -> Iterator[dict[str, Any]]:
        """Where in files, and what is wrong there."""
        for d in error.diagnostics:
            if d.source is None or d.span is None:
                continue
            (line, column), (end_line, end_column) = map(d.source.locate, d.span)
            message, hint = worded(d.message, self.words), worded(d.hint, self.words)
            yield {
                "path": self.source(d.source.path, d.source.text).get("path", d.source.path),
                "line": line, "column": column, "endLine": end_line, "endColumn": end_column,
                "message": f"{message} ({hint})" if hint else message,
            }  # fmt: skip

    def ask(
        self, command: str, arguments: Any, then: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """Sends a request to the client (``startDebugging``, ``runInTerminal``). `then` gets the
        response on the thread that owns the debuggee.
        """
        with self._lock:
            if len(self._own_requests) >= MOST_OWN_REQUESTS:
                raise DapError("the client answers no requests")
            message = {"type": "request", "command": command, "arguments": plain(arguments)}
            seq = self._send(message)
            if seq and then:
                self._own_requests[seq] = then

    # --- reading ---

    def read_all(self) -> None:
        """Reads and dispatches until the client is gone or has said goodbye."""
        while not self.leaving:
            try:
                message = self.wire.read()
                if message is None:
                    break
                self._receive(message)
            except BadMessage as error:
                self.output(f"opstep cannot read a message: {error}", "important")
            except BrokenStream as error:
                self.output(f"opstep ends the session: {error}", "important")
                break

    def relay(self, relay: Forwarder | None) -> None:
        """From now on messages go to and come from another server; None: they are ours again."""
        self._relay = relay

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if self._relay:
            self._relay.forward(message)
        elif kind == "request":
            self._receive_request(message)
        elif kind == "response":
            self._receive_response(message)
        else:
            raise BadMessage("it is neither a request nor a response")

    def _receive_request(self, message: dict[str, Any]) -> None:
        seq, command = message.get("seq"), message.get("command")
        if type(seq) is not int or not 0 <= seq < 2**31:  # some clients begin at 0
            raise BadMessage("a request has a seq of 0 or above")
        if not isinstance(command, str):
            self._answer_error(seq, "", DapError("a request has a command", BAD_ARGUMENTS))
            return
        declared = requests().get(command)
        if declared is None:
            self._answer_error(seq, command, unknown(command))
            return
        if launching.is_python(command, message.get("arguments")):
            self._settle()
            if self.state is State.READY:
                self._debug_python(seq, message)
                return
        if declared.wire:
            self._handle(seq, declared, message.get("arguments"))
            return
        if command == "initialize":
            self.greeting = message
        self.current = message
        self._waiting.add(seq)
        if not self.inbox.put(lambda: self._handle(seq, declared, message.get("arguments"))):
            self._waiting.discard(seq)
            self._answer_error(seq, command, DapError("too many requests wait", short="busy"))
        elif self.state is State.RUNNING and self.debuggee:
            self.debuggee.later(self.drain)

    def _settle(self) -> None:
        """Waits for the answer to ``initialize``, for which not all clients wait."""
        settled = threading.Event()
        if self.state is State.NEW and self.greeting and self.inbox.put(settled.set):
            settled.wait()

    def _debug_python(self, seq: int, message: dict[str, Any]) -> None:
        """From now on the client talks to debugpy's adapter: through a proxy, which is the client
        where this process is the program.
        """
        if self.attached is not None:
            try:
                self.attached.debug_python(self, message)
            except DapError as error:
                self._answer_error(seq, message["command"], error)
            return
        found = proxy.Proxy(self.wire, self.greeting)
        self.relay(found)
        found.forward(message)

        def end() -> None:
            found.is_over.wait()
            self.leave()

        threading.Thread(target=end, name="opstep script", daemon=True).start()

    def _receive_response(self, message: dict[str, Any]) -> None:
        seq = message.get("request_seq")
        with self._lock:
            then = self._own_requests.pop(seq, None) if type(seq) is int else None
        if then:
            self.inbox.put(lambda: self.guard(lambda: then(message)))
            if self.state is State.RUNNING and self.debuggee:
                self.debuggee.later(self.drain)

    # --- handling ---

    def own(self) -> None:
        """Handles requests on this thread, which owns the debuggee, until the session ends."""
        self.inbox.own()
        try:
            while job := self.inbox.get():
                with self.turn:
                    job()
        finally:
            self.inbox.disown()

    def drain(self) -> None:
        """Handles what waits; between two points of a run."""
        while job := self.inbox.poll():
            job()

    def _handle(self, seq: int, declared: Request, arguments: Any) -> None:
        """One request, and what it wants done behind its response."""
        local = self._local
        before = local.seq, local.after
        actions: list[Callable[[], None]] = []
        local.seq, local.after = seq, actions
        try:
            self._respond(seq, declared, arguments)
        finally:
            local.seq, local.after = before
            self._waiting.discard(seq)
            self._cancelled.discard(seq)
        for action in actions:
            self.guard(action)

    def _respond(self, seq: int, declared: Request, arguments: Any) -> None:
        try:
            if seq in self._cancelled:
                raise Cancelled
            declared.check_state(self.state)
            found = declared.handler(self, **declared.checked(arguments))
            if found is NO_ANSWER:
                return
            body = plain(found)
        except Exception as error:
            self._local.after.clear()
            self._answer_error(seq, declared.command, self._problem(error))
            return
        answer = {"type": "response", "request_seq": seq, "success": True}
        answer["command"] = declared.command
        self._send(answer if body is None else answer | {"body": body})

    def guard(self, action: Callable[[], None]) -> None:
        """Runs what belongs to no request any more; says what goes wrong."""
        try:
            action()
        except Exception as error:
            self.output(self._problem(error).text, "stderr")

    def _problem(self, error: Exception) -> DapError:
        """Any error as one that can be sent."""
        if isinstance(error, DapError):
            return error
        if isinstance(error, OpstepError):
            return self._program_error(error)
        if isinstance(error, MemoryError):
            return DapError(f"out of memory: {error}" if str(error) else "out of memory", MACHINE)
        self._log(traceback.format_exc())
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        text = f"internal error: {what}: this is a bug in opstep, please report it"
        return DapError(text, INTERNAL)

    def _program_error(self, error: OpstepError) -> DapError:
        """What a window shows: the source lines too, where there are any."""
        first = error.diagnostics[0]
        message, hint = worded(first.message, self.words), worded(first.hint, self.words)
        text = f"{message} ({hint})" if hint else message
        if len(error.diagnostics) > 1 or first.span is not None:
            text = self.worded(error)
        at_fault = MACHINE if isinstance(error, DeviceError) else PROGRAM_ERROR
        return DapError(text, at_fault, short=message)

    # --- cancelling ---

    def cancel(self, seq: int | None, progress: str | None) -> None:
        """Of a request that waits or is being handled, or of what a progress bar stands for."""
        if seq in self._waiting:
            self._cancelled.add(seq)
        found = self._progress.get(progress or "")
        if found:
            found.cancelled = True

    # --- the end ---

    def leave(self, terminate: bool | None = None) -> None:
        """The client is gone or says goodbye: nothing is left behind but a run that is to go on."""
        if self.leaving:
            return
        self.leaving = True
        if self.debuggee is not None:
            self.debuggee.leave(terminate)
        if self._relay is not None:
            self._relay.close(terminate)
        for part in list(self._per_session.values()):
            close = getattr(part, "close", None)
            if close is not None:
                close()
        self.inbox.close()

    # --- sending ---

    def _answer_error(self, seq: int, command: str, error: DapError) -> None:
        text = error.text[:LONGEST_TEXT]
        details: dict[str, Any] = {"id": error.id, "format": text, "showUser": error.show}
        if error.problems is not None:
            details["variables"] = {"problems": json.dumps(error.problems)}  # they are strings
        self._send({
            "type": "response",
            "request_seq": seq,
            "success": False,
            "command": command[:LONGEST_TEXT],
            "message": error.short[:LONGEST_TEXT],
            "body": {"error": details},
        })  # fmt: skip

    def _send(self, message: Mapping[str, Any]) -> int:
        """The number that it was sent under; 0 if nobody listens."""
        with suppress(Gone):
            return self.wire.write(message)
        return 0


class _Handling(threading.local):
    """What this thread is handling: the number of the request, and what follows its response."""

    def __init__(self) -> None:
        self.seq = 0
        self.after: list[Callable[[], None]] = []


def unknown(command: str) -> DapError:
    """For a request that nothing handles."""
    near = did_you_mean(command, requests())
    text = f"there is no request {command[:80]}{f': {near}' if near else ''}"
    return DapError(text, UNKNOWN_REQUEST)
