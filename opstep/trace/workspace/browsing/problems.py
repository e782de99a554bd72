"""What went wrong, as clients get it: a kind to tell cases apart, words, and the place."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.wording import worded
from opstep.trace.workspace.query import Ended, Refused
from opstep.trace.workspace.store import FileProblem

_READS = "this view only reads; on the command line, `opstep ws FILE sql … --write` can change it"


def problem_json(error: OpstepError, text: str = "") -> dict[str, Any]:
    """``kind`` (a kind of `FileProblem`, ``refused``, ``stopped``, or ``wrong``), ``message``,
    ``hint``, and ``start`` and ``end`` in `text`, in units of UTF-16, where the place is known.
    """
    first = error.diagnostics[0]
    hint = worded(first.hint, lambda argument: None)  # a view has no arguments
    if isinstance(error, Refused) and error.writes:
        hint = _READS
    described: dict[str, Any] = {"kind": _kind(error), "message": first.message, "hint": hint}
    if first.span is not None and text:
        described |= {"start": units(text, first.span.start), "end": units(text, first.span.end)}
    return described


def _kind(error: OpstepError) -> str:
    if isinstance(error, FileProblem):
        return error.kind
    if isinstance(error, Refused):
        return "refused"
    return "stopped" if isinstance(error, Ended) else "wrong"


def units(text: str, offset: int) -> int:
    """An offset in characters as JavaScript counts it: those beyond U+FFFF are two."""
    return offset + sum(c > "\uffff" for c in text[:offset])
