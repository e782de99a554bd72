"""``launch`` of a Python script: a process of its own runs it with opstep under its modules."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import DapError
from opstep.dap.relay import Relay
from opstep.dap.script_process import InTerminal, ScriptProcess, process_of
from opstep.editors.wire import Gone

if TYPE_CHECKING:
    from opstep.dap.launching import LaunchArguments
    from opstep.dap.session import Session


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
        self._waiting: list[dict[str, Any]] | None = []  # that came before it listens
        self._lock = threading.Lock()
        self._is_ending = False  # as the client wants it
        program = Path(arguments.at(arguments.program))
        if not program.is_file():
            raise DapError(f"program: there is no file {program}", show=True)
        if not arguments.folder.is_dir():
            raise DapError(f"cwd: there is no folder {arguments.folder}", show=True)
        words = [*_options(arguments, session.current["arguments"]), str(program)]
        words += arguments.args
        self.process: ScriptProcess = process_of(session, arguments, words)

    # --- the beginning ---

    def begin(self) -> None:
        """Waits until the script is about to start, and lets the client talk to it. Raises
        `DapError` where it does not come so far.
        """
        session, process = self._session, self.process
        try:
            process.start()
            connection = process.connection()
        finally:
            process.door.close()
        self._relay = relay = Relay(session, connection, self._wait_for_end)
        if self._arguments.no_debug:
            process.is_heard()
            return
        if not relay.wait():
            raise process.obstacle()
        process.is_heard()
        given = session.current["arguments"]
        attach = {k: given[k] for k in ("stopOnEntry", "stopAtEnd", "sourceView") if k in given}
        attach |= {"mode": self._arguments.mode, "cwd": str(self._arguments.folder)}
        attach |= {"onDisconnect": self._arguments.on_disconnect}
        opening = session.current | {"command": "attach", "arguments": attach}
        with self._lock:
            relay.start(opening)
            for message in self._waiting or ():
                relay.forward(message)
            self._waiting = None
        self._tell_of_process()

    def run(self) -> None:
        """``noDebug``: to its end."""
        assert self._relay is not None
        self._relay.start()
        self._tell_of_process()

    def _tell_of_process(self) -> None:
        body = {"name": self._arguments.program, "systemProcessId": self.process.pid}
        self._session.event("process", body | {"isLocalProcess": True, "startMethod": "launch"})

    # --- messages ---

    def forward(self, message: dict[str, Any]) -> None:
        """From the client. `Session` calls this in place of its own handlers."""
        command = message.get("command")
        if message.get("type") == "response" and command == "runInTerminal":
            if isinstance(self.process, InTerminal):
                self.process.answered(message)
        elif command == "terminate":
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
                if self._waiting is not None:
                    self._waiting.append(message)
                    return
            assert self._relay is not None
            self._relay.forward(message)

    def _answer(self, message: dict[str, Any], refusal: str = "") -> None:
        answer = {"type": "response", "request_seq": message.get("seq"), "success": not refusal}
        answer |= {"message": refusal} if refusal else {}
        with suppress(Gone):
            self._session.wire.write(answer | {"command": message.get("command", "")})

    # --- the end ---

    def close(self, terminate: bool | None = None) -> None:
        """The client is gone: the script ends, or goes on by itself."""
        if terminate is None:
            terminate = self._arguments.on_disconnect == "terminate"
        if terminate:
            self.process.kill()
        if self._relay is not None:
            self._relay.close(terminate)
        self.process.let_go()

    def _end(self) -> None:
        """Ends the script; a thread waits for it already."""
        self._is_ending = True
        threading.Thread(target=self.process.kill, name="opstep script", daemon=True).start()

    def _wait_for_end(self) -> None:
        """The script listens no more: what it still says is told, and how it ended."""
        assert self._relay is not None
        code = self.process.gone(self._relay.exit_code)
        if not self._session.leaving:
            how = "" if self._is_ending else self.process.violence()
            if how:
                name = Path(self._arguments.program).name
                self._session.output(f"{name} {how}.", "important")
            if code is not None:
                self._session.event("exited", {"exitCode": code})
            self._session.event("terminated")


def _options(arguments: LaunchArguments, given: Mapping[str, Any]) -> list[str]:
    """``opstep debug …``, or ``opstep run …``. What is not `given` is left to the command."""
    words = ["run", "--compiled"] if arguments.no_debug else ["debug"]
    for name in ("kernels", "threads", "mode", "streams", "alloc", "fill", "sync"):
        if given.get(name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    if arguments.no_debug:
        for name in ("workspace", "trace"):
            if value := getattr(arguments, name):
                words += [f"--{name}", arguments.at(value)]
    patterns = arguments.module
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        words += ["--module", pattern]
    return words
