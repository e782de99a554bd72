"""Hands a session on to a Python program that listens: for editors that can only start a server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.registry import DapError
from opstep.dap.wire import wire_of
from opstep.editors.server import LOOPBACK
from opstep.editors.wire import BadMessage, BrokenStream, Gone

if TYPE_CHECKING:
    from opstep.dap.session import Session

CONNECT_S = 5
MOST_OWN_REQUESTS = 1000  # requests of the program that the client has not answered


class Relay:
    """Both directions between a client and the program. The program hears ``initialize`` and
    ``attach`` as the client said them, or another `opening` in its place. `ended` is called when
    the program is gone. Raises `DapError` where nobody listens.
    """

    def __init__(
        self,
        session: Session,
        host: str,
        port: int,
        opening: dict[str, Any] | None = None,
        ended: Callable[[], None] | None = None,
    ):
        if host not in LOOPBACK:
            raise DapError(f"{host} is not this machine", show=True)
        try:
            self._connection = socket.create_connection((host, port), CONNECT_S)
        except (OSError, OverflowError) as error:
            text = f"no program listens on {host}:{port}: {error}"
            raise DapError(f"{text} (it calls opstep.debug.listen({port}))", show=True) from None
        self._connection.settimeout(None)
        self._session = session
        self._program = wire_of(self._connection)
        self._own_requests: dict[int, Any] = {}  # our number of its request -> its own
        self._ended = ended or self._tell_of_end
        self._greeted = session.greeting["seq"]
        self._opened = session.current["seq"], session.current["command"]
        self.forward(session.greeting)
        self.forward(opening or session.current)
        threading.Thread(target=self._pump, name="opstep relay", daemon=True).start()

    def forward(self, message: dict[str, Any]) -> None:
        """From the client to the program, under the client's numbers."""
        if message.get("type") == "response":
            seq = message.get("request_seq")
            original = self._own_requests.pop(seq, None) if isinstance(seq, int) else None
            message = {**message, "request_seq": original}
        try:
            self._program.write(message)
        except Gone:
            self.close()

    def close(self, terminate: bool | None = None) -> None:
        """The program sees its client leave."""
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
            if answered != self._greeted:  # the client has its answer to initialize
                self._hand_over(message)
        self._ended()

    def _tell_of_end(self) -> None:
        if not self._session.leaving:
            self._session.event("terminated")

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
