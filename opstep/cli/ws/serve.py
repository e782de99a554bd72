"""``open``: a workspace in the browser."""

from __future__ import annotations

import click

from opstep.cli.common import OK, option
from opstep.cli.verbs import verb


@verb(
    "open",
    examples=[
        ("opstep ws runs.db open", "in a new tab; Ctrl-C ends it"),
        ("opstep ws runs.db open --port 8080 --no-browser", "print the address"),
    ],
)
@option(
    "--port N",
    "Port on 127.0.0.1. Default: 8001, or a free one.",
    click.IntRange(0, 65535),
    default=0,
)
@option("--no-browser", "Print the address; do not open a browser.")
def open_(file: str, port: int, no_browser: bool) -> int:
    """Open the workspace in the browser (Datasette).

    Tables, views, canned queries and plots, read-only, on this machine only (127.0.0.1). Needs
    opstep[viewer].
    """
    from opstep.trace.workspace.datasette import serve

    serve(file, port, not no_browser)
    return OK
