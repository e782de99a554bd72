"""The process of a script that is launched: on pipes of ours, or in a terminal of the client's."""

from __future__ import annotations

import codecs
import math
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import DapError
from opstep.editors.wire import Gone

if TYPE_CHECKING:
    from opstep.dap.launching import LaunchArguments
    from opstep.dap.session import Session

# Not what the present folder has, but opstep as it is installed.
LAUNCHED = "opstep.cli.launched"
MODULE = ("-P", "-m", LAUNCHED)
FIND = f"from importlib.util import find_spec; raise SystemExit(find_spec({LAUNCHED!r}) is None)"
FIND_S = 120
CHUNK = 1 << 14  # bytes of output in an event
POLL_S = 0.05
PATIENCE_S = 3  # how long a script may take to end by itself
OUTPUT_S = 2  # how long its output is read when it has ended: its children may hold the pipe
SLOW_S = 15  # where it takes longer to start, that is told
MOST_SAID = 4000  # characters of what a script wrote that are told as a reason


class Door:
    """Where the script finds us: a socket that has no file, and lets in nobody but this user."""

    def __init__(self) -> None:
        self.name = f"opstep-{token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(1)

    def wait(self, seconds: float) -> tuple[socket.socket, int] | None:
        """The connection of who came, and its process; None where nobody did."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return None
        connection, _ = self._socket.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        process, user, _ = struct.unpack("iII", credentials)
        if user == os.getuid():
            return connection, process
        connection.close()
        return None

    def close(self) -> None:
        self._socket.close()


class ScriptProcess(ABC):
    """`words`: what is behind ``opstep`` on its command line. `python` runs it."""

    pid = 0

    def __init__(self, session: Session, arguments: LaunchArguments, words: list[str]):
        self.session = session
        self.arguments = arguments
        self.python = _python(arguments)
        self.door = Door()
        self.command = [self.python, *MODULE, self.door.name, *words]

    @abstractmethod
    def start(self) -> None:
        """Raises `DapError` where it cannot be started."""

    def connection(self) -> socket.socket:
        """Waits until it has connected to us. Raises `DapError` where it ends before."""
        slow = time.monotonic() + SLOW_S
        while (found := self.door.wait(POLL_S)) is None:
            if self.session.leaving or self.has_ended():
                raise self.obstacle()
            if time.monotonic() > slow:
                slow = math.inf
                self.session.output(f"{Path(self.arguments.program).name} has not started yet.")
        connection, self.pid = found
        return connection

    @abstractmethod
    def has_ended(self) -> bool:
        """Before it was there."""

    @abstractmethod
    def obstacle(self) -> DapError:
        """Why it did not start."""

    def is_heard(self) -> None:  # noqa: B027 - not all have anything to do then
        """It runs from now on."""

    def let_go(self) -> None:  # noqa: B027 - nor then
        """Waits while it needs us, though nobody hears of it any more."""

    def signal(self, number: int) -> None:
        """To the process and all that it started."""
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number) if self.leads() else os.kill(self.pid, number)

    def leads(self) -> bool:
        """Whether what it started is its process group."""
        return True

    @abstractmethod
    def ends(self) -> bool:
        """Whether it ends soon."""

    @abstractmethod
    def gone(self, told: int | None) -> int | None:
        """Its connection was closed, and it `told` an exit code: gives that which is known."""

    @abstractmethod
    def violence(self) -> str:
        """The signal or error that ended it, and that it is `gone`; "" where it ended by itself."""

    def kill(self) -> None:
        """Ends it and all that it started: nicely, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            if self.ends():
                return


