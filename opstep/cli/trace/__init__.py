"""``opstep trace``: the timeline of runs, in Perfetto's user interface or its query engine."""

from __future__ import annotations

from pathlib import Path

import click

from opstep.cli.common import COMMAND, MACHINE, OK, FloatRange, say
from opstep.cli.verbs import command_with_verbs
from opstep.trace.viewer.engine import LIMIT_S
from opstep.trace.viewer.files import ReadableParts

VERBS = {
    "summary": ("opstep.cli.trace.summary", "Say where the time went: streams, path, ops, memory."),
    "query": ("opstep.cli.trace.query", "Ask a question in SQL (PerfettoSQL)."),
}

timeout_option = click.option(
    "--timeout",
    type=FloatRange(0, min_open=True),
    default=LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up loading, or a question, after this long.",
)


def say_left_out(file: str, parts: ReadableParts) -> None:
    """Says where a trace is damaged, and that it ends in the middle of something."""
    for line in parts.warnings(Path(file)):
        say(line)


@command_with_verbs(
    "trace",
    verbs=VERBS,
    short_help="Look at the timeline of runs in Perfetto, or ask it questions.",
    examples=[
        ("opstep trace run.pftrace", "in a new tab; Ctrl-C ends it"),
        ("opstep trace run.pftrace --at conv2d", "there, at the first convolution"),
        ("opstep trace run.pftrace --at unet.opg:35 --no-browser", "print the address"),
        ("opstep trace run.pftrace summary", "where the time went"),
        ('opstep trace run.pftrace query "select name, dur from slice"', "a question in SQL"),
    ],
    codes={
        OK: "all went well; Ctrl-C ended the server",
        COMMAND: "usage; a file that is absent, empty or no trace; a port in use; wrong SQL",
        MACHINE: "out of memory",
    },
)
@click.argument("file", metavar="FILE.pftrace")
@click.option(
    "--at",
    metavar="OP",
    help="Open at an op: the name of its value or call, its kind, or a line (12, unet.opg:12).",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port on 127.0.0.1; default: one that is free.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, open nothing.")
@timeout_option
def trace(file: str, at: str | None, port: int | None, no_browser: bool, timeout: float) -> int:
    """Look at the timeline of runs in Perfetto, or ask it questions.

    Without a verb: serves the Perfetto UI with the file open in it, for this machine only
    (127.0.0.1), and opens a browser. Nothing leaves the machine. opstep run --trace writes such
    files; they can be read during the run, as far as they are written. Needs opstep[viewer].
    """
    from opstep.trace.viewer.files import readable_parts
    from opstep.trace.viewer.server import serve

    say_left_out(file, readable_parts(Path(file)))
    serve(file, port or 0, not no_browser, at, timeout)
    return OK
