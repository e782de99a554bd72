"""Hands a session on to a Python program that listens: for editors that can only start a server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import DapError, State
from opstep.dap.wire import wire_of
from opstep.editors.server import LOOPBACK
from opstep.editors.wire import BadMessage, BrokenStream, Gone

if TYPE_CHECKING:
    from opstep.dap.session import Session

CONNECT_S = 5
GONE = "the program has ended"
MOST_OWN_REQUESTS = 1000  # requests of the program that the client has not answered


def connection_to(host: str, port: int) -> socket.socket:
    """To the program that listens there. Raises `DapError` where none does."""
    if host not in LOOPBACK:
        raise DapError(f"{host} is not this machine", show=True)
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except (OSError, OverflowError) as error:
        text = f"no program listens on {host}:{port}: {error}"
        raise DapError(f"{text} (it calls opstep.debug.listen({port}))", show=True) from None
    connection.settimeout(None)
    return connection


class Relay:
    """Both directions between a client and the program at the other end of `connection`. The
    program hears ``initialize`` as the client said it. `ended` is called when the program is gone.

    `exit_code`: what the program said of it before it went.
    """

    def __init__(
        self,
        session: Session,
        connection: socket.socket,
        ended: Callable[[], None] | None = None,
    ):
        self._connection = connection
        self._session = session
        self._program = wire_of(connection)
        self._own_requests: dict[int, Any] = {}  # our number of its request -> its own
        self._ended = ended or self._tell_of_end
        self._greeted = session.greeting["seq"]
        self._opened = session.current["seq"], session.current["command"]
        self.exit_code: int | None = None
        self._has_told = self._is_over = False  # of its end, and whether it has ended
        self._unanswered: dict[int, str] = {}  # requests of the client, by number
        self.forward(session.greeting)

    def wait(self) -> bool:
        """Until the program answers, before `start`; False where it ends instead."""
        try:
            message = self._program.read() or {}
        except (BadMessage, BrokenStream):
            return False
        return message.get("type") == "response"

    def start(self, opening: dict[str, Any] | None = None) -> None:
        """Messages go both ways from now on. `opening`: what the program hears first."""
        if opening is not None:
            self.forward(opening)
        threading.Thread(target=self._pump, name="opstep relay", daemon=True).start()

    def forward(self, message: dict[str, Any]) -> None:
        """From the client to the program, under the client's numbers."""
        seq = message.get("seq")
        if message.get("type") == "request" and isinstance(seq, int) and seq != self._greeted:
            self._unanswered[seq] = str(message.get("command"))
        if message.get("type") == "response":
            seq = message.get("request_seq")
            original = self._own_requests.pop(seq, None) if isinstance(seq, int) else None
            message = {**message, "request_seq": original}
        try:
            self._program.write(message)
        except Gone:
            self.close()
        if self._is_over:
            self._answer_for_it()

    def close(self, terminate: bool | None = None) -> None:
        """The program sees its client leave; False: it goes on."""
        if terminate is False and not self._is_over:
            goodbye = {"command": "disconnect", "arguments": {"terminateDebuggee": False}}
            with suppress(Gone):  # under a number whose answer the client does not get
                self._program.write({"type": "request", **goodbye, "seq": self._greeted})
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _pump(self) -> None:
        """From the program to the client, until one of them is gone."""
        while True:
            try:
                message = self._program.read()
            except BadMessage:
                continue
            except BrokenStream:
                break
            if message is None:
                break
            answered = message.get("request_seq") if message.get("type") == "response" else None
            self._unanswered.pop(answered or 0, None)
            self._has_told = self._has_told or message.get("event") == "terminated"
            if message.get("event") == "exited":  # the client hears of it when all output is told
                self.exit_code = (message.get("body") or {}).get("exitCode")
                break
            if answered != self._greeted:  # the client has its answer to initialize
                self._hand_over(message)
        self._is_over = True
        self._answer_for_it()
        self._ended()

    def _answer_for_it(self) -> None:
        """The program is gone, and answers nothing. It did what it had to be configured for."""
        for seq, command in list(self._unanswered.items()):
            done = command == "configurationDone"
            answer = {"type": "response", "request_seq": seq, "success": done, "command": command}
            with suppress(Gone):
                self._session.wire.write(answer if done else answer | {"message": GONE, "body": {}})
        self._unanswered.clear()

    def _tell_of_end(self) -> None:
        session = self._session
        session.relay(None)  # the adapter answers what still comes
        session.state = State.ENDED
        self.close()
        if session.leaving or self._has_told:
            return
        if self.exit_code is None:
            text = f"{GONE}, and did not say how: it was killed, or ended by os._exit."
            session.output(text, "important")
        else:
            session.event("exited", {"exitCode": self.exit_code})
        session.event("terminated")

    def _hand_over(self, message: dict[str, Any]) -> None:
        theirs = message.pop("seq", None)
        if message.get("type") == "response" and message.get("request_seq") == self._opened[0]:
            message["command"] = self._opened[1]  # what the client asked for
        try:
            ours = self._session.wire.write(message)
        except Gone:
            return
        if message.get("type") == "request" and len(self._own_requests) < MOST_OWN_REQUESTS:
            self._own_requests[ours] = theirs
