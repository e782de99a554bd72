"""``sql``: questions that no verb foresees."""

from __future__ import annotations

import click

from opstep.cli.answers import answer_options, check_form, show_answer
from opstep.cli.common import OK, FloatRange, option, say
from opstep.cli.verbs import verb
from opstep.cli.ws import shown


@verb(
    "sql",
    examples=[
        ('opstep ws runs.db sql "select * from first_bad"', "a view"),
        ('opstep ws runs.db sql "select name, count(*) from ops group by name"', "a question"),
        ('opstep ws runs.db sql "select * from metrics" --csv > metrics.csv', "for a spreadsheet"),
        ('opstep ws runs.db sql "select * from runs" --json', "as JSON"),
        ("opstep ws runs.db sql \"update runs set file = 'm.opg'\" --write", "change something"),
    ],
)
@click.argument("text", metavar="SQL")
@answer_options
@option("--timeout SECONDS", "Give up after this long.", FloatRange(0, min_open=True), default=30.0)
@option("--write", "Allow changes to the workspace.")
def sql(
    file: str,
    text: str,
    as_csv: bool,
    as_json: bool,
    limit: int | None,
    timeout: float,
    write: bool,
) -> int:
    """Run a SQL query.

    A single statement in SQLite's dialect. docs/workspace.md describes tables, views and columns;
    for a summary: select * from sqlite_schema. Without --write it cannot change anything, and it
    can never access other files.
    """
    check_form(as_csv, as_json)
    with shown.workspace(file) as ws, ws.ask(text, write=write, timeout=timeout) as (columns, rows):
        if columns:
            show_answer(columns, rows, as_csv, as_json, limit)
        else:
            for _ in rows:
                pass
            say("done")
    return OK
