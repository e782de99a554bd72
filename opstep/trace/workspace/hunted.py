"""What a hunt found, as rows of `findings`, beside those that the run itself left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opstep.hunting.report import headline
from opstep.trace.workspace.rows import plain
from opstep.trace.workspace.store import explained, open_writing

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt
    from opstep.runtime.nan.findings import Finding


def add_findings(path: Path, run: str, hunt: Hunt) -> int:
    """Adds findings to a run of the workspace, which is complete; how many. Raises `InputError`
    where the file cannot be written.
    """
    connection = open_writing(path)
    try:
        with explained(path):
            (number,) = connection.execute("select id from runs where key = ?", (run,)).fetchone()
            step = hunt.step or 0
            rows = [
                (number, step, *_as_row(connection, number, finding))
                for finding in (*hunt.findings, *hunt.only_masked)
            ]
            rows += [
                (number, step, None, "unrepeated", None, None, None, plain(text))
                for text in hunt.unrepeated
            ]
            connection.execute("begin immediate")
            connection.executemany(
                "insert into findings (run, step, op, kind, value, file, line, message) "
                "values (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.execute("commit")
    finally:
        connection.close()
    return len(rows)


def add_message(path: Path, run: str, step: int, kind: str, value: str, message: str) -> None:
    """Adds one finding in words."""
    connection = open_writing(path)
    try:
        with explained(path):
            connection.execute(
                "insert into findings (run, step, kind, value, message) "
                "select id, ?, ?, ?, ? from runs where key = ?",
                (step, kind, value or None, plain(message), run),
            )
            connection.commit()
    finally:
        connection.close()


def _as_row(connection, number: int, finding: Finding) -> tuple:
    """With the number of the op in the run that has that name and line, and gives the value."""
    where = finding.where
    file, line = (where.path, where.line) if where and where.path else (None, None)
    op = connection.execute(
        "select o.op from ops o join results r on r.run = o.run and r.op = o.op "
        "where o.run = ? and o.name = ? and r.name = ? and (? is null or o.line = ?) limit 1",
        (number, finding.op, finding.value, line, line),
    ).fetchone()
    details = (finding.value, plain(file) if file else None, line, plain(headline(finding)))
    return op[0] if op else None, finding.kind, *details
