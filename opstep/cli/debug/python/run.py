"""One run of a script: the adapter, the script's process, and what happens until it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

from opstep.cli.debug.python.client import GONE, LOOKS_S, Client
from opstep.cli.debug.registry import Refused
from opstep.frontends.scripts.script import Script

LAUNCHER = Path(__file__).with_name("launcher.py")
INTERRUPT = "interrupt"  # the event that stands for a Ctrl-C
_PATIENCE_S = 1.0  # before the user learns that a pause takes a while
_ENDS_S = 10.0  # for a script that was ended, and its launcher

_ABOUT_US = {
    "clientID": "opstep", "clientName": "opstep debug", "adapterID": "opstep",
    "pathFormat": "path", "linesStartAt1": True, "columnsStartAt1": True, "locale": "en",
    "supportsVariableType": True, "supportsRunInTerminalRequest": True,
}  # fmt: skip


class Run:
    """`reads`: whether the script reads from the terminal, or the pipe, that we have. `say`: a
    message to the user. Raises `Refused`, as all its methods do, where the adapter does not answer.
    """

    def __init__(self, script: Script, reads: bool, say: Callable[[str], None]):
        self._script, self._reads, self._say = script, reads, say
        self._process: subprocess.Popen[bytes] | None = None
        self._presses = 0  # of Ctrl-C since the script went on
        self.on_breakpoint: Callable[[dict[str, Any]], None] = lambda found: None
        self.code: int | None = None  # the script's; negative: a signal ended it
        self.was_ended = False  # by us
        self.was_left = False  # by the adapter
        self.client = Client(self._start, lambda: self._presses > 0)
        self.capabilities = self.client.request("initialize", **_ABOUT_US)

    def launch(self, configure: Callable[[], None], stop_on_entry: bool) -> None:
        """Starts the script, after `configure` has set breakpoints."""
        launched = self.client.send("launch", **self._how(), stopOnEntry=stop_on_entry)
        self._expect_initialized(launched)
        configure()
        self.client.request("configurationDone")
        self.client.answer(launched)

    def _how(self) -> dict[str, Any]:
        """The arguments of ``launch``."""
        script = self._script
        what = {"program": script.name} if script.spec is None else {"module": script.name}
        # What the script prints is to come before what we say next.
        options = [] if sys.stdout.isatty() else ["-u"]
        hidden = {"special": "hide", "function": "hide", "class": "hide", "protected": "inline"}
        return what | {
            "type": "opstep", "request": "launch", "name": script.name, "cwd": os.getcwd(),
            "args": list(script.arguments), "python": [sys.executable], "pythonArgs": options,
            "console": "integratedTerminal", "debugLauncherPath": str(LAUNCHER),
            "subProcess": False, "showReturnValue": True, "variablePresentation": hidden,
        }  # fmt: skip

    def _expect_initialized(self, launched: int) -> None:
        while True:
            try:
                event = self.client.events.get(timeout=LOOKS_S)
            except Empty:
                if self.client.has_answered(launched):
                    self.client.answer(launched)
                    raise Refused("the debug adapter did not start the script") from None
                if self._presses:
                    raise Refused("the script was not started") from None
                continue
            if event["event"] == "initialized":
                return
            if event["event"] in (GONE, "terminated"):
                self.client.answer(launched)
                raise Refused("the debug adapter has ended")

    def _start(self, asked: dict[str, Any]) -> int:
        """In this terminal, as the adapter asks."""
        environment = dict(os.environ)
        for name, value in (asked.get("env") or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = str(value)
        self._process = subprocess.Popen(
            asked["args"], cwd=asked.get("cwd") or None, env=environment,
            stdin=None if self._reads else subprocess.DEVNULL,
        )  # fmt: skip
        return self._process.pid

    # --- while it runs ---

    def interrupt(self) -> None:
        """Ctrl-C: pauses the script; a second one, before it has stopped, ends it. From a signal's
        handler.
        """
        self._presses += 1
        self.client.events.put({"event": INTERRUPT})

    def wait(self) -> dict[str, Any] | None:
        """Until it stops: the body of ``stopped``; None where it has ended."""
        waits = False  # for a pause
        while True:
            try:
                event = self.client.events.get(timeout=_PATIENCE_S if waits else None)
            except Empty:
                waits = False
                self._say("it stops at the next line of Python; Ctrl-C again ends the script")
                continue
            kind, body = event["event"], event.get("body") or {}
            if kind == INTERRUPT and self._presses > 1:
                self.end()
                return None
            if kind == INTERRUPT:
                waits = True
                self.client.tell("pause", threadId=1)
            elif kind == "stopped":
                self._presses = 0
                return body
            elif kind in ("terminated", GONE):
                self.was_left = kind == GONE
                self._finish()
                return None
            else:
                self._note(kind, body)

    def _note(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "breakpoint":
            self.on_breakpoint(body.get("breakpoint") or {})
        elif kind == "capabilities":
            self.capabilities |= body.get("capabilities") or {}
        elif kind == "output" and body.get("category", "console") in ("console", "important"):
            self._say(str(body.get("output", "")).rstrip("\n"))

    def move(self, command: str, **arguments: Any) -> dict[str, Any] | None:
        """Has the script go on; as `wait`."""
        self.settle()
        self.client.request(command, **arguments)
        return self.wait()

    def settle(self) -> None:
        """Takes what came since the script stopped, such as a Ctrl-C while nothing ran."""
        self._presses = 0
        ends = []
        while not self.client.events.empty():
            event = self.client.events.get()
            if event["event"] in ("terminated", GONE):
                ends.append(event)
            else:
                self._note(event["event"], event.get("body") or {})
        for event in ends:
            self.client.events.put(event)

    # --- the end ---

    def _finish(self) -> None:
        """The script has ended, or its adapter."""
        self.client.close()
        if self._process is None:
            return
        try:
            self.code = self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._kill()

    def end(self) -> None:
        """Ends the script, if it runs, and the adapter."""
        if self.code is None:
            self.was_ended = True
            self._kill()
        self.client.close()

    def _kill(self) -> None:
        """The launcher ends the script when it is asked to end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self.code = self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.code = self._process.wait()
