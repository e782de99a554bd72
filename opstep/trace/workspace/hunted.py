"""Findings of a hunt as rows of `findings`, beside those that the run itself left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.hunting.report import headline
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.trace.workspace.blobs import insert_checkpoint
from opstep.trace.workspace.rows import plain
from opstep.trace.workspace.sink import text_of
from opstep.trace.workspace.store import writing
from opstep.trace.workspace.transactions import FINDINGS, insert_rows, transaction

if TYPE_CHECKING:
    import sqlite3

    from opstep.api.program import Program
    from opstep.hunting.report import Hunt
    from opstep.runtime.nan.findings import Finding


def add_findings(path: Path, run: str, hunt: Hunt, program: Program) -> int:
    """Adds findings to a run of the workspace, which is complete, and what a repeat of their step
    needs; how many. `program`: with its tensors as they were before the step. Raises `InputError`
    where the file cannot be written.
    """
    with writing(path) as connection:
        number = _number(connection, run)
        step = hunt.step or 0
        rows = [
            (number, step, *_as_row(connection, number, finding))
            for finding in (*hunt.findings, *hunt.only_masked)
        ]
        rows += [
            (number, step, None, "unrepeated", None, None, None, plain(text))
            for text in hunt.unrepeated
        ]
        with transaction(connection):
            insert_rows(connection, FINDINGS, rows)
            _keep_step(connection, number, hunt, program)
    return len(rows)


def _number(connection: sqlite3.Connection, run: str) -> int:
    (number,) = connection.execute("select id from runs where key = ?", (run,)).fetchone()
    return number


def _keep_step(connection: sqlite3.Connection, number: int, hunt: Hunt, program: Program) -> None:
    """Keeps what the bad step was given, where that cannot be had from what the run has kept."""
    text, graph, repeatable = connection.execute(
        "select program, graph, repeatable from runs where id = ?", (number,)
    ).fetchone()
    before = (hunt.step or 0) - 1
    known = connection.execute(
        "select 1 from checkpoints where run = ? and step = ? and kind in ('start', 'kept')",
        (number, before),
    ).fetchone()
    whole = program.mesh.ranks == 1 and (graph, text) == (hunt.graph, text_of(program.module))
    if known or before + 1 < repeatable or not whole or not hunt.inputs:
        return
    tensors: list[tuple] = [("input", n, array) for n, array in hunt.inputs.items()]
    for name in program.params.known():
        value = hunt.state.get(name)
        kind = program.module.tensors[name].kind
        tensors.append((kind, name, program.params[name] if value is None else value))
    insert_checkpoint(connection, number, before, "kept", tensors)


def add_script_findings(
    path: Path, run: str, found: Sequence[tuple[int, Finding, str]]
) -> None:  # fmt: skip
    """Adds what was found in a script's own ops: the step, the finding and what it says. Nothing
    where the file cannot be written, which the recording has said.
    """
    with suppress(OpstepError), writing(path) as connection:
        number = _number(connection, run)
        rows = [
            (number, step, *_as_row(connection, number, finding, message))
            for step, finding, message in found
        ]
        with transaction(connection):
            insert_rows(connection, FINDINGS, rows)


def add_message(path: Path, run: str, step: int, kind: str, value: str, message: str) -> None:
    """Adds one finding in words."""
    with writing(path) as connection:
        connection.execute(
            "insert into findings (run, step, kind, value, message) "
            "select id, ?, ?, ?, ? from runs where key = ?",
            (step, kind, value or None, plain(message), run),
        )


def _as_row(connection, number: int, finding: Finding, message: str = "") -> tuple:
    """With the number of the op in the run that has that name and line, and gives the value."""
    where = finding.where
    file, line = (where.path, where.line) if where and where.path else (None, None)
    op = connection.execute(
        "select o.op from ops o join results r on r.run = o.run and r.op = o.op "
        "where o.run = ? and o.name = ? and r.name = ? and (? is null or o.line = ?) limit 1",
        (number, finding.op, finding.value, line, line),
    ).fetchone()
    details = (
        finding.value,
        plain(file) if file else None,
        line,
        plain(message or headline(finding)),
    )
    return op[0] if op else None, finding.kind, *details
