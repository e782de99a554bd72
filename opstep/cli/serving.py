"""What the servers for editors have in common: `opstep dap` and `opstep lsp`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from opstep.cli.common import grouped, option, say
from opstep.editors.server import Listener, Log
from opstep.runtime.ir.errors import InputError

_F = TypeVar("_F", bound=Callable[..., Any])


# ``--listen`` and ``--log``, as `listen` and `log_file`.
serving_options = grouped(
    option(
        "--listen HOST:PORT",
        "Listen on a port of this machine; port 0 finds a free one. Without it, messages come on "
        "standard input.",
    ),
    option("--log FILE", "Log internal errors to FILE.", to="log_file"),
)


def serve_port(listen: str, log: Log, listener: Callable[[str, int, Log], Listener]) -> None:
    """Serves on the port that ``--listen`` names, and says which it is."""
    host, port = _address(listen)
    opened = listener(host, port, log)
    say(f"listening on {opened.host}:{opened.port}")
    try:
        opened.run()
    finally:
        opened.close()


def writer(path: str | None) -> Log:
    """Writes lines to a file, or to standard error."""
    if path is None:
        return lambda text: print(text, file=sys.stderr, flush=True)
    try:
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - for the process
    except OSError as error:
        raise InputError(f"--log {path}: {error.strerror}") from None

    def write(text: str) -> None:
        file.write(text + "\n")

    return write


def _address(text: str) -> tuple[str, int]:
    """``127.0.0.1:4711``, ``:4711``, ``[::1]:4711``."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text}: write HOST:PORT", param_hint="--listen")
    return host.strip("[]") or "127.0.0.1", int(port)
