"""``launch`` of a Python script: a process of its own runs it with opstep under its modules."""

from __future__ import annotations

import codecs
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from opstep.dap.registry import DapError
from opstep.dap.relay import Relay
from opstep.editors.server import LOOPBACK
from opstep.editors.wire import Gone

if TYPE_CHECKING:
    from opstep.dap.launching import LaunchArguments
    from opstep.dap.session import Session

MODULE = ("-P", "-m", "opstep")  # as it is installed, not what the present folder has
LISTENING = re.compile(r"^listening on \S+:(\d+)$")
CHUNK = 1 << 14  # bytes of output in an event
POLL_S = 0.05
PATIENCE_S = 3  # how long a script may take to end by itself
OUTPUT_S = 2  # how long its output is read when it has ended: its children may hold the pipe
MOST_SAID = 4000  # characters of what a script wrote that are told as a reason


def is_script(program: str) -> bool:
    """Whether ``program`` of a launch is a script, not a graph."""
    return program.lower().endswith((".py", ".pyw"))


class ScriptRun:
    """A script that runs, and the session's messages to and from it (`Relay`). It hears ``attach``
    in place of ``launch``. Its end, `terminate` and `disconnect` are ours.
    """

    def __init__(self, session: Session, arguments: LaunchArguments):
        self._session = session
        self._arguments = arguments
        self._relay: Relay | None = None
        self._waiting: list[dict[str, Any]] = []  # that came before it listens
        self._lock = threading.Lock()
        self._port: int | None = None
        self._said = ""  # on standard error, before it listens
        self._is_quiet = False  # nobody hears its output any more
        self.process = self._started()
        self._readers = [self._reader("stdout", None), self._reader("stderr", self._first_words)]

    # --- the process ---

    def _started(self) -> subprocess.Popen[bytes]:
        arguments = self._arguments
        program = Path(arguments.at(arguments.program))
        python = _python(arguments)
        if not program.is_file():
            raise DapError(f"program: there is no file {program}", show=True)
        if not arguments.folder.is_dir():
            raise DapError(f"cwd: there is no folder {arguments.folder}", show=True)
        try:
            return subprocess.Popen(
                [python, *MODULE, *_options(arguments), str(program), *arguments.args],
                cwd=arguments.folder, env=_environment(arguments),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise DapError(f"{python} could not be started: {error}", show=True) from None

    def _reader(self, category: str, first: Callable[[str], str] | None) -> threading.Thread:
        """Hands on what the script writes, as soon as it does."""

        def read(stream: IO[bytes]) -> None:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while data := cast(Any, stream).read1(CHUNK):
                text = decoder.decode(data)
                text = first(text) if first else text
                if text and not self._is_quiet:
                    self._session.event("output", {"category": category, "output": text})

        stream = getattr(self.process, category)
        thread = threading.Thread(target=read, args=(stream,), name=category, daemon=True)
        thread.start()
        return thread

    def _first_words(self, text: str) -> str:
        """Keeps back standard error until the line with the port; gives what is to be shown."""
        if self._port is not None or self._arguments.no_debug:
            return text
        lines = (self._said + text).splitlines(keepends=True)
        for number, line in enumerate(lines):
            if line.endswith("\n") and (found := LISTENING.match(line.strip())):
                self._said = ""
                self._port = int(found[1])
                return "".join(lines[:number] + lines[number + 1 :])
        self._said = "".join(lines)
        return ""

    # --- the beginning ---

    def connect(self) -> None:
        """Waits until the script is about to start, and lets the client talk to it. Raises
        `DapError` where it does not come so far.
        """
        session = self._session
        while self._port is None and self.process.poll() is None:
            if session.leaving:
                self.kill()
            self._readers[1].join(POLL_S)
        if self._port is None:
            self._readers[1].join(OUTPUT_S)
            raise DapError(self._obstacle(), show=True)
        given = session.current["arguments"]
        attach = {k: given[k] for k in ("stopOnEntry", "stopAtEnd", "sourceView") if k in given}
        attach |= {"mode": self._arguments.mode, "cwd": str(self._arguments.folder)}
        opening = session.current | {"command": "attach", "arguments": attach}
        # What the debugger of scripts cannot do; clients end the session and start another one.
        session.event("capabilities", {"capabilities": {"supportsRestartRequest": False}})
        with self._lock:
            relay = Relay(session, LOOPBACK[0], self._port, opening, self._wait_for_end)
            self._relay = relay
            for message in self._waiting:
                relay.forward(message)
        self._tell_of_process()

    def _tell_of_process(self) -> None:
        body = {"name": self._arguments.program, "systemProcessId": self.process.pid}
        self._session.event("process", body | {"isLocalProcess": True, "startMethod": "launch"})

    def _obstacle(self) -> str:
        """Why the script did not start."""
        said = self._said.strip()[-MOST_SAID:]
        python = _python(self._arguments)
        if "No module named opstep" in said:
            return f"{python} has no opstep: install it there, or name another Python (python)"
        return said or f"{python} ended with {_code(self.process.returncode)} and said nothing"

    # --- messages ---

    def forward(self, message: dict[str, Any]) -> None:
        """From the client. `Session` calls this in place of its own handlers."""
        command = message.get("command") if message.get("type") == "request" else None
        if command == "terminate":
            self._answer(message)
            self._end()
        elif command == "disconnect":
            self._answer(message)
            asked = (message.get("arguments") or {}).get("terminateDebuggee")
            goes_on = self._arguments.on_disconnect == "continue" if asked is None else not asked
            self._session.leave(not goes_on)
        elif self._arguments.no_debug:
            self._answer(message, "not possible without debugging")
        else:
            with self._lock:
                if self._relay is None:
                    self._waiting.append(message)
                    return
            self._relay.forward(message)

    def _answer(self, message: dict[str, Any], refusal: str = "") -> None:
        answer = {"type": "response", "request_seq": message.get("seq"), "success": not refusal}
        answer |= {"message": refusal} if refusal else {}
        with suppress(Gone):
            self._session.wire.write(answer | {"command": message.get("command", "")})

    def close(self, terminate: bool | None = None) -> None:
        """The client is gone: the script ends, or goes on by itself."""
        self._is_quiet = True
        if terminate is None:
            terminate = self._arguments.on_disconnect == "terminate"
        if terminate:
            self.kill()
        if self._relay is not None:
            self._relay.close()
        self.process.wait()

    # --- the end ---

    def _end(self) -> None:
        """Ends the script; a thread waits for it already."""
        threading.Thread(target=self.kill, name="opstep script", daemon=True).start()

    def kill(self) -> None:
        """Ends the script and all that it started: nicely, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
                return

    def _wait_for_end(self) -> None:
        """The script listens no more: what it still says is told, and how it ended."""
        self.process.wait()
        for reader in self._readers:
            reader.join(OUTPUT_S)
        if not self._session.leaving:
            self._session.event("exited", {"exitCode": _code(self.process.returncode)})
            self._session.event("terminated")

    def run(self) -> None:
        """``noDebug``: to its end."""
        self._tell_of_process()
        threading.Thread(target=self._wait_for_end, name="opstep script", daemon=True).start()


def _python(arguments: LaunchArguments) -> str:
    """The Python that runs the script: a path is relative to `cwd`, a name is looked up."""
    python = arguments.python or sys.executable
    return arguments.at(python) if os.path.dirname(python) else python


def _options(arguments: LaunchArguments) -> list[str]:
    """``opstep debug --listen 0 …``, or ``opstep run …``."""
    words = ["run"] if arguments.no_debug else ["debug", "--listen", "0", "--wait"]
    for name in ("kernels", "threads", "mode", "streams", "alloc", "fill", "sync"):
        value = getattr(arguments, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    if arguments.no_debug:
        for name in ("workspace", "trace"):
            if value := getattr(arguments, name):
                words += [f"--{name}", arguments.at(value)]
    patterns = arguments.module
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        words += ["--module", pattern]
    return words


def _environment(arguments: LaunchArguments) -> dict[str, str]:
    """Ours, and what is asked for. Output comes at once, also where it is no terminal's."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8")
    for name, value in arguments.env.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def _code(returned: int) -> int:
    """The exit code as shells give it."""
    return returned if returned >= 0 else 128 - returned
