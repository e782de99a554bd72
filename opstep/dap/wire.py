"""Messages of the Debug Adapter Protocol: those of `opstep.editors.wire`, with numbers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

from opstep.editors import wire
from opstep.editors.server import streams_of
from opstep.runtime.interrupts import ONCE, Held

LONGEST_MESSAGE = wire.LONGEST_MESSAGE  # setVariable and writeMemory carry values


class Wire(wire.Wire):
    """A connection whose messages from us are numbered."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO):
        super().__init__(reader, writer, LONGEST_MESSAGE)
        self._seq = 0

    @property
    def latest(self) -> int:
        """The number of the message that was sent last."""
        return self._seq

    def write(self, message: Mapping[str, Any]) -> int:
        """Sends one message under the next number, which is returned.

        `message` is an object without ``seq``. Raises as `opstep.editors.wire.Wire.write` does.
        """
        with Held(ONCE), self._lock:
            self._write({"seq": self._seq + 1, **message})
            self._seq += 1
            return self._seq


def wire_of(connection: socket.socket) -> Wire:
    """Messages on a socket, sent at once."""
    return Wire(*streams_of(connection))
