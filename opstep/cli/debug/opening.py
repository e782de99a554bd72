"""Begins a session: where its commands come from, and where it writes."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from opstep.cli.common import colors

if TYPE_CHECKING:
    from opstep.cli.debug.reading import Reader
    from opstep.cli.debug.session import Session

S = TypeVar("S", bound="Session")


def given_commands(options: dict[str, Any]) -> list[Reader]:
    """Those of -x and -ex."""
    from opstep.cli.debug.reading import ScriptReader, script

    first: list[Reader] = [script(options["script"])] if options["script"] else []
    return first + ([ScriptReader("-ex", options["given"])] if options["given"] else [])


def begun(kind: type[S], debugger: Any, batch: bool = False) -> S:
    """A session at this terminal, or of a pipe."""
    from opstep.cli.debug import registry
    from opstep.cli.debug.showing import Paint

    registry.load()
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not batch
    return kind(debugger, Paint(colors(sys.stdout)), interactive)


def asked(session: Session) -> Reader:
    """Reads what the user writes."""
    from opstep.cli.debug.completing import completions
    from opstep.cli.debug.reading import PipeReader, TerminalReader

    if not session.interactive:
        return PipeReader()
    return TerminalReader(session.paint, partial(completions, session))
