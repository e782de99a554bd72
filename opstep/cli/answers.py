"""Answers of a database: what ``opstep ws FILE sql`` and ``opstep trace FILE query`` share."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TextIO

import click

from opstep.cli.common import amount, console, json_option, say
from opstep.cli.ws import shown

SHOWN = 100  # rows of a table for people


def answer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--csv``, ``--json``, ``--limit``."""
    limit = click.option(
        "--limit",
        type=click.IntRange(1),
        metavar="ROWS",
        help=f"Show so many rows. Default: {SHOWN} of a table, all of CSV and JSON.",
    )
    as_csv = click.option(
        "--csv", "as_csv", is_flag=True, help="Print CSV, with the columns' names above."
    )
    return as_csv(json_option(limit(function)))


def check_form(as_csv: bool, as_json: bool) -> None:
    """Complains, before anything is asked, where both forms are."""
    from opstep.runtime.ir.errors import InputError

    if as_csv and as_json:
        raise InputError("--csv and --json: which of them?")


def show_answer(
    columns: list[str], rows: Iterator[tuple], as_csv: bool, as_json: bool, limit: int | None
) -> None:
    """Prints rows as they are found: all of CSV and JSON, the first of a table."""
    found = islice(rows, limit or (None if as_csv or as_json else SHOWN))
    if as_csv:
        write_csv(columns, found, sys.stdout)
    elif as_json:
        write_json(columns, found, sys.stdout)
    else:
        show(columns, list(found), next(rows, None) is not None)


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
