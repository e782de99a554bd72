"""What a file is, before it is shown: a workspace, or why it is none. Nothing is changed in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.trace.workspace.browsing.problems import problem_json
from opstep.trace.workspace.schema import APPLICATION
from opstep.trace.workspace.store import PATIENCE_S, file_bytes, open_reading


def is_workspace(path: Path) -> bool:
    """Whether the first look at a file says that it is a workspace, of whatever version.

    A look at the first page: folders have databases of all kinds, and to read one leaves no file
    beside it. One that was just made has its mark in the log alone, so that the log is read too.
    """
    try:
        if not path.is_file():  # a pipe would make us wait
            return False
        name = quote(str(path.absolute()))
        with closing(sqlite3.connect(f"file:{name}?immutable=1", uri=True)) as connection:
            if connection.execute("pragma application_id").fetchone() == (APPLICATION,):
                return True
    except (OSError, ValueError, sqlite3.Error):  # ValueError: a name that no file can have
        return False
    if not path.with_name(path.name + "-wal").exists():
        return False
    try:
        with closing(open_reading(path, update=False, patience=0.1)):
            return True
    except (OpstepError, sqlite3.Error):
        return False


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
