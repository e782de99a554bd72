"""``opstep lsp``: the language server for editors."""

from __future__ import annotations

import click

from opstep.cli.common import COMMAND, OK, PROGRAM, command, option
from opstep.cli.serving import serve_port, serving_options, writer


@command(
    "lsp",
    examples=[
        ("opstep lsp", "what an editor starts: messages on standard input and output"),
        ("opstep lsp --listen 127.0.0.1:4712", "for editors that connect to a port"),
        ("opstep lsp --log lsp.log", "log internal errors"),
    ],
    codes={
        OK: "the client shut down cleanly",
        PROGRAM: "the client disconnected without shutdown",
        COMMAND: "usage; the port is not available",
    },
)
@serving_options
@option("--stdio", "Accepted and ignored: standard input and output are the default.")
def lsp(listen: str | None, log_file: str | None, stdio: bool) -> int:
    """Serve the language server to an editor (Language Server Protocol).

    Diagnostics as you type, hovers, completion, renaming, formatting and more. docs/lsp.md
    describes the features, docs/editors.md the setup of editors.
    """
    from opstep.lsp import server

    if stdio and listen is not None:
        raise click.UsageError("--stdio and --listen: which of them?")
    log = writer(log_file)
    if listen is None:
        return server.serve_stdio(log)
    serve_port(listen, log, server.listener)
    return OK
