"""Reading the text of a file, which may be anything: binary, endless, a pipe."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import BinaryIO

from opstep.runtime.ir.errors import InputError, NoSuchFile

_BEGINNING = 4096  # bytes in which a binary shows itself
_MOST_BYTES = 1 << 30  # of a file
_PATIENCE_S = 3.0  # for somebody who writes to a pipe


def read_source(path: str | os.PathLike) -> str:
    """The text of a file. InputError where it is absent, unreadable or no UTF-8 text, or a pipe
    that nobody writes to.
    """
    shown = os.fspath(path)
    try:
        with _opened(path) as file:
            data = _bytes_of(file)
    except FileNotFoundError:
        raise NoSuchFile(path) from None
    except IsADirectoryError:
        raise InputError(f"{shown} is a directory, not a file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{shown} cannot be read: {why}") from None
    if b"\0" in data[:_BEGINNING]:
        raise InputError(f"{shown} is a binary file, not a text in the opstep language")
    if len(data) >= _MOST_BYTES:
        raise InputError(f"{shown} is larger than {_MOST_BYTES / 2**30:g} GiB: no program is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{shown} is not UTF-8 text: byte 0x{data[error.start]:02x} in line {line}",
            hint="save it as UTF-8, or convert it: iconv -f latin1 -t utf-8",
        ) from None


def _opened(path: str | os.PathLike) -> BinaryIO:
    """To open a named pipe waits for a writer: a thread does that, for a while."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb")
    from queue import Empty, SimpleQueue
    from threading import Thread

    found: SimpleQueue[BinaryIO | OSError] = SimpleQueue()

    def wait() -> None:
        try:
            found.put(open(path, "rb"))  # noqa: SIM115 - for who reads it
        except OSError as error:
            found.put(error)

    Thread(target=wait, daemon=True).start()
    try:
        file = found.get(timeout=_PATIENCE_S)
    except Empty:
        with suppress(OSError):  # the thread is let go
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        message = f"{os.fspath(path)} is a pipe, and nobody writes to it"
        raise InputError(message, hint="begin what writes to it first, or give a file") from None
    if isinstance(file, OSError):
        raise file
    return file


def _bytes_of(file: BinaryIO) -> bytes:
    """All of a text; of what is a binary, or endless, no more than shows it."""
    pieces = [file.read(_BEGINNING)]
    left = 0 if b"\0" in pieces[0] else _MOST_BYTES
    while left > 0 and (piece := file.read(min(left, 1 << 24))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
