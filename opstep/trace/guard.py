"""A sink, guarded: what it raises ends its file, and never the run."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable
from typing import Any

from opstep.trace.sink import FailedSink, Sink, SinkReport

Call = tuple[Any, ...]  # a method of sinks, by name, and its arguments

NO_ROOM = "no room is left on its disk, or files may not grow so large (ulimit -f)"
MAKE_ROOM = "make room, or use a file elsewhere"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} | {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "IOERR_WRITE", "IOERR_FSYNC", "IOERR_TRUNCATE", "IOERR_SHMSIZE")
}


class Guard:
    """A sink that fails once: from then on it is only closed, and tells why. `problem`: why it has
    failed already.
    """

    def __init__(self, sink: Sink | FailedSink, problem: str | None = None):
        self.sink = sink
        self.problem = problem
        self._ends: list[Any] = []  # of runs that ended after it had failed
        self._path = sink.path.absolute()  # also where the process goes to another folder

    def call(self, calls: Iterable[Call]) -> None:
        """On the writer's thread."""
        left, method, arguments = iter(calls), "", []
        if not self.problem:
            try:
                for method, *arguments in left:
                    getattr(self.sink, method)(*arguments)
                return
            except (OSError, sqlite3.Error) as error:
                self.problem = words(error)
            except Exception as error:  # our mistake must not stop the writer: the run would wait
                self.problem = f"internal error: {type(error).__name__}: {error}"
        self._ends += [rest for name, *rest in ((method, *arguments), *left) if name == "end_run"]

    def close(self) -> SinkReport:
        try:
            report = self.sink.close(self._ends)
        except (OSError, sqlite3.Error) as error:
            report = SinkReport(self.sink.path, 0)
            self.problem = self.problem or words(error)
        except Exception as error:  # as above; the other file is still to be closed
            report = SinkReport(self.sink.path, 0)
            self.problem = self.problem or f"internal error: {type(error).__name__}: {error}"
        report.problem = self.problem or report.problem
        if not report.problem and not self._path.exists():  # what is deleted can be written
            report.problem = "the file is gone: it was deleted or moved while the run went on"
        return report


def words(error: Exception) -> str:
    """What went wrong; where room is missing, what to do."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{text}: {NO_ROOM}; {MAKE_ROOM}" if no_room(error) else text


def no_room(error: Exception) -> bool:
    """Whether a file could not grow."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", None)
    return code in _FULL
