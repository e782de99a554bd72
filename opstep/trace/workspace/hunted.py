"""What a hunt found, as rows of `findings`, beside those that the run itself left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from opstep.trace.workspace.rows import plain
from opstep.trace.workspace.store import explained, open_writing


class Row(NamedTuple):
    """One finding. `kind`: origin, uninitialised, masked, or unrepeated; see `docs/hunting.md`.

    `op`: its name, "" for what came from outside.
    """

    step: int
    kind: str
    op: str
    value: str | None
    file: str | None
    line: int | None
    message: str


def add_findings(path: Path, run: str, rows: Iterable[Row]) -> int:
    """Adds findings to a run of the workspace, which is complete; how many. Raises `InputError`
    where the file cannot be written.
    """
    connection = open_writing(path)
    try:
        with explained(path):
            (number,) = connection.execute("select id from runs where key = ?", (run,)).fetchone()
            found = [_as_row(connection, number, row) for row in rows]
            connection.execute("begin immediate")
            connection.executemany(
                "insert into findings (run, step, op, kind, value, file, line, message) "
                "values (?, ?, ?, ?, ?, ?, ?, ?)",
                found,
            )
            connection.execute("commit")
    finally:
        connection.close()
    return len(found)


def _as_row(connection, number: int, row: Row) -> tuple:
    """With the number of the op in the run that has that name and line, and gives the value."""
    op = connection.execute(
        "select o.op from ops o join results r on r.run = o.run and r.op = o.op "
        "where o.run = ? and o.name = ? and r.name = ? and (? is null or o.line = ?) limit 1",
        (number, row.op, row.value, row.line, row.line),
    ).fetchone()
    file = plain(row.file) if row.file else None
    place = (row.value, file, row.line, plain(row.message))
    return number, row.step, op[0] if op else None, row.kind, *place