class Piped(ScriptProcess):
    """A child of ours. What it writes are events, its standard input is empty."""

    def __init__(self, session: Session, arguments: LaunchArguments, words: list[str]):
        super().__init__(session, arguments, words)
        self._child: subprocess.Popen[bytes] | None = None
        self._said: str | None = ""  # on standard error, before it runs
        self._is_quiet = False  # nobody hears its output any more
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        try:
            self._child = subprocess.Popen(
                self.command,
                cwd=self.arguments.folder, env=_environment(self.arguments),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise _cannot_start(self.python, error) from None
        self.pid = self._child.pid
        for category, stream in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            self._readers.append(self._reader(category, stream))

    def _reader(self, category: str, stream: Any) -> threading.Thread:
        """Hands on what the script writes, as soon as it does."""

        def read() -> None:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while data := stream.read1(CHUNK):
                self._write(category, decoder.decode(data))

        thread = threading.Thread(target=read, name=category, daemon=True)
        thread.start()
        return thread

    def _write(self, category: str, text: str) -> None:
        with self._lock:
            if category == "stderr" and self._said is not None:
                self._said += text
            elif text and not self._is_quiet:
                self.session.event("output", {"category": category, "output": text})

    def is_heard(self) -> None:
        with self._lock:
            said, self._said = self._said, None
        self._write("stderr", said or "")

    def has_ended(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def obstacle(self) -> DapError:
        if self.session.leaving:
            self.kill()
        code, said = self.gone(None), (self._said or "").strip()[-MOST_SAID:]
        said = said or f"{self.python} ended with {code} and said nothing"
        return DapError(_told(self.python, said), show=True)

    def let_go(self) -> None:
        self._is_quiet = True
        if self._child is not None:
            self._child.wait()

    def ends(self) -> bool:
        if self._child is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(PATIENCE_S)
        return self._child.returncode is not None

    def gone(self, told: int | None) -> int | None:
        """With all that it wrote told."""
        assert self._child is not None
        self._child.wait()
        for reader in self._readers:
            reader.join(OUTPUT_S)
        return _code(self._child.returncode)

    def violence(self) -> str:
        number = -self._child.returncode if self._child and self._child.returncode else 0
        return f"was ended by {_signal_name(number)}" if number > 0 else ""


class InTerminal(ScriptProcess):
    """The client's child, or its shell's: ``runInTerminal``."""

    def __init__(self, session: Session, arguments: LaunchArguments, words: list[str]):
        super().__init__(session, arguments, words)
        self._answer: dict[str, Any] = {}
        self._answered = threading.Event()
        self._is_wanted = True
        self._told: int | None = None

    def start(self) -> None:
        session, arguments = self.session, self.arguments
        if not session.client.supports_run_in_terminal_request:
            text = "the editor opens no terminals for debuggers: only internalConsole is possible"
            raise DapError(f"console: {text}", show=True)
        self._check_python()
        asked = {
            "kind": arguments.console.removesuffix("Terminal"),
            "title": f"opstep: {Path(arguments.program).name}",
            "cwd": str(arguments.folder), "args": self.command, "env": arguments.env,
        }  # fmt: skip
        request = {"type": "request", "command": "runInTerminal", "arguments": asked}
        with suppress(Gone):
            session.wire.write(request)
        while not self._answered.wait(POLL_S) and not session.leaving and self._is_wanted:
            pass
        if not self._answer.get("success"):
            why = self._answer.get("message") or "it said nothing"
            raise DapError(f"console: the editor could not open a terminal: {why}", show=True)

    def _check_python(self) -> None:
        """What goes wrong in a terminal nobody tells us."""
        try:
            found = subprocess.run(
                [self.python, "-P", "-c", FIND],
                cwd=self.arguments.folder, env=_environment(self.arguments), timeout=FIND_S,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise _cannot_start(self.python, error) from None
        if found.returncode:
            said = found.stderr.decode(errors="replace").strip()[-MOST_SAID:]
            raise DapError(_told(self.python, said or "No module named opstep"), show=True)

    def answered(self, response: dict[str, Any]) -> None:
        """By the client, on the thread that reads."""
        self._answer = response
        self._answered.set()

    def leads(self) -> bool:
        return os.getpgid(self.pid) == self.pid  # as shells have it; not all who open terminals

    def kill(self) -> None:
        """Before it is there, nobody waits for it any more."""
        self._is_wanted = False
        super().kill()

    def has_ended(self) -> bool:
        """Its terminal is closed, as far as the client tells."""
        if not self._is_wanted:
            return True
        body = self._answer.get("body") or {}
        found = body.get("processId") or body.get("shellProcessId")
        return type(found) is int and found > 0 and not _lives(found)

    def obstacle(self) -> DapError:
        return DapError("the script did not start: its terminal tells why", show=True)

    def ends(self) -> bool:
        end = time.monotonic() + PATIENCE_S
        while self.pid and _lives(self.pid) and time.monotonic() < end:
            time.sleep(POLL_S)
        return not (self.pid and _lives(self.pid))

    def gone(self, told: int | None) -> int | None:
        self._told = told
        return told

    def violence(self) -> str:
        how = "it was killed, ended by os._exit, or its terminal was closed"
        return f"has ended without an exit code: {how}" if self._told is None else ""


def process_of(session: Session, arguments: LaunchArguments, words: list[str]) -> ScriptProcess:
    """Where `console` wants it."""
    kind = Piped if arguments.console == "internalConsole" else InTerminal
    return kind(session, arguments, words)


def _lives(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def _python(arguments: LaunchArguments) -> str:
    """The Python that runs the script: a path is relative to `cwd`, a name is looked up."""
    python = arguments.python or sys.executable
    if os.path.dirname(python):
        return arguments.at(python)
    return shutil.which(python, path=_environment(arguments).get("PATH")) or python


def _cannot_start(python: str, error: Exception) -> DapError:
    return DapError(f"{python} could not be started: {error}", show=True)


def _told(python: str, said: str) -> str:
    """What a Python said that could not begin, as its user is told."""
    if "No module named opstep" in said or "No module named 'opstep" in said:
        return f"{python} has no opstep: install it there, or name another Python (python)"
    return said


def _environment(arguments: LaunchArguments) -> dict[str, str]:
    """Ours, and what is asked for. Output comes at once, also where it is no terminal's."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8")
    for name, value in arguments.env.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _code(returned: int) -> int:
    """The exit code as shells give it."""
    return returned if returned >= 0 else 128 - returned
