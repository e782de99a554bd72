"""``query``: SQL, answered by Perfetto's own engine."""

from __future__ import annotations

import click

from opstep.cli.answers import answer_options, check_form, show_answer
from opstep.cli.common import OK
from opstep.cli.trace import timeout_option
from opstep.cli.trace.opened import opened
from opstep.cli.verbs import verb


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
@answer_options
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
    check_form(as_csv, as_json)
    with opened(file, timeout) as engine:
        columns, rows = engine.query(text)
    if columns:
        show_answer(columns, iter(rows), as_csv, as_json, limit)
    return OK
