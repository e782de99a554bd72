"""What a file is, before it is shown: a workspace, or why it is none. Nothing is changed in it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.trace.workspace.browsing.problems import problem_json
from opstep.trace.workspace.schema import APPLICATION
from opstep.trace.workspace.store import PATIENCE_S, file_bytes, open_reading

_HEADER = 100  # bytes of an SQLite file's header
_MAGIC = b"SQLite format 3\0"
_APPLICATION = slice(68, 72)


def is_workspace(path: Path) -> bool:
    """Whether the first look at a file says that it is a workspace, of whatever version.

    A look at 100 bytes: folders have databases of all kinds. One that was just made has its mark in
    the log beside it alone, so that SQLite itself is asked.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            head = file.read(_HEADER)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False
    if not head.startswith(_MAGIC) or len(head) < _HEADER:
        return False
    if int.from_bytes(head[_APPLICATION], "big") == APPLICATION:
        return True
    if not path.with_name(path.name + "-wal").exists():
        return False
    try:
        with closing(open_reading(path, update=False, patience=0.1)):
            return True
    except (OpstepError, sqlite3.Error):
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would make us wait


def file_status(path: Path) -> dict[str, Any]:
    """``kind``: ``workspace``, or why it is none (`FileProblem`), with ``message`` and ``hint``."""
    status: dict[str, Any] = {"path": str(path), "kind": "workspace", "message": "", "hint": ""}
    try:
        with closing(open_reading(path, update=False, patience=PATIENCE_S)) as connection:
            (runs, last, running), *_ = connection.execute(
                "select count(*), max(began), sum(status = 'running') from runs"
            ).fetchall()
    except OpstepError as error:
        return status | problem_json(error)
    except sqlite3.Error as error:
        return status | {"kind": "damaged", "message": f"{path}: it is damaged ({error})"}
    more = {"runs": runs, "last": last, "running": running or 0, "bytes": file_bytes(path)}
    return status | more


def file_stamp(path: Path) -> tuple:
    """Another one whenever the file was written to."""
    found = []
    for each in (path, Path(f"{path}-wal")):
        try:
            stat = each.stat()
        except OSError:
            continue
        if not stat.st_size:
            continue  # a reader makes an empty log, and takes it away
        found.append((stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(found)
