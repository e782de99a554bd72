"""``opstep dap``: the debugger for editors."""

from __future__ import annotations

import sys
from typing import Any

import click

from opstep.cli.common import COMMAND, OK, command, say


@command(
    "dap",
    short_help="Serve the debugger to an editor (Debug Adapter Protocol).",
    examples=[
        ("opstep dap", "what an editor starts: messages on standard input and output"),
        ("opstep dap --listen 127.0.0.1:4711", "for editors that connect to a port"),
        ("opstep dap --log dap.log", "write down what goes wrong inside"),
    ],
    codes={OK: "the client said goodbye", COMMAND: "usage; the port cannot be had"},
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Listen on a port of this machine; port 0 finds a free one. Without it, messages come on "
    "standard input.",
)
@click.option("--log", "log_file", metavar="FILE", help="Write down what goes wrong inside.")
def dap(listen: str | None, log_file: str | None) -> None:
    """Serve the debugger to an editor (Debug Adapter Protocol).

    docs/dap.md shows what launch takes, and each request; docs/editors.md how editors are set up.
    """
    from opstep.dap import server

    log = writer(log_file)
    if listen is None:
        server.serve_stdio(log)
        return
    host, port = address(listen)
    listener = server.Listener(host, port, log)
    say(f"listening on {listener.host}:{listener.port}")
    try:
        listener.run()
    finally:
        listener.close()


def writer(path: str | None) -> Any:
    """Writes lines to a file, or to standard error."""
    from opstep.runtime.ir.errors import InputError

    if path is None:
        return lambda text: print(text, file=sys.stderr, flush=True)
    try:
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - for the process
    except OSError as error:
        raise InputError(f"--log {path}: {error.strerror}") from None
    return lambda text: file.write(text + "\n")


def address(text: str) -> tuple[str, int]:
    """``127.0.0.1:4711``, ``:4711``, ``[::1]:4711``."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text}: write HOST:PORT", param_hint="--listen")
    return host.strip("[]") or "127.0.0.1", int(port)
