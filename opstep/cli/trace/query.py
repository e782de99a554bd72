"""``query``: SQL, answered by Perfetto's own engine."""

from __future__ import annotations

import sys

import click

from opstep.cli.common import OK, json_option
from opstep.cli.trace import timeout_option
from opstep.cli.trace.opened import opened
from opstep.cli.verbs import verb
from opstep.cli.ws.sql import SHOWN, show, write_csv, write_json


@verb(
    "query",
    short_help="Ask a question in SQL (PerfettoSQL).",
    examples=[
        (
            'opstep trace run.pftrace query "select name, dur from slice order by dur desc"',
            "the longest slices",
        ),
        (
            "opstep trace run.pftrace query \"select name, extract_arg(arg_set_id, 'debug.line')"
            ' as line, sum(dur) as ns from slice group by name, line" --csv',
            "by line, for a spreadsheet",
        ),
        ('opstep trace run.pftrace query "select name, value from stats" --json', "for a machine"),
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
@timeout_option
def query(
    file: str, text: str, as_csv: bool, as_json: bool, limit: int | None, timeout: float
) -> int:
    """Ask a question in SQL (PerfettoSQL).

    Tables: slice, track, args, flow, counter, stats. Times are ns. What a slice's arguments hold is
    asked for with extract_arg(arg_set_id, 'debug.NAME'): run, step, op, name, site, file, line,
    bytes, flops and others, as in a workspace. Of several statements the last one answers; what
    they make is in memory, the file is only read.
    """
    from opstep.runtime.ir.errors import InputError

    if as_csv and as_json:
        raise InputError("--csv and --json: which of them?")
    with opened(file, timeout) as engine:
        columns, rows = engine.query(text)
    limit = limit or (len(rows) if as_csv or as_json else SHOWN)
    if as_csv:
        write_csv(columns, iter(rows[:limit]), sys.stdout)
    elif as_json:
        write_json(columns, iter(rows[:limit]), sys.stdout)
    elif columns:
        show(columns, rows[:limit], len(rows) > limit)
    return OK
