"""A small client of the debugger's server. Every message, both ways, is held against the schema.

    with Client.over_socket() as client:
        client.start("model.opg", inputs="random", breakpoints={"model.opg": [12]})
        stop = client.expect_stop("breakpoint")
        assert client.names() == ["main"]

`MARKER` comments in programs say where breakpoints go: ``c = relu(x)  # break: here``.
"""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dap.schema import check_message

from opstep.dap.server import serve
from opstep.dap.wire import Wire, wire_of
from opstep.editors.wire import Gone

PATIENCE_S = 60.0
MARKER = re.compile(r"#.*\bbreak: (\w+)")


class Refused(AssertionError):
    """An error response: `message` is its short form, `text` what the user is shown."""

    def __init__(self, response: Mapping[str, Any]):
        error = response.get("body", {}).get("error", {})
        self.message: str = response.get("message", "")
        self.text: str = error.get("format", "")
        self.id: int = error.get("id", 0)
        self.shown: bool = error.get("showUser", False)
        self.problems: list[dict[str, Any]] = json.loads(
            error.get("variables", {}).get("problems", "[]")
        )
        super().__init__(f"{response['command']}: {self.text}")


class Client:
    """Of one session. `log` has what the server wrote about itself: it must stay empty."""

    def __init__(self, wire: Wire, log: list[str] | None = None, process: Any = None):
        self.wire = wire
        self.log = log if log is not None else []
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.capabilities: dict[str, Any] = {}
        self.reverse: list[dict[str, Any]] = []  # requests of the server
        self._seen = 0  # events that were expected, and came
        self._responses: dict[int, dict[str, Any]] = {}
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ended = False
        self.problems: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def over_socket(cls, **options: Any) -> Client:
        """A session in this process, over a real socket."""
        with socket.create_server(("127.0.0.1", 0)) as door:
            ours = socket.create_connection(door.getsockname())
            theirs, _ = door.accept()
        log: list[str] = []
        thread = threading.Thread(target=_serve, args=(theirs, log, options), daemon=True)
        thread.start()
        client = cls(_wire(ours), log)
        client.socket, client.thread = ours, thread
        return client

    @classmethod
    def connect(cls, port: int) -> Client:
        """To a server that listens."""
        ours = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        ours.settimeout(None)
        client = cls(_wire(ours))
        client.socket = ours
        return client

    @classmethod
    def over_stdio(cls, *arguments: str, **more: Any) -> Client:
        """``opstep dap`` as an editor starts it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "opstep", "dap", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **more,
        )  # fmt: skip
        assert process.stdin and process.stdout
        return cls(Wire(process.stdout, process.stdin), None, process)

    socket: Any = None
    thread: threading.Thread | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close()
        if kind is None:
            assert self.problems == []
            assert not self.log, self.log[0]

    def close(self) -> None:
        """As a client does that ends well."""
        if not self._ended:
            with suppress(AssertionError, OSError, Gone, queue.Empty):
                self.request("disconnect")
        self.vanish()
        if self.thread:
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive(), "the session did not end"
        if self.process:
            assert self.process.wait(PATIENCE_S) == 0, self.process.stderr.read().decode()
            self.process.stderr.close()

    def vanish(self) -> None:
        """As a client does that is killed."""
        if self.socket:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
        if self.process:
            with suppress(BrokenPipeError):  # it has ended before it read all
                self.process.stdin.close()

    # --- messages ---

    def _read(self) -> None:
        while message := self.wire.read():
            try:
                check_message(message)
            except AssertionError as error:
                self.problems.append(str(error))
            self._inbox.put(message)
        self._inbox.put(None)

    def _next(self, until: float) -> None:
        """Takes one message in."""
        message = self._inbox.get(timeout=max(until - time.monotonic(), 0.01))
        if message is None:
            self._ended = True
        elif message["type"] == "event":
            self.events.append(message)
        elif message["type"] == "response":
            self._responses[message["request_seq"]] = message
        else:
            self.reverse.append(message)

    def send(self, command: str, arguments: Any = None, check: bool = True) -> int:
        """Sends a request and does not wait; gives its number."""
        message: dict[str, Any] = {"type": "request", "command": command}
        if arguments is not None:
            message["arguments"] = arguments
        if check:
            check_message({"seq": 1, **message})
        return self.wire.write(message)

    def response(self, seq: int, patience: float = PATIENCE_S) -> dict[str, Any]:
        """The response to a request that was sent, whatever it says."""
        until = time.monotonic() + patience
        while seq not in self._responses:
            assert not self._ended, "the server has closed the connection"
            try:
                self._next(until)
            except queue.Empty:
                raise AssertionError(f"no response to request {seq}") from None
        return self._responses.pop(seq)

    def request(self, command: str, arguments: Any = None, **more: Any) -> Any:
        """The body of the response. Raises `Refused` for an error response."""
        check = more.pop("check", True)
        given = None if arguments is None and not more else {**(arguments or {}), **more}
        response = self.response(self.send(command, given, check))
        assert response["command"] == command
        if not response["success"]:
            raise Refused(response)
        return response.get("body")

    def answer(self, request: Mapping[str, Any], body: Any = None, success: bool = True) -> None:
        """To a request of the server."""
        message = {"type": "response", "request_seq": request["seq"], "success": success}
        message["command"] = request["command"]
        self.wire.write(message | ({"body": body} if body is not None else {}))

    def expect_request(self, command: str, patience: float = PATIENCE_S) -> dict[str, Any]:
        """The next request of the server."""
        until = time.monotonic() + patience
        while True:
            for k, message in enumerate(self.reverse):
                if message["command"] == command:
                    return self.reverse.pop(k)
            assert not self._ended
            self._next(until)

    def expect(self, event: str, patience: float = PATIENCE_S, **body: Any) -> dict[str, Any]:
        """The body of the next such event; those before it are passed."""
        until = time.monotonic() + patience
        while True:
            while self._seen < len(self.events):
                found = self.events[self._seen]
                self._seen += 1
                got = found.get("body", {})
                if found["event"] == event and body.items() <= got.items():
                    return got
                unexpected = found["event"] in ("terminated", "stopped")
                assert not unexpected or event == found["event"], f"{found} instead of {event}"
            assert not self._ended, f"the server has closed the connection; no {event}"
            try:
                self._next(until)
            except queue.Empty:
                raise AssertionError(f"no event {event}; {self.events[-3:]}") from None

    def expect_any(self, *events: str, patience: float = PATIENCE_S) -> str:
        """Which of these events comes first."""
        until = time.monotonic() + patience
        while True:
            while self._seen < len(self.events):
                self._seen += 1
                if self.events[self._seen - 1]["event"] in events:
                    return self.events[self._seen - 1]["event"]
            assert not self._ended, "the server has closed the connection"
            self._next(until)

    def expect_stop(self, reason: str | None = None) -> dict[str, Any]:
        """The next stop, which is for that reason."""
        stop = self.expect("stopped")
        assert reason in (None, stop["reason"]), stop
        return stop

    def expect_end(self, code: int = 0) -> None:
        """The run ends."""
        assert self.expect("exited")["exitCode"] == code, self.output()
        self.expect("terminated")

    def expect_closed(self, patience: float = PATIENCE_S) -> None:
        """The server closes the connection; what it says before is taken in."""
        until = time.monotonic() + patience
        while not self._ended:
            try:
                self._next(until)
            except queue.Empty:
                raise AssertionError("the server keeps the connection open") from None

    def output(self, category: str | None = None) -> str:
        """All that was written so far."""
        bodies = [e["body"] for e in self.events if e["event"] == "output"]
        return "".join(b["output"] for b in bodies if category in (None, b.get("category")))

    def expect_output(self, text: str, category: str | None = None) -> None:
        """Waits until all that was written ends with that: a script's pipe is read beside it."""
        until = time.monotonic() + PATIENCE_S
        while not self.output(category).endswith(text):
            try:
                self._next(until)
            except queue.Empty:
                raise AssertionError(f"{self.output(category)!r} does not end with that") from None

    # --- what most tests begin with ---

    def initialize(self, **more: Any) -> dict[str, Any]:
        arguments = {
            "adapterID": "opstep", "clientID": "test", "linesStartAt1": True,
            "columnsStartAt1": True, "pathFormat": "path", "supportsVariableType": True,
            "supportsVariablePaging": True, "supportsMemoryReferences": True,
            "supportsProgressReporting": True, "supportsInvalidatedEvent": True,
            "supportsMemoryEvent": True, "supportsStartDebuggingRequest": True,
        }  # fmt: skip
        self.capabilities = self.request("initialize", arguments | more)
        return self.capabilities

    def launch(self, program: str | Path, **arguments: Any) -> None:
        """initialize and launch, until breakpoints can be set."""
        if not self.capabilities:
            self.initialize()
        self.request("launch", {"program": str(program), **arguments})
        self.expect("initialized")

    def attach(self, **arguments: Any) -> None:
        """initialize and attach, until breakpoints can be set."""
        self.initialize()
        self.request("attach", arguments)
        self.expect("initialized")

    def start(
        self,
        program: str | Path,
        *,
        breakpoints: Iterable[int | str | Mapping[str, Any]] = (),
        functions: Iterable[str] = (),
        filters: Iterable[str] = (),
        **arguments: Any,
    ) -> list[dict[str, Any]]:
        """The whole way to the first stop, which is not waited for. `breakpoints`: lines, names of
        markers, or whole `SourceBreakpoint`s; what the server says of them is returned.
        """
        self.launch(program, **arguments)
        told = self.set_breakpoints(program, breakpoints)
        if functions:
            named = [{"name": name} for name in functions]
            told += self.request("setFunctionBreakpoints", breakpoints=named)["breakpoints"]
        self.request("setExceptionBreakpoints", filters=list(filters))
        self.request("configurationDone")
        return told

    def set_breakpoints(
        self, program: str | Path, wanted: Iterable[int | str | Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        markers = markers_of(program)
        given = [
            dict(w) if isinstance(w, Mapping) else {"line": markers[w] if isinstance(w, str) else w}
            for w in wanted
        ]
        source = {"path": str(program)}
        return self.request("setBreakpoints", source=source, breakpoints=given)["breakpoints"]

    def go(self, command: str = "continue", reason: str | None = None, **more: Any) -> Any:
        """Lets it run, and waits for the next stop."""
        self.request(command, {"threadId": 1, **more})
        return self.expect_stop(reason)

    def stack(self, thread: int = 1) -> list[dict[str, Any]]:
        return self.request("stackTrace", threadId=thread)["stackFrames"]

    def where(self) -> tuple[str, int]:
        """Graph and line of the innermost frame, whatever its call is for."""
        frame = self.stack()[0]
        return frame["name"].rpartition(" = ")[2], frame["line"]


def markers_of(program: str | Path) -> dict[str, int]:
    """Lines of a program by the names that its comments give them."""
    lines = Path(program).read_text(encoding="utf-8").splitlines() if program else []
    found = ((number, MARKER.search(line)) for number, line in enumerate(lines, 1))
    return {match[1]: number for number, match in found if match}


def _wire(ours: socket.socket) -> Wire:
    return wire_of(ours)


def _serve(theirs: socket.socket, log: list[str], options: dict[str, Any]) -> None:
    with theirs:
        try:
            serve(wire_of(theirs), log.append, **options)
        finally:  # closing alone does nothing while files that were made of it live on
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
