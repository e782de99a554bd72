"""Collects the verifier's messages."""

from __future__ import annotations

from collections.abc import Iterable

from opstep.runtime.ir.diagnostics import Diagnostic, Note, did_you_mean
from opstep.runtime.ir.graph import Apply, Source, Span
from opstep.runtime.ir.op import Mismatch

_MOST_ERRORS = 1_000
_MOST_SUGGESTIONS = 100  # looking for near names is slow


class TooMany(Exception):
    """Too many errors to be worth reading."""


class Reporter:
    """The messages so far, and what is left of the patience to look for near names."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._suggestions = _MOST_SUGGESTIONS

    def error(
        self,
        source: Source | None,
        span: Span,
        message: str,
        hint: str = "",
        notes: tuple[Note, ...] = (),
        code: str = "",
    ) -> None:
        """Adds an error; raises TooMany when there are enough."""
        self.diagnostics.append(Diagnostic("error", message, span, source, hint, notes, code))
        if len(self.diagnostics) >= _MOST_ERRORS:
            message = f"there are more than {_MOST_ERRORS} errors; the rest is not checked"
            self.diagnostics.append(Diagnostic("note", message, span, source))
            raise TooMany

    def near(self, name: str, candidates: Iterable[str]) -> str:
        """A hint with the names nearest to `name`, or ""."""
        if self._suggestions <= 0:
            return ""
        self._suggestions -= 1
        return did_you_mean(name, candidates)


def mismatch_span(s: Apply, m: Mismatch) -> Span:
    """The place in a statement that a Mismatch is about."""
    if isinstance(m.at, int) and m.at < len(s.operands):
        return s.operands[m.at].span
    for a in s.attrs:
        if a.name.text == m.at:
            return a.span
    return s.callee.span
