"""``opstep trace``: the timeline of runs, in Perfetto's user interface or its query engine."""

from __future__ import annotations

from pathlib import Path

import click

from opstep.cli.common import COMMAND, OK, FloatRange, option, say
from opstep.cli.verbs import command_with_verbs
from opstep.trace.viewer.engine import LIMIT_S
from opstep.trace.viewer.files import ReadableParts

VERBS = {
    "summary": (
        "opstep.cli.trace.summary",
        "Summarise the time: streams, critical path, ops, memory.",
    ),
    "query": ("opstep.cli.trace.query", "Run a SQL query (PerfettoSQL)."),
}

timeout_option = option(
    "--timeout SECONDS",
    "Time limit for loading, or for a query.",
    FloatRange(0, min_open=True),
    default=LIMIT_S,
)


def say_left_out(file: str, parts: ReadableParts) -> None:
    """Says where a trace is damaged, and that it ends in the middle of something."""
    for line in parts.warnings(Path(file)):
        say(line)


@command_with_verbs(
    "trace",
    verbs=VERBS,
    examples=[
        ("opstep trace run.pftrace", "in a new tab; Ctrl-C ends it"),
        ("opstep trace run.pftrace --at conv2d", "at the first convolution"),
        ("opstep trace run.pftrace --at unet.opg:35 --no-browser", "print the address"),
        ("opstep trace run.pftrace summary", "where the time went"),
        ('opstep trace run.pftrace query "select name, dur from slice"', "a question in SQL"),
    ],
    codes={
        OK: "success, also if Ctrl-C ended the server",
        COMMAND: "usage; a file that is missing, empty or not a trace; a port in use; invalid SQL",
    },
)
@click.argument("file", metavar="FILE.pftrace")
@option(
    "--at OP",
    "Open at an op: the name of its value or call, its op name, or a line (12, unet.opg:12).",
)
@option("--port N", "Port on 127.0.0.1. Default: a free one.", click.IntRange(1, 65535))
@option("--no-browser", "Print the address; do not open a browser.")
@timeout_option
def trace(file: str, at: str | None, port: int | None, no_browser: bool, timeout: float) -> int:
    """Show the timeline of runs in Perfetto, or query it.

    Without a verb: serves the Perfetto UI with the file, on this machine only (127.0.0.1), and
    opens a browser. Nothing leaves the machine. opstep run --trace writes such files; you can read
    them during the run. Needs opstep[viewer].
    """
    from opstep.trace.viewer.files import readable_parts
    from opstep.trace.viewer.server import serve

    say_left_out(file, readable_parts(Path(file)))
    serve(file, port or 0, not no_browser, at, timeout)
    return OK
