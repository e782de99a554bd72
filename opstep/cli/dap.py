"""``opstep dap``: the debugger for editors."""

from __future__ import annotations

from opstep.cli.common import COMMAND, OK, command, option
from opstep.cli.serving import serve_port, serving_options, writer


@command(
    "dap",
    examples=[
        ("opstep dap", "what an editor starts: messages on standard input and output"),
        ("opstep dap --listen 127.0.0.1:4711", "for editors that connect to a port"),
        ("opstep dap --log dap.log", "log internal errors"),
    ],
    codes={OK: "the client shut down cleanly", COMMAND: "usage; the port is not available"},
)
@option(
    "--ahead",
    "Import what a launch needs before the first message comes, for editors that start the server "
    "before it is needed. If opstep changed meanwhile, it starts anew.",
)
@option(
    "--script",
    "Debug Python scripts, by debugpy and what opstep adds; an editor that knows what it launches "
    "saves a moment so. Without it, scripts and graphs are launched.",
)
@serving_options
def dap(listen: str | None, log_file: str | None, ahead: bool, script: bool) -> None:
    """Serve the debugger to an editor (Debug Adapter Protocol).

    docs/dap.md describes the launch arguments and requests, docs/editors.md the setup of editors.
    """
    if script:
        from opstep.dap.python.server import serve_stdio

        serve_stdio()
        return
    from opstep.dap import server

    log = writer(log_file)
    if listen is None:
        server.serve_stdio(log, ahead)
    else:
        serve_port(listen, log, server.Listener)
