"""``sql``: questions that no verb foresees."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

import click

from opstep.cli.common import OK, amount, console, json_option, say
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

SHOWN = 100  # rows of a table for people


@verb(
    "sql",
    short_help="Ask a question in SQL.",
    examples=[
        ('opstep ws runs.db sql "select * from first_bad"', "a view"),
        ('opstep ws runs.db sql "select name, count(*) from ops group by name"', "a question"),
        ('opstep ws runs.db sql "select * from metrics" --csv > metrics.csv', "for a spreadsheet"),
        ('opstep ws runs.db sql "select * from runs" --json', "for a machine"),
        ("opstep ws runs.db sql \"update runs set file = 'm.opg'\" --write", "change something"),
    ],
)
@click.argument("text", metavar="SQL")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with the columns' names above.")
@json_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="ROWS",
    help=f"Show so many rows. Default: {SHOWN} of a table, all of CSV and JSON.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this long.",
)
@click.option("--write", is_flag=True, help="Let it change the workspace.")
def sql(
    file: str,
    text: str,
    as_csv: bool,
    as_json: bool,
    limit: int | None,
    timeout: float,
    write: bool,
) -> int:
    """Ask a question in SQL.

    One statement, of SQLite's dialect. docs/workspace.md describes tables, views and columns; in
    short: select * from sqlite_schema. Without --write it cannot change anything, and in no case
    can it reach other files.
    """
    from opstep.runtime.ir.errors import InputError

    if as_csv and as_json:
        raise InputError("--csv and --json: which of them?")
    with shown.workspace(file) as ws, ws.ask(text, write=write, timeout=timeout) as (columns, rows):
        shows = not (as_csv or as_json)
        limit = limit or (SHOWN if shows else None)
        found = islice(rows, limit)
        if not columns:
            for _ in rows:
                pass
            say("done")
        elif as_csv:
            write_csv(columns, found, sys.stdout)
        elif as_json:
            write_json(columns, found, sys.stdout)
        else:
            show(columns, list(found), next(rows, None) is not None)
    return OK


def show(columns: list[str], rows: list[tuple], more: bool) -> None:
    numbers = {c for k, c in enumerate(columns) if all(_is_number(row[k]) for row in rows)}
    made = shown.table(*columns, right=numbers)
    for row in rows:
        made.add_row(*map(shown.field_text, row))
    console().print(made)
    if more:
        say(f"… only {amount(len(rows), 'row')}: --limit gives more, --csv all")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def write_csv(columns: list[str], rows: Iterator[tuple], out: TextIO) -> None:
    """As RFC 4180, with bare line feeds; null is an empty field, bytes are hexadecimal."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([v.hex() if isinstance(v, bytes) else v for v in row])


def write_json(columns: list[str], rows: Iterator[tuple], out: TextIO) -> None:
    """A list of objects, one a line, written as they are found."""
    separator = "[\n"
    for row in rows:
        fields = {c: _json(v) for c, v in zip(columns, row, strict=True)}
        out.write(f"{separator}  {json.dumps(fields, ensure_ascii=False)}")
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _json(value: Any) -> Any:
    """A field as JSON has it: bytes in hexadecimal, infinities as strings."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value
