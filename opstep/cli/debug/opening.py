"""Begins a session: where its commands come from, and where it writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from opstep.cli.common import colors

if TYPE_CHECKING:
    from opstep.cli.debug.dialogue import Dialogue
    from opstep.cli.debug.reading import Complete, Reader
    from opstep.cli.debug.showing import Paint

S = TypeVar("S", bound="Dialogue")


def given_commands(options: dict[str, Any]) -> list[Reader]:
    """Those of -x and -ex."""
    from opstep.cli.debug.reading import ScriptReader, script

    first: list[Reader] = [script(options["script"])] if options["script"] else []
    return first + ([ScriptReader("-ex", options["given"])] if options["given"] else [])


def begun(kind: Callable[[Any, Paint, bool], S], about: Any, batch: bool = False) -> S:
    """A session at this terminal, or of a pipe."""
    from opstep.cli.debug.showing import Paint

    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not batch
    session = kind(about, Paint(colors(sys.stdout)), interactive)
    session.registry.load()
    return session


def asked(session: Dialogue, complete: Complete) -> Reader:
    """Reads what the user writes."""
    from opstep.cli.debug.reading import PipeReader, TerminalReader

    if not session.interactive:
        return PipeReader()
    return TerminalReader(session.paint, complete)
