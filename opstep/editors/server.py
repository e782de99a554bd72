"""Where a server for editors finds its clients: standard streams, or a port of this machine."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from opstep.runtime.ir.errors import InputError

MOST_SESSIONS = 16  # at a time, on one port
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SEND_TIMEOUT_S = 30  # a client that reads nothing for so long is gone

Log = Callable[[str], None]


def standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """This process's standard input and output, for a protocol alone.

    What anything prints from now on goes to standard error: it would break the protocol.
    """
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout.flush()
    return reader, writer


class Listener:
    """Listens on a port of this machine; each connection is a session of its own, in a thread.

    `serve` is called with the connection and handles it to its end. Raises `InputError` where the
    address is not one of this machine, or cannot be had.
    """

    def __init__(
        self, host: str, port: int, serve: Callable[[socket.socket], object], log: Log | None = None
    ):
        if host not in LOOPBACK:
            hint = "whoever connects can read files: use 127.0.0.1, and an SSH tunnel from afar"
            raise InputError(f"{host} is not this machine", hint=hint)
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(MOST_SESSIONS)
        except (OSError, OverflowError) as error:
            self._socket.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot listen on {host}:{port}: {reason}") from None
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._serve_one = serve
        self._log = log
        self._slots = threading.BoundedSemaphore(MOST_SESSIONS)

    def run(self) -> None:
        """Accepts connections until `close`."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    self._serve_one(connection)
                finally:  # closing alone does nothing while files that were made of it live on
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
        except Exception as error:  # a thread's: nobody else would hear of it
            if self._log:
                self._log(f"a session ended with {type(error).__name__}: {error}")
        finally:
            self._slots.release()

    def close(self) -> None:
        """Accepts no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def streams_of(connection: socket.socket) -> tuple[BinaryIO, BinaryIO]:
    """What comes over a socket, and what goes: sent at once."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = SEND_TIMEOUT_S.to_bytes(8, sys.byteorder) + bytes(8)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    return connection.makefile("rb"), connection.makefile("wb")
