"""Makes a workspace smaller: runs go, and with them the bytes that nothing else refers to."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from opstep.trace.workspace.blobs import drop_unused_blobs
from opstep.trace.workspace.checkpoints import drop_checkpoints
from opstep.trace.workspace.reading import readable
from opstep.trace.workspace.schema import DETAILS, TABLES
from opstep.trace.workspace.store import file_bytes
from opstep.trace.workspace.transactions import transaction

# What holds rows of a run, in an order in which they can go; and those that make it large.
_TABLES = sorted(
    (t.name for t in TABLES if t.name != "runs" and any(c.name == "run" for c in t.columns)),
    key=("stats", "executions", "tensors").__contains__,
    reverse=True,
)
_MANY = ("stats", *DETAILS, "executions", "results", "ops")


COMPACT_S = 2.0  # how long readers may keep the file from getting smaller


class Pruned(NamedTuple):
    """Counts of what was removed; `checkpoints`: of runs that stay. `freed`: bytes that the file is
    smaller by; 0 where it was not compacted.
    """

    runs: int
    tensors: int
    freed: int
    compacted: bool
    checkpoints: int = 0


@readable
def prune(
    connection: sqlite3.Connection, path: Path, runs: Sequence[int], compact: bool = True,
    keep: int | None = None, thinned: Sequence[int] = (),
) -> Pruned:  # fmt: skip
    """Removes runs by id, and of those `thinned` checkpoints but for the first, the best and the
    last `keep`: all of them, or none where it is interrupted.
    """
    before = file_bytes(path)
    tensors = 0
    with transaction(connection):
        for run in runs:
            for table in _TABLES:
                deleted = connection.execute(f"delete from {table} where run = ?", (run,)).rowcount
                tensors += deleted if table == "tensors" else 0
            connection.execute("delete from runs where id = ?", (run,))
            connection.execute("update runs set parent = null where parent = ?", (run,))
        drop_unused_blobs(connection)
        dropped = sum(drop_checkpoints(connection, run, keep) for run in thinned if keep)
    compacted = compact and _compact(connection)
    freed = max(0, before - file_bytes(path))
    return Pruned(len(runs), tensors, freed, compacted, dropped)


def _compact(connection: sqlite3.Connection) -> bool:
    """Gives free pages back to the disk; False where others use the file, and it has to wait."""
    connection.execute(f"pragma busy_timeout = {int(COMPACT_S * 1000)}")
    try:
        connection.execute("vacuum")
        (busy, *_), *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return False
        raise
    return not busy


@readable
def run_bytes(connection: sqlite3.Connection) -> dict[int, int]:
    """Bytes of each run in the file: those of its own tensors, and its share of the rows'."""
    (pages,), (free,), (page,) = (
        connection.execute(f"pragma {what}").fetchone()
        for what in ("page_count", "freelist_count", "page_size")
    )
    (blobs,) = connection.execute("select coalesce(sum(length(data)), 0) from blobs").fetchone()
    rows: dict[int, int] = {id: 1 for (id,) in connection.execute("select id from runs")}
    for table in _MANY:
        for run, count in connection.execute(f"select run, count(*) from {table} group by run"):
            rows[run] = rows.get(run, 0) + count
    each = max(0, (pages - free) * page - blobs) / max(1, sum(rows.values()))
    own = dict(
        connection.execute(
            "select run, sum(nbytes) from (select min(run) as run, min(nbytes) as nbytes "
            "from tensors group by digest having count(distinct coalesce(run, 0)) = 1) group by run"
        )
    )
    return {run: int(count * each) + (own.get(run) or 0) for run, count in rows.items()}
