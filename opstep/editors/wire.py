"""Messages on a stream, as the Debug Adapter Protocol and the Language Server Protocol have them.

A message is a header (``Content-Length: N``), an empty line and N bytes of JSON in UTF-8. What
comes from outside is limited before memory is asked for: lines and number of headers, the length of
a message, the depth of its JSON (by Python's parser).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

from opstep.runtime.interrupts import ONCE, Held

LONGEST_MESSAGE = 16 << 20  # bytes, where nothing else is said
LONGEST_SKIPPED = 1 << 30  # bytes; a longer message than this ends the session
LONGEST_HEADER = 1 << 10  # bytes of a line
MOST_HEADERS = 16
CHUNK = 1 << 16


class BadMessage(Exception):
    """One message is of no use; the next one may be. Its text says why."""


class BrokenStream(Exception):
    """Nobody can tell where the next message begins. The text says why."""


class Gone(Exception):
    """The other side reads no more."""


class Wire:
    """Both directions of one connection. One thread reads; any thread writes. A Ctrl-C waits until
    a message is sent: else a part of it, or all of it, might be sent once more.

    `longest`: bytes of a message that are read.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, longest: int = LONGEST_MESSAGE):
        self.reader = reader
        self.writer = writer
        self.longest = longest
        self._lock = threading.Lock()

    # --- to us ---

    def read(self) -> dict[str, Any] | None:
        """The next message; None at the end of the stream.

        Raises `BadMessage` where only this one is lost, `BrokenStream` where all is.
        """
        length = self._read_header()
        if length is None:
            return None
        if length > self.longest:
            self._skip(length)
            raise BadMessage(f"a message of {length:,} bytes; at most {self.longest:,} are read")
        body = self._exactly(length)
        return None if body is None else decoded(body)

    def _read_header(self) -> int | None:
        """Content-Length; None where the stream ends instead."""
        length = None
        for _ in range(MOST_HEADERS):
            line = self._line()
            if not line or (not line.endswith(b"\n") and len(line) < LONGEST_HEADER):
                return None
            if line in (b"\r\n", b"\n"):
                if length is None:
                    raise BrokenStream("a header without Content-Length")
                return length
            name, colon, value = line.partition(b":")
            if not colon or not line.endswith(b"\n"):
                raise BrokenStream(f"{line[:40]!r} is not a header of this protocol")
            if name.strip().lower() == b"content-length":
                length = length_of(value.strip(), length)
        raise BrokenStream(f"more than {MOST_HEADERS} header lines")

    def _line(self) -> bytes:
        try:
            return self.reader.readline(LONGEST_HEADER)
        except (OSError, ValueError):  # reset, or closed by this side
            return b""

    def _exactly(self, length: int) -> bytes | None:
        """That many bytes; None where the stream ends before."""
        try:
            body = self.reader.read(length)
        except (OSError, ValueError):
            return None
        return body if len(body) == length else None

    def _skip(self, length: int) -> None:
        if length > LONGEST_SKIPPED:
            raise BrokenStream(f"a message of {length:,} bytes")
        while length > 0:
            passed = self._exactly(min(length, CHUNK))
            if passed is None:
                return
            length -= len(passed)

    # --- from us ---

    def write(self, message: Mapping[str, Any]) -> None:
        """Sends one message. Raises `Gone`; `TypeError` or `ValueError` where it is not JSON (then
        nothing is sent).
        """
        with Held(ONCE), self._lock:
            self._write(message)

    def write_body(self, body: bytes) -> None:
        """Sends one message that is JSON already. Raises `Gone`."""
        with Held(ONCE), self._lock:
            self._write_body(body)

    def _write(self, message: Mapping[str, Any]) -> None:
        self._write_body(json.dumps(message, allow_nan=False, separators=(",", ":")).encode())

    def _write_body(self, body: bytes) -> None:
        try:
            self.writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            self.writer.flush()
        except (OSError, ValueError) as error:
            raise Gone(str(error)) from None


def length_of(value: bytes, before: int | None) -> int:
    """A Content-Length. Raises `BrokenStream`."""
    if before is not None:
        raise BrokenStream("two Content-Lengths")
    if not value.isdigit() or len(value) > 12:
        raise BrokenStream(f"Content-Length is {value[:40]!r}")
    return int(value)


def decoded(body: bytes) -> dict[str, Any]:
    """The object that the bytes hold. Raises `BadMessage`."""
    try:
        message = json.loads(body.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise BadMessage("JSON that is nested too deep") from None
    except ValueError as error:  # JSON, UTF-8, integers of thousands of digits
        raise BadMessage(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise BadMessage("a message is a JSON object")
    return message


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
