"""``query``: SQL, answered by Perfetto's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from opstep.cli.answers import answer_options, check_form, show_answer
from opstep.cli.common import OK, console
from opstep.cli.trace import say_left_out, timeout_option
from opstep.cli.verbs import verb

if TYPE_CHECKING:
    from opstep.trace.viewer.engine import Engine


@contextmanager
def opened(file: str, timeout: float) -> Iterator[Engine]:
    """Loads a trace; says so where it was cut, and on a terminal while it takes its time."""
    from rich.status import Status

    from opstep.trace.viewer.engine import Engine

    with Status(f"loading {file}", console=console(stderr=True)):
        engine = Engine(file, timeout)
    with engine:
        say_left_out(file, engine.readable)
        yield engine


@verb(
    "query",
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
        ('opstep trace run.pftrace query "select name, value from stats" --json', "as JSON"),
    ],
)
@click.argument("text", metavar="SQL")
@answer_options
@timeout_option
def query(
    file: str, text: str, as_csv: bool, as_json: bool, limit: int | None, timeout: float
) -> int:
    """Run a SQL query (PerfettoSQL).

    Tables: slice, track, args, flow, counter, stats. Times are in ns. Use extract_arg(arg_set_id,
    'debug.NAME') to get the arguments of a slice: run, step, op, name, site, file, line, bytes,
    flops and others, as in a workspace. With several statements, the last one returns the rows;
    tables they create are in memory, and the file is only read.
    """
    check_form(as_csv, as_json)
    with opened(file, timeout) as engine:
        columns, rows = engine.query(text)
    if columns:
        show_answer(columns, iter(rows), as_csv, as_json, limit)
    return OK
