"""SQLite's errors while a file is read, as messages about that file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from opstep.trace.workspace.store import explained

MALFORMED = "database disk image is malformed"  # in the words of SQLite
P = ParamSpec("P")
R = TypeVar("R")


def readable(
    function: Callable[Concatenate[sqlite3.Connection, P], R],
) -> Callable[Concatenate[sqlite3.Connection, P], R]:
    """For functions that read from the connection which is their first argument: a file that turns
    out to be damaged, or stays locked, is an `InputError`.
    """

    @wraps(function)
    def explaining(connection: sqlite3.Connection, *args: P.args, **kwargs: P.kwargs) -> R:
        with about_file(connection):
            return function(connection, *args, **kwargs)

    return explaining


@contextmanager
def about_file(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # the connection is closed: a bug of the caller, not of the file
    except (sqlite3.Error, UnicodeDecodeError) as error:
        found = error if isinstance(error, sqlite3.Error) else sqlite3.DatabaseError(MALFORMED)
        with explained(file_of(connection)):
            raise found from None


def parsed(text: str) -> Any:
    """JSON of a column; what is none is damage of the file."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise sqlite3.DatabaseError(MALFORMED) from None


def file_of(connection: sqlite3.Connection) -> Path:
    """The file of a connection."""
    try:
        (_, _, path), *_ = connection.execute("pragma database_list").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        path = ""
    return Path(path or "the workspace")
