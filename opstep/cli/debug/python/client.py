"""A client of a debug adapter: requests and their answers, events, and the reverse request that
starts the script.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from opstep.cli.debug.registry import Refused
from opstep.dap.wire import Wire
from opstep.editors.wire import BadMessage, BrokenStream, Gone

ADAPTER = [sys.executable, "-m", "opstep", "dap", "--script"]
_ENDS_S = 5.0  # for an adapter whose client is gone
LOOKS_S = 0.2  # between looks whether the user gave up on an answer

_ENDED = "the debug adapter has ended"
GONE = "gone"  # the event that stands for the end of the adapter


class Client:
    """`runs`: what starts a command line in the terminal, given the arguments of ``runInTerminal``;
    its process. `events`: those of the adapter in their order. `gives_up`: whether an answer is
    no longer wanted.
    """

    def __init__(self, runs: Callable[[dict[str, Any]], int], gives_up: Callable[[], bool]):
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._runs, self._gives_up = runs, gives_up
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._is_gone = False
        self._lock = threading.Lock()  # of `_answers`
        self._process = subprocess.Popen(
            ADAPTER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )  # a session of its own: Ctrl-C is for us
        pipes: Any = self._process
        self._wire = Wire(pipes.stdout, pipes.stdin)
        threading.Thread(target=self._read, name="opstep adapter", daemon=True).start()

    def tell(self, command: str, **arguments: Any) -> None:
        """Sends a request whose answer nobody waits for."""
        with suppress(Gone):
            self._wire.write({"type": "request", "command": command, "arguments": arguments})

    def send(self, command: str, **arguments: Any) -> int:
        """Sends a request, whose answer `answer` gives. Raises `Refused`."""
        try:
            message = {"type": "request", "command": command, "arguments": arguments}
            number = self._wire.write(message)
        except Gone:
            raise Refused(_ENDED, "run starts it again") from None
        with self._lock:
            answers = self._answers.setdefault(number, SimpleQueue())
            if self._is_gone:
                answers.put({"success": False, "message": _ENDED})
        return number

    def has_answered(self, number: int) -> bool:
        return not self._answers[number].empty()

    def answer(self, number: int) -> dict[str, Any]:
        """The body of an answer. Raises `Refused` with the adapter's words where it failed."""
        answers = self._answers[number]
        while True:
            try:
                answer = answers.get(timeout=LOOKS_S)
                break
            except Empty:
                if self._gives_up():
                    raise Refused("the script has not answered", "it may still be busy") from None
        with self._lock:
            del self._answers[number]
        if not answer.get("success"):
            raise Refused(_message(answer))
        return answer.get("body") or {}

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises `Refused`."""
        return self.answer(self.send(command, **arguments))

    def close(self) -> None:
        """The adapter ends when its input does, and the launcher with it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        with suppress(BrokenStream, Gone):
            while True:
                try:
                    message = self._wire.read()
                except BadMessage:
                    continue
                if message is None:
                    break
                self._take(message)
        with self._lock:
            self._is_gone = True
            for answers in self._answers.values():
                answers.put({"success": False, "message": _ENDED})
        self.events.put({"event": GONE})

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "event":
            self.events.put(message)
        elif kind == "response":
            with self._lock:  # the answer may come before `send` knows its number
                number = message.get("request_seq", 0)
                self._answers.setdefault(number, SimpleQueue()).put(message)
        elif kind == "request":
            self._reverse(message)

    def _reverse(self, message: dict[str, Any]) -> None:
        done: dict[str, Any] = {"success": False, "message": "this client does not do that"}
        if message["command"] == "runInTerminal":
            try:
                body = {"processId": self._runs(message["arguments"])}
                done = {"success": True, "body": body}
            except (OSError, ValueError) as error:
                done = {"success": False, "message": str(error)}
        head = {"type": "response", "request_seq": message["seq"], "command": message["command"]}
        self._wire.write(head | done)


def _message(answer: dict[str, Any]) -> str:
    """Why a request failed: of a traceback, the error alone."""
    error = (answer.get("body") or {}).get("error") or {}
    text = str(answer.get("message") or error.get("format") or "the debug adapter refused it")
    if text.startswith("Traceback "):
        text = text.strip().rpartition("\n")[2]
    return text.strip()
