"""Messages as the protocol has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from opstep.lsp.checking import messages
from opstep.lsp.item import ItemSource
from opstep.lsp.unused import UNUSED
from opstep.runtime.ir.diagnostics import Diagnostic, Note

if TYPE_CHECKING:
    from opstep.lsp.file import File

SOURCE = "opstep"
_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}


def diagnostics(file: File) -> list[types.Diagnostic]:
    """All messages about a file, in order."""
    return [told(file, d) for d in messages(file)]


def told(file: File, d: Diagnostic) -> types.Diagnostic:
    """One message. The hint stands on a line of its own."""
    return types.Diagnostic(
        range=place(file, d),
        message=f"{d.message}\n{d.hint}" if d.hint else d.message,
        severity=_SEVERITY.get(d.severity, types.DiagnosticSeverity.Information),
        code=d.code or None,
        source=SOURCE,
        tags=[types.DiagnosticTag.Unnecessary] if d.code == UNUSED else None,
        related_information=[r for note in d.notes if (r := _related(d, Note(*note)))] or None,
    )


def place(file: File, d: Diagnostic) -> types.Range:
    """Where a message is shown: in this file. One about another file is shown at its beginning."""
    source = d.source
    if d.span is not None and isinstance(source, ItemSource) and source.item.file is file:
        return source.item.span(d.span)
    return types.Range(types.Position(0, 0), types.Position(0, 0))


def _related(d: Diagnostic, note: Note) -> types.DiagnosticRelatedInformation | None:
    source = note.source or d.source
    if not isinstance(source, ItemSource):
        return None
    place = types.Location(source.item.file.uri, source.item.span(note.span))
    return types.DiagnosticRelatedInformation(place, note.message)
