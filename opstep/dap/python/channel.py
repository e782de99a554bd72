"""The way to the helper in a script's process: lines of JSON on a socket that has no file.

Only processes of the same user are let in, which the kernel vouches for on both sides.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

PATIENCE_S = 20  # how long an answer may take


class Unreachable(Exception):
    """There is no helper, or it is gone."""


class Refused(Exception):
    """The helper cannot do it; the text says why."""


def address_of(process: int) -> str:
    """Where the helper of a process listens: a name of Linux's abstract namespace."""
    return f"\0opstep-debuggee-{os.getuid()}-{process}"


def user_of(connection: socket.socket) -> int:
    """The user whose process is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("iII", credentials)[1]


class Channel:
    """To the helper in one process."""

    def __init__(self, process: int):
        """Raises `Unreachable`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address_of(process))
            if user_of(self._socket) != os.getuid():
                raise OSError("it is another user's")
        except OSError as error:
            self._socket.close()
            raise Unreachable(str(error)) from None
        self._stream = self._socket.makefile("rw", encoding="utf-8", newline="\n")
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._count = 0
        self._answers: dict[int, dict[str, Any] | None] = {}  # None: it is awaited
        self._is_over = False
        threading.Thread(target=self._read, name="opstep channel", daemon=True).start()

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The helper's answer. Raises `Refused`, `Unreachable`."""
        with self._changed:
            self._count += 1
            number = self._count
            self._answers[number] = None
        self._send({"id": number, "call": name, "arguments": arguments})
        with self._changed:
            self._changed.wait_for(lambda: self._answers[number] or self._is_over, PATIENCE_S)
            answer = self._answers.pop(number)
        if answer is None:
            raise Unreachable("the program has ended" if self._is_over else "it does not answer")
        if "error" in answer:
            raise Refused(answer["error"])
        return answer.get("body")

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._writing:
                self._stream.write(json.dumps(message) + "\n")
                self._stream.flush()
        except (OSError, ValueError) as error:
            raise Unreachable(str(error)) from None

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._stream:
                message = json.loads(line)
                with self._changed:
                    if message.get("id") in self._answers:
                        self._answers[message["id"]] = message
                        self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
