"""Answers of a database: what ``opstep ws FILE sql`` and ``opstep trace FILE query`` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from opstep.cli.common import amount, console, grouped, json_option, option, say
from opstep.cli.ws import shown

SHOWN = 100  # rows of a table for people


# ``--csv``, ``--json``, ``--limit``.
answer_options = grouped(
    option("--csv", "Print CSV, with a header.", to="as_csv"),
    json_option,
    option(
        "--limit ROWS",
        f"Number of rows to show. Default: {SHOWN} in a table, all in CSV and JSON.",
        click.IntRange(1),
    ),
)


def check_form(as_csv: bool, as_json: bool) -> None:
    """Complains, before anything is asked, where both forms are."""
    from opstep.runtime.ir.errors import InputError

    if as_csv and as_json:
        raise InputError("--csv and --json: which of them?")


def show_answer(
    columns: list[str], rows: Iterator[tuple], as_csv: bool, as_json: bool, limit: int | None
) -> None:
    """Prints rows as they are found: all of CSV and JSON, the first of a table."""
    from opstep.trace.workspace.row_formats import write_csv, write_json

    found = islice(rows, limit or (None if as_csv or as_json else SHOWN))
    if as_csv:
        write_csv(columns, found, sys.stdout)
    elif as_json:
        write_json(columns, found, sys.stdout)
    else:
        show(columns, list(found), next(rows, None) is not None)


def show(columns: list[str], rows: list[tuple], more: bool) -> None:
    numbers = {c for k, c in enumerate(columns) if all(_is_number(row[k]) for row in rows)}
    table = shown.table(*columns, right=numbers)
    for row in rows:
        table.add_row(*map(shown.field_text, row))
    console().print(table)
    if more:
        say(f"… only {amount(len(rows), 'row')}: --limit gives more, --csv all")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))
